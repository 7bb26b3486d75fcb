//! The promise, tested over real HTTP and a real PostgreSQL: a module for each part of the specification.

mod promise;
mod protocol;
