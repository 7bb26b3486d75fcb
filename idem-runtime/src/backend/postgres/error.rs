//! What PostgreSQL's errors mean for the protocol, in words that hold no data.

use std::fmt::Write;

use deadpool_postgres::{PoolError, TimeoutType};
use tokio_postgres::{
    Error,
    error::{DbError, Severity, SqlState},
};

use crate::{backend::KeepError, error::StoreError};

/// Decides from both answers of flight 2 what has become of the transaction.
///
/// COMMIT alone proves nothing: after a failed statement the server answers it with a rollback
/// that the driver reports as success.
pub(super) fn judge(last: Result<(), Error>, commit: Result<(), Error>) -> Result<(), KeepError> {
    let (error, by_commit) = match (last, commit) {
        (Ok(()), Ok(())) => return Ok(()),
        (Err(error), _) => (error, false),
        (Ok(()), Err(error)) => (error, true),
    };
    let Some(refusal) = rollback(&error) else {
        return Err(KeepError::InDoubt(store_error(&error)));
    };
    let code = refusal.code();
    Err(match *code {
        SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => {
            KeepError::Overtaken(store_error(&error))
        }
        // Another request's effect, or this one's after all, stands under the key.
        SqlState::UNIQUE_VIOLATION if !by_commit => KeepError::Overtaken(store_error(&error)),
        SqlState::IN_FAILED_SQL_TRANSACTION => KeepError::Swallowed,
        SqlState::NOT_NULL_VIOLATION if !by_commit => match refusal.column() {
            Some("created_at") => KeepError::Overtaken(store_error(&error)),
            Some("expires_at") => KeepError::Ended,
            _ => KeepError::Refused(store_error(&error)),
        },
        SqlState::DIVISION_BY_ZERO if !by_commit => KeepError::Ended,
        _ => KeepError::Refused(store_error(&error)),
    })
}

/// Returns the server's error if it is certain that it rolled the transaction back. A session that
/// is being ended may have committed: its severity is FATAL.
fn rollback(error: &Error) -> Option<&DbError> {
    let error = error.as_db_error()?;
    let severity = error.parsed_severity();
    (severity == Some(Severity::Error)).then_some(error)
}

/// Whether the connection, not the request, is at fault: another one may do.
pub(super) fn is_stale(error: &Error) -> bool {
    let Some(refusal) = error.as_db_error() else {
        return true;
    };
    // A session that is being ended; or a connection that was left in a transaction, failed or of
    // another kind than ours; or a pooler that has changed the server's end.
    refusal.parsed_severity() == Some(Severity::Fatal)
        || [
            SqlState::IN_FAILED_SQL_TRANSACTION,
            SqlState::ACTIVE_SQL_TRANSACTION,
            SqlState::INVALID_SQL_STATEMENT_NAME,
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
        ]
        .contains(refusal.code())
}

pub(super) fn store_error(error: &Error) -> StoreError {
    let Some(refusal) = error.as_db_error() else {
        // The driver's own text says what it was doing, its source what went wrong.
        let source = std::error::Error::source(error).map(|source| format!(": {source}"));
        return StoreError::Unreachable(format!("{error}{}", source.unwrap_or_default()));
    };
    let code = refusal.code();
    match *code {
        SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => {
            StoreError::Conflict(code.code().to_owned())
        }
        SqlState::UNDEFINED_TABLE | SqlState::INVALID_SCHEMA_NAME | SqlState::UNDEFINED_COLUMN => {
            StoreError::Schema(describe(refusal))
        }
        _ => match code.code().get(..2) {
            Some("08" | "53" | "57") => StoreError::Unreachable(describe(refusal)),
            _ => StoreError::Refused(describe(refusal)),
        },
    }
}

pub(super) fn pool_error(error: PoolError) -> StoreError {
    match error {
        PoolError::Timeout(TimeoutType::Wait) => StoreError::Busy,
        PoolError::Backend(error) => store_error(&error),
        other => StoreError::Unreachable(other.to_string()),
    }
}

/// Names what the server found wrong. Its messages may hold values (of a unique key, of a
/// trigger's own text), so only those about the server itself are repeated.
fn describe(error: &DbError) -> String {
    let code = error.code().code();
    let mut text = format!("SQLSTATE {code}");
    if let Some("08" | "0A" | "25" | "28" | "3D" | "3F" | "42" | "53" | "55" | "57" | "58") =
        code.get(..2)
    {
        text = format!("{} ({text})", error.message());
    }
    for (what, name) in [("table", error.table()), ("constraint", error.constraint())] {
        if let Some(name) = name {
            // Writing to a string does not fail.
            let _ = write!(text, ", {what} `{name}`");
        }
    }
    text
}
