//! The layer as its users see it: over scripted answers in virtual time, and over sockets that break.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests fail like tests"
)]

mod asking;
mod keys;
mod limits;
mod log;
mod outcomes;
mod script;
mod sockets;
