//! The parts of the test harness, one subject a file.

pub mod database;
pub mod kinds;
pub mod raw_http;
pub mod relay;
pub mod service;
