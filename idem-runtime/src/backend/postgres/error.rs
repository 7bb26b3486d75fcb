//! What PostgreSQL's errors mean for the protocol, in words that hold no data.

use std::fmt::Write;

use crate::{backend::KeepError, error::StoreError};

/// Holds what went wrong, whichever driver says it.
pub(super) enum Failure<'a> {
    /// The server has answered.
    Server(Refusal<'a>),
    /// It has not; the driver's own words.
    Connection(String),
}

/// Holds a server's error.
pub(super) struct Refusal<'a> {
    /// The SQLSTATE.
    pub(super) code: &'a str,
    pub(super) message: &'a str,
    /// Whether the statement is over, and no more than that. A session that is being ended may have
    /// committed: its severity is FATAL.
    pub(super) is_error: bool,
    pub(super) table: Option<&'a str>,
    pub(super) column: Option<&'a str>,
    pub(super) constraint: Option<&'a str>,
}

const SERIALIZATION_FAILURE: &str = "40001";
const DEADLOCK: &str = "40P01";
const INSUFFICIENT_PRIVILEGE: &str = "42501";

/// What the role of a service needs. Sweeping locks rows, which takes UPDATE.
pub(super) const GRANTS: &str = "GRANT the role USAGE on the schema, SELECT, INSERT, UPDATE and \
                                 DELETE on `records`, SELECT on `migrations`; and for \
                                 `migrate()`, CREATE on the database";

/// Decides from a failure of flight 2, by COMMIT or by a statement before it, what has become of
/// the transaction.
pub(super) fn judge(failure: &Failure<'_>, by_commit: bool) -> KeepError {
    let error = store_error(failure);
    let Failure::Server(refusal @ Refusal { is_error: true, .. }) = failure else {
        return KeepError::InDoubt(error);
    };
    match refusal.code {
        SERIALIZATION_FAILURE | DEADLOCK => KeepError::Overtaken(error),
        // Another request's effect, or this one's after all, stands under the key.
        "23505" if !by_commit => KeepError::Overtaken(error),
        // A statement of the handler had failed.
        "25P02" => KeepError::Swallowed,
        // A column that the record's statement leaves empty on purpose.
        "23502" if !by_commit => match refusal.column {
            Some("created_at") => KeepError::Overtaken(error),
            Some("expires_at") => KeepError::Ended,
            _ => KeepError::Refused(error),
        },
        // The division by zero that stands for the same without a record.
        "22012" if !by_commit => KeepError::Ended,
        _ => KeepError::Refused(error),
    }
}

/// Whether the connection, not the request, is at fault: another one may do.
pub(super) fn is_stale(failure: &Failure<'_>) -> bool {
    match failure {
        Failure::Connection(_) => true,
        // A session that is being ended; or a connection that was left in a transaction, failed or
        // of another kind than ours; or a pooler that has changed the server's end.
        Failure::Server(refusal) => {
            !refusal.is_error
                || ["25P02", "25001", "26000", "57P01", "57P02"].contains(&refusal.code)
        }
    }
}

pub(super) fn store_error(failure: &Failure<'_>) -> StoreError {
    let refusal = match failure {
        Failure::Server(refusal) => refusal,
        Failure::Connection(text) => return StoreError::Unreachable(text.clone()),
    };
    match refusal.code {
        SERIALIZATION_FAILURE | DEADLOCK => StoreError::Conflict(refusal.code.to_owned()),
        // No such table, schema, column.
        "42P01" | "3F000" | "42703" => StoreError::Schema(refusal.describe()),
        INSUFFICIENT_PRIVILEGE => StoreError::Refused(format!("{}: {GRANTS}", refusal.describe())),
        code => match code.get(..2) {
            Some("08" | "53" | "57") => StoreError::Unreachable(refusal.describe()),
            _ => StoreError::Refused(refusal.describe()),
        },
    }
}

impl Refusal<'_> {
    /// Names what the server found wrong. Its messages may hold values (of a unique key, of a
    /// trigger's own text), so only those about the server itself are repeated.
    fn describe(&self) -> String {
        let mut text = format!("SQLSTATE {}", self.code);
        if let Some("08" | "0A" | "25" | "28" | "3D" | "3F" | "42" | "53" | "55" | "57" | "58") =
            self.code.get(..2)
        {
            text = format!("{} ({text})", self.message);
        }
        for (what, name) in [("table", self.table), ("constraint", self.constraint)] {
            if let Some(name) = name {
                // Writing to a string does not fail.
                let _ = write!(text, ", {what} `{name}`");
            }
        }
        text
    }
}
