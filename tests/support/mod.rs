//! The parts of the test harness, one subject a file.

pub mod database;
pub mod raw_http;
pub mod relay;
pub mod service;
pub mod sessions;
