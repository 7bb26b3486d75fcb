//! The errors of sqlx in the form in which they are judged.

use sqlx::{
    Error,
    postgres::{PgDatabaseError, PgSeverity},
};

use super::super::error::{Failure, Refusal};

impl<'a> From<&'a Error> for Failure<'a> {
    fn from(error: &'a Error) -> Self {
        let refusal = error.as_database_error();
        match refusal.and_then(|refusal| refusal.try_downcast_ref::<PgDatabaseError>()) {
            Some(refusal) => Self::Server(Refusal {
                code: refusal.code(),
                message: refusal.message(),
                is_error: refusal.severity() == PgSeverity::Error,
                table: refusal.table(),
                column: refusal.column(),
                constraint: refusal.constraint(),
            }),
            // What the driver says of itself and of the connection.
            None => Self::Connection(error.to_string()),
        }
    }
}
