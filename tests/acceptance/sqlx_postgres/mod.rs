//! The suite over PostgreSQL through sqlx, and what is about that driver alone.

#[path = "../on_postgres/mod.rs"]
mod on_postgres;
#[path = "../shared/mod.rs"]
mod shared;

use idem_runtime::postgres::MIGRATIONS;
use idem_tests::{kinds::SqlxPostgres as Kind, service::sqlx_postgres as routes};
