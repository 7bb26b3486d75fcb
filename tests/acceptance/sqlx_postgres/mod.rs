//! The suite over PostgreSQL through sqlx, and what is about that driver alone.

mod begin;
mod flights;
#[path = "../on_postgres/mod.rs"]
mod on_postgres;
#[path = "../on_sqlx/mod.rs"]
mod on_sqlx;
#[path = "../shared/mod.rs"]
mod shared;

use idem_runtime::postgres::MIGRATIONS;
use idem_tests::{kinds::SqlxPostgres as Kind, service::sqlx_postgres as routes};
use sqlx::Postgres as Driver;
