//! The transaction that a handler is lent, from the claim to its end.

use std::{fmt, sync::Arc, time::Duration};

use sqlx::{Error, Executor, Row, SqliteConnection, Transaction, sqlite::SqliteRow};
use tokio::{sync::OwnedSemaphorePermit, time::timeout};

use super::{
    Shared, Sqlite,
    error::{before_commit, by_commit, store_error},
};
use crate::{
    backend::{Call, Claimed, Dated, Entry, KeepError, Open, Stored, Supply, held::Held},
    error::StoreError,
    model::{Identity, Kind},
};

/// Begins as the writer. The savepoint ends with the transaction, whoever ends it, so that it
/// tells at the end whether this is still the transaction that began.
pub(super) const WRITE: &str = "BEGIN IMMEDIATE; SAVEPOINT idem_claim";

/// Begins without a turn to write.
pub(super) const READ: &str = "BEGIN";

/// Ends the transaction and begins the next one.
const AGAIN: &str = "ROLLBACK; BEGIN IMMEDIATE; SAVEPOINT idem_claim";

/// Fails if the transaction is no longer the one that began.
const INTACT: &str = "RELEASE idem_claim";

/// Holds an open transaction; the handler is lent what is inside.
pub struct Tx {
    held: Held<sqlx::Sqlite>,
    /// The turn to write, until the transaction has ended.
    _turn: OwnedSemaphorePermit,
    shared: Arc<Shared>,
}

impl Tx {
    pub(super) fn new(
        held: Held<sqlx::Sqlite>,
        turn: OwnedSemaphorePermit,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            held,
            _turn: turn,
            shared,
        }
    }

    pub(super) fn connection(&mut self) -> &mut SqliteConnection {
        self.held.connection()
    }

    /// Lets nothing commit from here on, before a handler is lent the connection. SQLite may undo a
    /// whole transaction by itself (a full disk, `ON CONFLICT ROLLBACK`), and each statement behind
    /// that would commit alone, without a record.
    pub(super) async fn lendable(mut self) -> Result<Self, StoreError> {
        let handle = self.connection().lock_handle().await;
        let mut handle = handle.map_err(|error| store_error(&error))?;
        handle.set_commit_hook(|| false);
        drop(handle);
        Ok(self)
    }

    /// Takes the connection back from a handler.
    async fn taken_back(&mut self) -> Result<(), Error> {
        self.connection().lock_handle().await?.remove_commit_hook();
        Ok(())
    }

    /// Looks the key up, which is this transaction's until it ends.
    pub(super) async fn claimed(mut self, call: &Call) -> Result<Claimed<Self>, StoreError> {
        let rows = look_up(self.connection(), call).await?;
        Claimed::new(self, true, stored(&rows)?)
    }

    /// Checks that this is still the transaction that began, for the database that was there.
    async fn intact(&mut self) -> Result<(), KeepError> {
        // A stream of rows that the handler has leaked keeps SQLite's thread from ever answering.
        let limit = self.shared.patience;
        let intact = async {
            self.connection().execute(INTACT).await?;
            self.taken_back().await
        };
        match timeout(limit, intact).await {
            // Asked afterwards: a nested transaction that was dropped ends before the next statement.
            Ok(Ok(())) if self.held.is_outermost() => Ok(()),
            Ok(Ok(()) | Err(Error::Database(_))) => Err(KeepError::Ended),
            Ok(Err(error)) => Err(before_commit(&error)),
            Err(_) => Err(KeepError::Overtaken(StoreError::TimedOut(limit))),
        }
    }

    /// Commits, if the database's file is still there.
    pub(super) async fn end(self) -> Result<(), KeepError> {
        if let Some(file) = self.shared.file.get() {
            file.check().map_err(KeepError::Refused)?;
        }
        match timeout(self.shared.patience, self.held.commit()).await {
            Ok(ended) => ended.map_err(|error| by_commit(&error)),
            Err(_) => Err(KeepError::InDoubt(StoreError::TimedOut(
                self.shared.patience,
            ))),
        }
    }
}

impl Open for Tx {
    async fn keep(mut self, call: &Call, entry: Entry<'_>) -> Result<(), KeepError> {
        self.intact().await?;
        let Entry {
            kind,
            snapshot,
            replaces_expired,
        } = entry;
        let identity = &call.identity;
        let (scope, operation) = (identity.scope().as_str(), identity.operation());
        let (key, fingerprint) = (identity.key().as_str(), call.fingerprint.as_bytes());
        let request = match kind {
            Kind::Effect => &[],
            Kind::Refusal => fingerprint.as_slice(),
        };
        let store = async {
            if replaces_expired {
                sqlx::query(include_str!("sql/clear.sql"))
                    .bind(scope)
                    .bind(operation)
                    .bind(key)
                    .bind(fingerprint.as_slice())
                    .execute(self.connection())
                    .await?;
            }
            sqlx::query(include_str!("sql/keep.sql"))
                .bind(scope)
                .bind(operation)
                .bind(key)
                .bind(request)
                .bind(fingerprint.as_slice())
                .bind(snapshot.status)
                .bind(snapshot.headers.as_bytes())
                .bind(&*snapshot.body)
                .bind(i64::try_from(call.ttl.as_millis()).unwrap_or(i64::MAX / 2))
                .execute(self.connection())
                .await
        };
        store.await.map_err(|error| before_commit(&error))?;
        self.end().await
    }

    async fn again(mut self, call: &Call) -> Result<Claimed<Self>, KeepError> {
        self.intact().await?;
        let limit = self.shared.patience;
        let again = match timeout(limit, self.connection().execute(AGAIN)).await {
            Ok(again) => again.map_err(|error| store_error(&error)),
            Err(_) => Err(StoreError::TimedOut(limit)),
        };
        again.map_err(KeepError::Overtaken)?;
        self.claimed(call).await.map_err(KeepError::Overtaken)
    }

    async fn commit(mut self) -> Result<(), KeepError> {
        self.intact().await?;
        self.end().await
    }

    async fn give_up(mut self) {
        let limit = self.shared.patience;
        let ended = async {
            self.taken_back().await?;
            self.held.roll_back().await
        };
        // What cannot be taken back, or takes longer, is closed.
        let _ = timeout(limit, ended).await;
    }
}

/// Looks a key up.
pub(super) async fn look_up(
    connection: &mut SqliteConnection,
    call: &Call,
) -> Result<Vec<SqliteRow>, StoreError> {
    let identity = &call.identity;
    sqlx::query(include_str!("sql/lookup.sql"))
        .bind(identity.scope().as_str())
        .bind(identity.operation())
        .bind(identity.key().as_str())
        .bind(call.fingerprint.as_bytes().as_slice())
        .fetch_all(connection)
        .await
        .map_err(|error| store_error(&error))
}

/// Tells a key's effect or its latest refusal.
pub(super) async fn status(
    connection: &mut SqliteConnection,
    identity: &Identity,
) -> Result<Option<Dated>, StoreError> {
    let row = sqlx::query(include_str!("sql/status.sql"))
        .bind(identity.scope().as_str())
        .bind(identity.operation())
        .bind(identity.key().as_str())
        .fetch_optional(connection)
        .await;
    let row = row.map_err(|error| store_error(&error))?;
    row.as_ref().map(dated).transpose()
}

/// Reads what was looked up.
pub(super) fn stored(rows: &[SqliteRow]) -> Result<Vec<Stored<'_>>, StoreError> {
    let rows: Result<_, Error> = rows.iter().map(columns).collect();
    rows.map_err(|error| StoreError::Corrupt(error.to_string()))
}

fn columns(row: &SqliteRow) -> Result<Stored<'_>, Error> {
    Ok(Stored {
        request: row.try_get("request")?,
        fingerprint: row.try_get("fingerprint")?,
        status: row.try_get("status")?,
        headers: row.try_get("headers")?,
        body: row.try_get("body")?,
        remaining: Duration::from_millis(
            row.try_get::<i64, _>("remaining")?.max(0).cast_unsigned(),
        ),
    })
}

/// Reads a record with its times.
fn dated(row: &SqliteRow) -> Result<Dated, StoreError> {
    let read = || {
        Ok::<_, Error>((
            columns(row)?,
            row.try_get("created")?,
            row.try_get("expires")?,
        ))
    };
    let (record, created, expires) =
        read().map_err(|error| StoreError::Corrupt(error.to_string()))?;
    Ok(Dated {
        record: record.record()?,
        created,
        expires,
    })
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}

impl Supply for &'static mut SqliteConnection {
    type Backend = Sqlite;
    type Ref<'a> = &'a mut SqliteConnection;

    fn supply(open: &mut Tx) -> &mut SqliteConnection {
        open.connection()
    }
}

impl Supply for &'static mut Transaction<'static, sqlx::Sqlite> {
    type Backend = Sqlite;
    type Ref<'a> = &'a mut Transaction<'static, sqlx::Sqlite>;

    fn supply(open: &mut Tx) -> &mut Transaction<'static, sqlx::Sqlite> {
        open.held.transaction()
    }
}
