//! The promise, tested over real HTTP and a real PostgreSQL: a module for each part of the specification.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "what the tests share fails as the tests themselves do"
)]

mod answers;
mod faults;
mod identity;
mod input;
mod logs;
mod postgres_connections;
mod postgres_flights;
mod postgres_handlers;
mod postgres_isolation;
mod postgres_lost_commit;
mod postgres_schema;
mod processes;
mod promise;
mod protocol;
