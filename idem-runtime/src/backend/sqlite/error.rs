//! What SQLite's errors mean for the protocol, in words that hold no data.

use sqlx::{Error, error::DatabaseError};

use crate::{backend::KeepError, error::StoreError};

// Primary result codes; an extended one has its primary one in its lowest byte.
const ERROR: i32 = 1;
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const READONLY: i32 = 8;
const IO: i32 = 10;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const CANNOT_OPEN: i32 = 14;
const CONSTRAINT: i32 = 19;
const NO_DATABASE: i32 = 26;

/// The extended code of a primary key that is there already.
const PRIMARY_KEY: i32 = 1555;

/// Decides from the failure of the last statement, before any COMMIT, what has become of the
/// transaction: it can only be rolled back.
pub(super) fn before_commit(error: &Error) -> KeepError {
    match code(error) {
        // Another request's effect stands under the key, or the connection has died.
        Some(PRIMARY_KEY) | None => KeepError::Overtaken(store_error(error)),
        Some(_) => KeepError::Refused(store_error(error)),
    }
}

/// Decides from the failure of COMMIT what has become of the transaction.
pub(super) fn by_commit(error: &Error) -> KeepError {
    match code(error).map(primary) {
        // A reader stood in the way; closing the connection rolls back.
        Some(BUSY | LOCKED) => KeepError::Overtaken(store_error(error)),
        // What was written may have arrived, or not.
        Some(IO) | None => KeepError::InDoubt(store_error(error)),
        Some(_) => KeepError::Refused(store_error(error)),
    }
}

/// Whether BEGIN was refused by a connection that was left in a transaction, or has died: another
/// one may do.
pub(super) fn is_stale(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidSavePointStatement | Error::WorkerCrashed
    ) || code(error) == Some(ERROR)
}

pub(super) fn store_error(error: &Error) -> StoreError {
    let refusal = match error {
        Error::Database(refusal) => refusal.as_ref(),
        Error::PoolTimedOut => return StoreError::Busy,
        // What the driver says of itself; it has seen no data.
        other => return StoreError::Unreachable(other.to_string()),
    };
    let Some(code) = code(error) else {
        return StoreError::Refused("an error without a code".to_owned());
    };
    match primary(code) {
        BUSY | LOCKED => StoreError::Locked,
        ERROR if refusal.message().starts_with("no such table: idem_") => {
            StoreError::Schema(describe(refusal, code))
        }
        READONLY => StoreError::Refused(format!(
            "{}: the service's user needs the right to write to the file and to its folder",
            describe(refusal, code)
        )),
        IO | FULL | CANNOT_OPEN | CORRUPT | NO_DATABASE => {
            StoreError::Unreachable(describe(refusal, code))
        }
        _ => StoreError::Refused(describe(refusal, code)),
    }
}

/// Names what SQLite found wrong. The message of a constraint may be a trigger's own text, with
/// values in it, so it is not repeated.
fn describe(refusal: &dyn DatabaseError, code: i32) -> String {
    if primary(code) == CONSTRAINT {
        return format!("a constraint failed (SQLite {code})");
    }
    format!("{} (SQLite {code})", refusal.message())
}

/// The extended result code, if SQLite has answered.
fn code(error: &Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

fn primary(code: i32) -> i32 {
    code & 0xff
}
