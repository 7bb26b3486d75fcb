//! The promise, tested over real HTTP and a real PostgreSQL: a module for each part of the specification.

mod answers;
mod identity;
mod input;
mod logs;
mod promise;
mod protocol;
