//! SQLite through sqlx: one writer at a time, which is all the locking that the protocol needs.

mod error;
mod file;
mod pool;
mod schema;
mod tx;

use std::{sync::Arc, time::Duration};

use sqlx::{SqlitePool, pool::PoolConnection};
use tokio::{
    sync::{OnceCell, Semaphore},
    time::timeout,
};

use self::{
    error::{is_stale, store_error},
    file::File,
    tx::{READ, Tx, WRITE, look_up, status, stored},
};
pub use self::{
    pool::{PoolBuilder, pool},
    schema::MIGRATIONS,
};
use super::{
    Backend, CONNECTIONS, Call, Claimed, KeepError, Open, Pool, Seen, Session, found, held,
    held::Held, left_in_transaction,
};
use crate::{
    error::{SettingsError, StoreError},
    model::{Found, Identity},
};

/// Keeps records in SQLite, beside the tables that the handlers write.
///
/// SQLite has one writer at a time: guarded handlers of one database run one after the other, and
/// each holds up the next for as long as it runs. They wait in memory, in the order in which they
/// came and without a connection, for as long as the pool lets a request wait for a connection
/// (its `acquire_timeout`). Another process that writes is waited for as long as the connections'
/// `busy_timeout` says. Repeats are answered without waiting for a writer.
///
/// A handler's statement that fails undoes itself alone, as a rule, and the transaction goes on: unlike
/// in PostgreSQL, a handler can pass over it and still answer success. Where SQLite undoes the whole
/// transaction (a full disk, `ON CONFLICT ROLLBACK`), nothing that follows can commit, nor can a
/// handler that sends `COMMIT` by itself: while it has the connection, a commit hook refuses both.
/// (A commit hook of the service's own is taken off.) One that is late is rolled back
/// once the statement that it has left running has come to its end.
/// A stream of rows that a handler leaks (`mem::forget`) holds the writer's turn until the process
/// ends.
///
/// A database in memory works with a pool of one connection, for tests.
#[derive(Clone, Debug)]
pub struct Sqlite {
    pool: SqlitePool,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Lets one writer of this process in after the other: SQLite itself would have each of them
    /// ask again and again, and get in by chance.
    writer: Arc<Semaphore>,
    /// How long a request waits for its turn, and then for each of its ends.
    patience: Duration,
    file: OnceCell<File>,
}

impl Pool for SqlitePool {
    type Backend = Sqlite;
    type Options = ();

    fn open(self, (): ()) -> Result<Sqlite, SettingsError> {
        held::prepare()?;
        let shared = Shared {
            writer: Arc::new(Semaphore::new(1)),
            patience: self.options().get_acquire_timeout(),
            file: OnceCell::new(),
        };
        Ok(Sqlite {
            pool: self,
            shared: Arc::new(shared),
        })
    }
}

impl Sqlite {
    /// Takes a connection to the database file that was there from the start.
    async fn connection(&self) -> Result<PoolConnection<sqlx::Sqlite>, StoreError> {
        let connection = self.pool.acquire().await;
        let mut connection = connection.map_err(|error| match error {
            // sqlx says the same when it could not open the file.
            sqlx::Error::PoolTimedOut if self.pool.size() < self.largest() => StoreError::Locked,
            error => store_error(&error),
        })?;
        let file = self
            .shared
            .file
            .get_or_try_init(|| File::of(&mut connection));
        file.await?.check()?;
        Ok(connection)
    }

    fn largest(&self) -> u32 {
        self.pool.options().get_max_connections()
    }

    /// Waits for the turn to write, and begins.
    async fn write(&self) -> Result<Tx, StoreError> {
        let turn = Arc::clone(&self.shared.writer).acquire_owned();
        let Ok(Ok(turn)) = timeout(self.shared.patience, turn).await else {
            return Err(StoreError::Locked);
        };
        let held = self.begin_with(WRITE).await?;
        Ok(Tx::new(held, turn, Arc::clone(&self.shared)))
    }

    /// Takes a connection and begins. Connections that turn out to be inside somebody's transaction
    /// are closed and others taken: nothing of the request has run yet.
    async fn begin_with(&self, statement: &'static str) -> Result<Held<sqlx::Sqlite>, StoreError> {
        for _ in 0..CONNECTIONS {
            match Held::begin(self.connection().await?, statement).await {
                Ok(held) => return Ok(held),
                Err(error) if is_stale(&error) => {}
                Err(error) => return Err(store_error(&error)),
            }
        }
        Err(left_in_transaction())
    }
}

impl Backend for Sqlite {
    type Open = Tx;

    /// What is there for good needs no turn to write.
    const LOOKS_FIRST: bool = true;

    async fn look(&self, call: &Call) -> Result<Found, StoreError> {
        let mut connection = self.connection().await?;
        let rows = look_up(&mut connection, call).await?;
        let rows = stored(&rows)?;
        found(rows.into_iter().filter(|row| !row.remaining.is_zero()))
    }

    async fn claim(&self, call: &Call) -> Result<Claimed<Tx>, StoreError> {
        self.write().await?.lendable().await?.claimed(call).await
    }

    /// Another process that works on the key is not seen: SQLite does not tell.
    async fn status(&self, identity: &Identity) -> Result<Seen, StoreError> {
        let mut held = self.begin_with(READ).await?;
        let record = status(held.connection(), identity).await?;
        // A read has nothing to lose; where its end fails, the connection is closed.
        let _ = held.roll_back().await;
        Ok(Seen {
            held: false,
            record,
        })
    }

    async fn begin(&self, _: &Session) -> Result<Tx, StoreError> {
        self.write().await?.lendable().await
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        let mut tx = self.write().await?;
        schema::migrate(tx.connection()).await?;
        tx.end().await.map_err(KeepError::into_store_error)
    }

    async fn verify_schema(&self) -> Result<(), StoreError> {
        let mut tx = self.write().await?;
        let verified = schema::verify(tx.connection()).await;
        tx.give_up().await;
        verified
    }

    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        let mut tx = self.write().await?;
        let sweep = sqlx::query(include_str!("sql/sweep.sql")).bind(limit);
        let swept = sweep.execute(tx.connection()).await;
        let swept = swept.map_err(|error| store_error(&error))?;
        tx.end().await.map_err(KeepError::into_store_error)?;
        Ok(swept.rows_affected())
    }
}
