//! What PostgreSQL's backends have in common: the record table, its statements, what errors mean. No driver.

#[cfg(feature = "postgres")]
pub(crate) mod deadpool;
mod error;
mod schema;
#[cfg(feature = "sqlx-postgres")]
pub(crate) mod sqlx;

use std::time::Duration;

pub use self::schema::MIGRATIONS;
use super::Session;
use crate::{
    error::SettingsError,
    model::{Identity, Isolation},
};

/// How long deleting one batch of expired records may take.
const SWEEP: Duration = Duration::from_secs(60);

/// How long one statement's end and the next one's beginning may be apart in a migration.
const MIGRATION: Duration = Duration::from_secs(60);

/// Says how the protocol's statements are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatementMode {
    /// Prepared once a connection: for direct connections, and poolers that know prepared
    /// statements (PgBouncer from 1.21, with `max_prepared_statements` set). The default.
    #[default]
    Cached,
    /// Unnamed, planned anew each time (about 30 µs a statement, and through sqlx a round trip):
    /// for poolers in transaction mode that do not know prepared statements. They would fail with
    /// SQLSTATE 26000 or 42P05.
    Unnamed,
}

/// Holds what the builder says about the store.
#[derive(Debug)]
pub struct Options {
    pub(crate) schema: String,
    pub(crate) statements: StatementMode,
    pub(crate) timeout: Duration,
    pub(crate) check_interval: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            schema: "idem".to_owned(),
            statements: StatementMode::Cached,
            timeout: Duration::from_secs(5),
            check_interval: Duration::from_millis(250),
        }
    }
}

/// Holds the options in the form in which requests need them.
#[derive(Debug)]
struct Settings {
    schema: Box<str>,
    /// How long one flight may take.
    timeout: Duration,
    /// The value of `client_connection_check_interval`.
    check_interval: String,
    /// Keeps the locks of two schemas in one database apart.
    lock_salt: i64,
}

impl Settings {
    fn new(options: Options) -> Result<Self, SettingsError> {
        let Options {
            schema,
            statements: _,
            timeout,
            check_interval,
        } = options;
        if !schema::is_valid_name(&schema) {
            return Err(SettingsError::SchemaName(schema));
        }
        if timeout.is_zero() {
            return Err(SettingsError::Zero("the database timeout"));
        }
        Ok(Self {
            timeout,
            check_interval: check_interval.as_millis().to_string(),
            lock_salt: schema::lock_salt(&schema),
            schema: schema.into(),
        })
    }

    /// The value of `idle_in_transaction_session_timeout`: it ends the hold of a stopped process on
    /// its key, but never that of a handler in its time.
    fn idle_timeout(&self, session: &Session) -> String {
        (session.timeout + self.timeout * 2).as_millis().to_string()
    }

    /// The number that stands for a key among the advisory locks.
    fn lock(&self, identity: &Identity) -> i64 {
        identity.number().cast_signed() ^ self.lock_salt
    }
}

fn begin(isolation: Isolation) -> &'static str {
    // Spelled out, since a role or a database may have other defaults.
    match isolation {
        Isolation::ReadCommitted => "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
        Isolation::RepeatableRead => "BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE",
        Isolation::Serializable => "BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE",
    }
}

/// Reads what remains of a lifetime, in seconds.
fn remaining(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
