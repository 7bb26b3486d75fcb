//! The suite over PostgreSQL through deadpool-postgres, and what is about that driver alone.

mod connections;
mod flights;
#[path = "../on_postgres/mod.rs"]
mod on_postgres;
#[path = "../shared/mod.rs"]
mod shared;

use idem_runtime::postgres::MIGRATIONS;
use idem_tests::{kinds::Deadpool as Kind, service::deadpool as routes};
