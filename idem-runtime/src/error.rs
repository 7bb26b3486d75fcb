//! What can go wrong between the protocol and its database, without HTTP.

use std::{fmt, time::Duration};

/// Says why the store could not do what was asked of it.
///
/// The texts are for logs: they name SQLSTATEs, constraints and settings, never a key, a scope or
/// a body.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No connection became free within the pool's wait timeout.
    #[error(
        "no pooled connection became free within the pool's wait timeout: too many requests at \
         once, a handler that takes a second connection from the same pool, or COMMITs that the \
         server does not answer (is a synchronous standby gone?)"
    )]
    Busy,
    /// SQLite's one writer was somebody else for too long.
    #[error(
        "the turn to write did not come in time: SQLite has one writer, and guarded handlers that \
         run long, or another process that writes, hold up all others"
    )]
    Locked,
    /// The database could not be reached, or the connection broke.
    #[error("the database cannot be reached: {0}")]
    Unreachable(String),
    /// The database did not answer in time.
    #[error("the database did not answer within {0:?}")]
    TimedOut(Duration),
    /// The record table is missing or not as this release needs it.
    #[error(
        "{0}: run `Idempotency::migrate()` at start, or apply the backend's `MIGRATIONS` with your own migration tool"
    )]
    Schema(String),
    /// A serialisation failure or a deadlock: the transaction was rolled back.
    #[error("a serialisation failure or deadlock rolled the transaction back (SQLSTATE {0})")]
    Conflict(String),
    /// The database refused a statement.
    #[error("the database refused: {0}")]
    Refused(String),
    /// A stored record cannot be read.
    #[error("a stored record cannot be read: {0}")]
    Corrupt(String),
}

/// Says why an [`Idempotency`](crate::Idempotency) could not be built.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The pool would wait for ever when all its connections are taken.
    #[error(
        "the pool has no wait timeout, so a request would hang when all connections are taken: \
         set one (`Pool::builder(manager).wait_timeout(Some(Duration::from_secs(5))).runtime(Runtime::Tokio1)`), \
         or open the pool with `idem_runtime::postgres::pool`"
    )]
    NoWaitTimeout,
    /// The schema's name is no plain identifier.
    #[error(
        "`{0}` is no schema name: 1 to 63 of `a`-`z`, `0`-`9` and `_`, not beginning with a digit"
    )]
    SchemaName(String),
    /// A duration that must be positive is zero.
    #[error("{0} must be longer than zero")]
    Zero(&'static str),
    /// A duration is longer than it may be.
    #[error("{0} must not be longer than {1:?}")]
    TooLong(&'static str, Duration),
    /// The connection string cannot be read.
    #[error("the connection string cannot be read: {0}")]
    Url(String),
    /// The address of the problems' documentation cannot stand in a `Link` header.
    #[error("`problem_docs` is no plain URL without a fragment: {0}")]
    ProblemDocs(String),
    /// The pool could not be built.
    #[error("the pool cannot be built: {0}")]
    Pool(String),
}

/// What a `main` that returns the error prints: the text that says what to do.
impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a `main` that returns the error prints: the text that says what to do.
impl fmt::Debug for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_that_returns_an_error_prints_what_to_do() {
        let missing = StoreError::Schema("the record table has version 0".to_owned());
        assert!(format!("{missing:?}").contains("migrate()"));
        assert!(format!("{:?}", SettingsError::NoWaitTimeout).contains("wait_timeout"));
    }
}
