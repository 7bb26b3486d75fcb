//! The suite over SQLite, and what comes of its one writer and its one file.

#[path = "../shared/mod.rs"]
mod shared;

use idem_tests::{kinds::Sqlite as Kind, service::sqlite as routes};
