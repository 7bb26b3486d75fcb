//! The promise, tested over real HTTP and real databases: a module for each backend, with what all of them share inside.

#![allow(
    clippy::duplicate_mod,
    reason = "the shared tests are compiled once for each backend, and the lists of them cannot differ"
)]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "what the tests share fails as the tests themselves do"
)]

mod deadpool;
mod sqlite;
mod sqlx_postgres;
