//! The promise, tested over real HTTP and a real PostgreSQL: a module for each part of the specification.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests fail like tests"
)]

mod answers;
mod identity;
mod input;
mod logs;
mod promise;
mod protocol;
