//! What PostgreSQL's backends have in common: the record table, its statements, what errors mean. No driver.

#[cfg(feature = "postgres")]
pub(crate) mod deadpool;
mod error;
mod schema;
#[cfg(feature = "sqlx-postgres")]
pub(crate) mod sqlx;

use std::{future::Future, time::Duration};

use tokio::time::timeout;

pub use self::schema::MIGRATIONS;
use super::Session;
use crate::{
    error::{SettingsError, StoreError},
    model::{Identity, Isolation},
};

/// How long deleting one batch of expired records may take.
const SWEEP: Duration = Duration::from_secs(60);

/// How long one statement's end and the next one's beginning may be apart in a migration.
const MIGRATION: Duration = Duration::from_secs(60);

/// The longest database timeout: one that is meant for ever would leave requests hanging.
const LONGEST: Duration = Duration::from_secs(3600);

/// How long the migrations may take, and waiting for another instance's: some statements take long
/// for good reason, and a database that has vanished in the middle must not hang a start for ever.
const MIGRATIONS_TAKE: Duration = Duration::from_secs(600);

/// Bounds what the database is asked to do.
async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let done = timeout(limit, work).await;
    done.unwrap_or(Err(StoreError::TimedOut(limit)))
}

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
        for (what, duration) in [
            ("the database timeout", timeout),
            ("`connection_check_interval`", check_interval),
        ] {
            if duration > LONGEST {
                return Err(SettingsError::TooLong(what, LONGEST));
            }
        }
        Ok(Self {
            timeout,
            check_interval: milliseconds(check_interval).to_string(),
            lock_salt: schema::lock_salt(&schema),
            schema: schema.into(),
        })
    }

    /// How long the server lets a transaction be idle before it ends it: the hold of a stopped
    /// process on its key, but never that of a handler in its time. After as long, a COMMIT that
    /// has not been answered gives its connection up: had it never arrived, the server would have
    /// ended the transaction by then.
    fn fence(&self, session: &Session) -> Duration {
        session.timeout + self.timeout * 2
    }

    /// The fence as the value of `idle_in_transaction_session_timeout`.
    fn idle_timeout(&self, session: &Session) -> String {
        self.fence(session).as_millis().to_string()
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

/// Counts whole milliseconds: one at least, if it is any time at all.
fn milliseconds(duration: Duration) -> u128 {
    if duration.is_zero() {
        return 0;
    }
    duration.as_millis().max(1)
}

/// Reads what remains of a lifetime, in seconds.
fn remaining(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_timeout_has_bounds() {
        let settings = |timeout| {
            Settings::new(Options {
                timeout,
                ..Options::default()
            })
        };
        assert!(matches!(
            settings(Duration::ZERO),
            Err(SettingsError::Zero(_))
        ));
        assert!(matches!(
            settings(Duration::MAX),
            Err(SettingsError::TooLong(..))
        ));
        assert!(settings(LONGEST).is_ok());
    }

    #[test]
    fn a_check_interval_is_off_only_when_it_is_zero_and_never_more_than_the_server_takes() {
        let interval = |check_interval| {
            let settings = Settings::new(Options {
                check_interval,
                ..Options::default()
            });
            settings.map(|settings| settings.check_interval)
        };
        for (duration, sent) in [
            (Duration::ZERO, "0"),
            (Duration::from_micros(1), "1"),
            (Duration::from_millis(250), "250"),
            (LONGEST, "3600000"),
        ] {
            assert_eq!(interval(duration).unwrap(), sent);
        }
        assert!(matches!(
            interval(Duration::MAX),
            Err(SettingsError::TooLong(..))
        ));
    }
}
