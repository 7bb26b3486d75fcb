//! SQLite through sqlx: one writer at a time, which is all the locking that the protocol needs.

mod error;
mod file;
mod pool;
mod schema;
mod tx;

use std::{sync::Arc, time::Duration};

use sqlx::SqlitePool;
use tokio::{
    sync::{OnceCell, OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use self::{
    error::store_error,
    file::File,
    tx::{BEGIN, Tx},
};
pub use self::{
    pool::{PoolBuilder, pool},
    schema::MIGRATIONS,
};
use super::{Backend, Call, Claimed, KeepError, Pool, Session, held, held::Held};
use crate::error::{SettingsError, StoreError};

/// Keeps records in SQLite, beside the tables that the handlers write.
///
/// SQLite has one writer at a time: guarded handlers of one database run one after the other, and
/// each holds up the next for as long as it runs. They wait in memory, in the order in which they
/// came and without a connection, for as long as the pool lets a request wait for a connection
/// (its `acquire_timeout`). Another process that writes is waited for as long as the connections'
/// `busy_timeout` says. Repeats are answered without waiting for a writer.
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
    /// How long a request waits for its turn.
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
    /// Waits for the turn to write, and begins.
    async fn write(&self) -> Result<Tx, StoreError> {
        let turn = Arc::clone(&self.shared.writer).acquire_owned();
        let turn = match timeout(self.shared.patience, turn).await {
            Ok(Ok(turn)) => turn,
            _ => return Err(StoreError::Locked),
        };
        self.begin_with(BEGIN, Some(turn)).await
    }

    /// Begins, on the database file that was there from the start.
    async fn begin_with(
        &self,
        statement: &'static str,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Result<Tx, StoreError> {
        let begun = async { Held::begin(self.pool.acquire().await?, statement).await };
        let mut held = begun.await.map_err(|error| store_error(&error))?;
        let file = self
            .shared
            .file
            .get_or_try_init(|| File::of(held.connection()));
        file.await?.check()?;
        Ok(Tx::new(held, turn, Arc::clone(&self.shared)))
    }
}

impl Backend for Sqlite {
    type Open = Tx;

    async fn claim(&self, call: &Call) -> Result<Claimed<Tx>, StoreError> {
        self.write().await?.look_up(call).await
    }

    async fn begin(&self, _: &Session) -> Result<Tx, StoreError> {
        self.write().await
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        let mut tx = self.write().await?;
        schema::migrate(tx.connection()).await?;
        tx.end().await.map_err(KeepError::into_store_error)
    }

    async fn verify_schema(&self) -> Result<(), StoreError> {
        let mut tx = self.write().await?;
        let verified = schema::verify(tx.connection()).await;
        super::Open::give_up(tx).await;
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
