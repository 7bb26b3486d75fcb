//! The suite over SQLite, and what comes of its one writer and its one file.

mod file;
mod handlers;
#[path = "../on_sqlx/mod.rs"]
mod on_sqlx;
#[path = "../shared/mod.rs"]
mod shared;
mod writers;

use idem_tests::{kinds::Sqlite as Kind, service::sqlite as routes};
use sqlx::Sqlite as Driver;
