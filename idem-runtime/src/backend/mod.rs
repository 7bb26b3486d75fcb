//! The line between the protocol and a database: a few methods, each one flight.

#[cfg(any(feature = "postgres", feature = "sqlx-postgres"))]
mod driver;
#[cfg(any(feature = "sqlite", feature = "sqlx-postgres"))]
mod held;
#[cfg(any(feature = "postgres", feature = "sqlx-postgres"))]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;

use crate::{
    error::{SettingsError, StoreError},
    meter::{self, Cause},
    model::{Fingerprint, Found, Identity, Isolation, Kind, Record, Snapshot},
};

/// How many connections were lost since the process began.
static LOSSES: AtomicU64 = AtomicU64::new(0);

/// Says that a connection was lost, of whatever pool: the database may have failed over, and have
/// forgotten what it had acknowledged.
pub(crate) fn lost() {
    LOSSES.fetch_add(1, Ordering::Release);
    meter::lost();
}

/// Tells how many connections were lost since the process began.
pub(crate) fn losses() -> u64 {
    LOSSES.load(Ordering::Acquire)
}

/// How many connections flight 1 tries: a pool learns only from use that one has died.
const CONNECTIONS: u32 = 3;

/// Stores records in one kind of database, through one kind of pool.
///
/// Implemented by this crate only; the type of a handler's transaction parameter chooses.
pub trait Backend: Send + Sync + 'static {
    /// A transaction that has begun. Dropping it ends the connection, so that nothing half done
    /// returns to the pool.
    type Open: Open;

    /// Whether a claim waits for others, so that a look comes before each.
    #[doc(hidden)]
    const LOOKS_FIRST: bool = false;

    /// Looks the key up, whoever holds it: the cheapest way to a record, and no more than that.
    #[doc(hidden)]
    fn look(&self, call: &Call) -> impl Future<Output = Result<Found, StoreError>>;

    /// Begins a transaction and looks the key up, trying to get hold of it (flight 1).
    #[doc(hidden)]
    fn claim(&self, call: &Call) -> impl Future<Output = Result<Claimed<Self::Open>, StoreError>>;

    /// Tells what has become of a key without touching it: waits for nobody and keeps nobody
    /// waiting.
    #[doc(hidden)]
    fn status(&self, identity: &Identity) -> impl Future<Output = Result<Seen, StoreError>>;

    /// Begins a transaction for a request without a key.
    #[doc(hidden)]
    fn begin(&self, session: &Session) -> impl Future<Output = Result<Self::Open, StoreError>>;

    /// Creates or completes the record table.
    #[doc(hidden)]
    fn migrate(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Checks that the record table and the connection are what the protocol needs.
    #[doc(hidden)]
    fn verify_schema(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Deletes at most `limit` expired records and returns how many it deleted.
    #[doc(hidden)]
    fn sweep(&self, limit: u32) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// Opens a backend over a pool that a service already has.
///
/// Implemented for the pools of the backends; not to be implemented elsewhere.
pub trait Pool: Sized {
    /// The backend.
    type Backend: Backend;
    /// What can be set about it.
    #[doc(hidden)]
    type Options: Default;

    #[doc(hidden)]
    fn open(self, options: Self::Options) -> Result<Self::Backend, SettingsError>;
}

/// Ends an open transaction in one of five ways.
pub trait Open: Sized + Send + 'static {
    /// Stores the answer and commits, in one flight (flight 2).
    #[doc(hidden)]
    fn keep(self, call: &Call, entry: Entry<'_>) -> impl Future<Output = Result<(), KeepError>>;

    /// Rolls back and claims again at READ COMMITTED, in one flight.
    #[doc(hidden)]
    fn again(self, call: &Call) -> impl Future<Output = Result<Claimed<Self>, KeepError>>;

    /// Commits a request without a key.
    #[doc(hidden)]
    fn commit(self) -> impl Future<Output = Result<(), KeepError>>;

    /// Rolls back and returns the connection to its pool.
    #[doc(hidden)]
    fn give_up(self) -> impl Future<Output = ()>;

    /// Rolls back where nothing has run but the claim, and nobody waits for the key: the connection
    /// may return to its pool before the server has said that it rolled back.
    #[doc(hidden)]
    fn let_go(self) -> impl Future<Output = ()> {
        self.give_up()
    }
}

/// Names one guarded request.
#[derive(Debug)]
pub struct Call {
    pub(crate) identity: Arc<Identity>,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) ttl: Duration,
    #[cfg_attr(
        not(any(feature = "postgres", feature = "sqlx-postgres")),
        expect(dead_code, reason = "SQLite has nothing to set up")
    )]
    pub(crate) session: Session,
}

/// Says how the transaction is to be set up.
pub struct Session {
    pub(crate) isolation: Isolation,
    /// How long the handler may take: fences stand above it.
    #[cfg_attr(
        not(any(feature = "postgres", feature = "sqlx-postgres")),
        expect(dead_code, reason = "SQLite has no sessions to fence")
    )]
    pub(crate) timeout: Duration,
    /// The service's own settings, local to the transaction.
    #[cfg_attr(
        not(any(feature = "postgres", feature = "sqlx-postgres")),
        expect(dead_code, reason = "SQLite has no settings")
    )]
    pub(crate) settings: Vec<(String, String)>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("isolation", &self.isolation)
            .finish_non_exhaustive()
    }
}

/// Holds what flight 1 brought back.
#[derive(Debug)]
pub struct Claimed<O> {
    pub(crate) open: O,
    /// Whether the key is ours until the transaction ends.
    pub(crate) locked: bool,
    pub(crate) found: Found,
    /// Whether an expired record stands in the way of ours.
    pub(crate) expired: bool,
}

impl<O> Claimed<O> {
    /// Reads the rows that the lookup brought.
    ///
    /// # Errors
    ///
    /// When one of them cannot be read.
    pub(crate) fn new<'a>(
        open: O,
        locked: bool,
        rows: impl IntoIterator<Item = Stored<'a>>,
    ) -> Result<Self, StoreError> {
        let mut expired = false;
        let live = rows.into_iter().filter(|row| {
            expired |= row.remaining.is_zero();
            !row.remaining.is_zero()
        });
        let found = found(live)?;
        Ok(Self {
            open,
            locked,
            found,
            expired,
        })
    }
}

/// Reads the live records of a key.
///
/// # Errors
///
/// When one of them cannot be read.
pub(crate) fn found<'a>(rows: impl IntoIterator<Item = Stored<'a>>) -> Result<Found, StoreError> {
    let mut found = Found::default();
    for row in rows {
        let record = Arc::new(row.record()?);
        match record.kind {
            Kind::Effect => found.effect = Some(record),
            Kind::Refusal => found.refusal = Some(record),
        }
    }
    Ok(found)
}

/// Holds what has become of a key.
#[derive(Debug)]
pub struct Seen {
    /// Whether a transaction of any process has hold of the key, as far as the database tells.
    pub(crate) held: bool,
    /// The key's effect or, if it has none, its latest refusal.
    pub(crate) record: Option<Dated>,
}

/// Holds a record with its times.
#[derive(Debug)]
pub(crate) struct Dated {
    pub(crate) record: Record,
    /// When it was made, in UTC and as RFC 3339 writes it.
    pub(crate) created: String,
    /// When it ends.
    pub(crate) expires: String,
}

/// Holds one row of the record table.
pub(crate) struct Stored<'a> {
    /// Empty for the effect.
    pub(crate) request: &'a [u8],
    pub(crate) fingerprint: &'a [u8],
    pub(crate) status: i16,
    pub(crate) headers: &'a [u8],
    pub(crate) body: &'a [u8],
    /// What is left of its lifetime.
    pub(crate) remaining: Duration,
}

impl Stored<'_> {
    /// Reads the row.
    ///
    /// # Errors
    ///
    /// When it is not what the framework writes.
    pub(crate) fn record(&self) -> Result<Record, StoreError> {
        let kind = match self.request {
            [] => Kind::Effect,
            _ => Kind::Refusal,
        };
        let body = Bytes::copy_from_slice(self.body);
        let snapshot = Snapshot::decode(self.status, self.headers, body)
            .map_err(|error| StoreError::Corrupt(error.to_string()))?;
        Ok(Record {
            kind,
            fingerprint: self.fingerprint.into(),
            snapshot,
            remaining: self.remaining,
        })
    }
}

/// Holds what flight 2 stores.
#[derive(Debug)]
pub struct Entry<'a> {
    pub(crate) kind: Kind,
    pub(crate) snapshot: &'a Snapshot,
    /// Whether flight 1 saw an expired record that has to go first.
    pub(crate) replaces_expired: bool,
}

/// Says why flight 2 did not end in a seen COMMIT.
#[derive(Debug)]
pub enum KeepError {
    /// Committed or rolled back: a new claim tells.
    InDoubt(StoreError),
    /// Rolled back, since another transaction came first, or the connection broke before COMMIT: a
    /// new claim tells what to do.
    Overtaken(StoreError),
    /// Rolled back: a statement of the handler had failed before, and it went on.
    Swallowed,
    /// Nothing recorded: the handler had ended the transaction by itself.
    Ended,
    /// Rolled back: the database refused the record or the commit.
    Refused(StoreError),
}

impl KeepError {
    /// Says why the key has to be claimed again.
    pub(crate) fn cause(&self) -> Cause {
        match self {
            Self::InDoubt(_) => Cause::LostCommit,
            Self::Overtaken(StoreError::Conflict(_)) => Cause::Serialization,
            Self::Overtaken(StoreError::Unreachable(_) | StoreError::TimedOut(_)) => {
                Cause::LostConnection
            }
            _ => Cause::Overtaken,
        }
    }

    /// Says it of a transaction of the framework's own, which no handler can have ended.
    pub(crate) fn into_store_error(self) -> StoreError {
        match self {
            Self::InDoubt(error) | Self::Overtaken(error) | Self::Refused(error) => error,
            Self::Swallowed | Self::Ended => {
                StoreError::Refused("the transaction had ended before its COMMIT".to_owned())
            }
        }
    }
}

/// Says that every connection that was tried was not at its beginning.
fn left_in_transaction() -> StoreError {
    StoreError::Refused(
        "the pool hands out connections inside a transaction that was begun elsewhere: some code \
         of this service sends BEGIN without ending it"
            .to_owned(),
    )
}

/// Lends a handler the open transaction, as the type of its reference parameter.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction that the runtime can supply",
    label = "no backend supplies this",
    note = "the handler's one reference parameter is its transaction, and its type chooses the backend:\n\
            `tx: &idem_runtime::postgres::Tx` with the feature `postgres` (PostgreSQL through deadpool-postgres)\n\
            `tx: &mut sqlx::PgConnection` or `tx: &mut sqlx::Transaction<'_, sqlx::Postgres>` with the feature `sqlx-postgres`\n\
            `tx: &mut sqlx::SqliteConnection` or `tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>` with the feature `sqlite`"
)]
pub trait Supply: 'static {
    /// The backend that the type belongs to.
    type Backend: Backend;
    /// The parameter, for one run of the handler.
    type Ref<'a>;

    /// Lends the open transaction.
    #[doc(hidden)]
    fn supply(open: &mut <Self::Backend as Backend>::Open) -> Self::Ref<'_>;
}
