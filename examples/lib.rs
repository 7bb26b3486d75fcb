//! What the examples share: the demonstration that they run against themselves.

pub mod demo;
