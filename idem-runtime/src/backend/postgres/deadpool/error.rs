//! The errors of tokio-postgres and deadpool in the form in which they are judged.

use deadpool_postgres::{PoolError, TimeoutType};
use tokio_postgres::{Error, error::Severity};

use super::super::error::{self, Failure, Refusal};
use crate::{backend::KeepError, error::StoreError};

/// Decides from both answers of flight 2 what has become of the transaction.
///
/// COMMIT alone proves nothing: after a failed statement the server answers it with a rollback
/// that the driver reports as success.
pub(super) fn judge(last: Result<(), Error>, commit: Result<(), Error>) -> Result<(), KeepError> {
    match (last, commit) {
        #[cfg(feature = "__seeded")]
        (Ok(()), _) if crate::seeded::is("commit-taken-for-granted") => Ok(()),
        (Ok(()), Ok(())) => Ok(()),
        (Err(error), _) => Err(error::judge(&Failure::from(&error), false)),
        (Ok(()), Err(error)) => Err(error::judge(&Failure::from(&error), true)),
    }
}

pub(super) fn is_stale(error: &Error) -> bool {
    error::is_stale(&Failure::from(error))
}

pub(super) fn store_error(error: &Error) -> StoreError {
    error::store_error(&Failure::from(error))
}

pub(super) fn pool_error(error: PoolError) -> StoreError {
    match error {
        PoolError::Timeout(TimeoutType::Wait) => StoreError::Busy,
        PoolError::Backend(error) => store_error(&error),
        other => StoreError::Unreachable(other.to_string()),
    }
}

impl<'a> From<&'a Error> for Failure<'a> {
    fn from(error: &'a Error) -> Self {
        if let Some(refusal) = error.as_db_error() {
            return Self::Server(Refusal {
                code: refusal.code().code(),
                message: refusal.message(),
                is_error: refusal.parsed_severity() == Some(Severity::Error),
                table: refusal.table(),
                column: refusal.column(),
                constraint: refusal.constraint(),
            });
        }
        // The driver's own text says what it was doing, its source what went wrong.
        let source = std::error::Error::source(error).map(|source| format!(": {source}"));
        Self::Connection(format!("{error}{}", source.unwrap_or_default()))
    }
}
