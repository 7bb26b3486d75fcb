//! A pool as the protocol wants it: in WAL mode, with bounded waits.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use sqlx::{
    SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use tokio::time::{Instant, sleep};

use super::error::store_error;
use crate::error::{SettingsError, StoreError};

/// How long opening a file that is locked pauses before it tries again.
const PAUSE: Duration = Duration::from_millis(20);

/// Begins to open a pool for a database file, which is made if it is not there.
///
/// It is in WAL mode, where readers and the writer do not wait for each other, and each commit is
/// on the disk when it is acknowledged. A pool of your own needs both, and `foreign_keys` if you
/// rely on them:
///
/// ```no_run
/// # async fn open() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = idem_runtime::sqlite::pool("shop.db").open().await?;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn pool(path: impl AsRef<Path>) -> PoolBuilder {
    PoolBuilder {
        path: path.as_ref().to_owned(),
        max_size: 8,
        wait: Duration::from_secs(5),
    }
}

/// Opens a pool; see [`pool`].
#[derive(Clone, Debug)]
pub struct PoolBuilder {
    path: PathBuf,
    max_size: u32,
    wait: Duration,
}

impl PoolBuilder {
    /// Sets the largest number of connections (default 8). One of them writes, the others read.
    #[must_use]
    pub fn max_size(mut self, connections: u32) -> Self {
        self.max_size = connections;
        self
    }

    /// Sets how long a request waits for a connection, for its turn to write, and for a writer in
    /// another process, before it is answered 503 (default 5 s).
    #[must_use]
    pub fn wait_timeout(mut self, limit: Duration) -> Self {
        self.wait = limit;
        self
    }

    /// Opens the pool, and the file.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened or made, or a limit is zero.
    pub async fn open(self) -> Result<SqlitePool, SettingsError> {
        let Self {
            path,
            max_size,
            wait,
        } = self;
        if max_size == 0 {
            return Err(SettingsError::Zero("the pool's `max_size`"));
        }
        if wait.is_zero() {
            return Err(SettingsError::Zero("the pool's `wait_timeout`"));
        }
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(wait);
        let pool = SqlitePoolOptions::new()
            .max_connections(max_size)
            .acquire_timeout(wait);
        let begun = Instant::now();
        loop {
            let error = match pool.clone().connect_with(options.clone()).await {
                Ok(pool) => return Ok(pool),
                // Nobody has taken a connection yet: none could be made.
                Err(sqlx::Error::PoolTimedOut) => StoreError::Locked,
                Err(error) => store_error(&error),
            };
            // Of several processes that open a new file at once, one puts it into WAL mode, for
            // which SQLite does not let the others wait.
            if !matches!(error, StoreError::Locked) || begun.elapsed() >= wait {
                return Err(SettingsError::Pool(format!("{}: {error}", path.display())));
            }
            sleep(PAUSE).await;
        }
    }
}
