//! The transaction that a handler is lent, and its two flights.

use std::{
    fmt,
    future::Future,
    ops::Deref,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime},
};

use deadpool_postgres::Client;
use futures_util::{
    FutureExt,
    future::{OptionFuture, join, join3, join4},
};
use scopeguard::ScopeGuard;
use tokio::time::timeout;
use tokio_postgres::{Error, Row, types::ToSql};

use super::{
    super::{begin, remaining},
    Postgres, Shared,
    error::{judge, store_error},
    statement::Statements,
};
use crate::{
    backend::{self, Call, Claimed, Dated, Entry, KeepError, Open, Seen, Session, Stored, Supply},
    error::StoreError,
    model::{Identity, Isolation, Kind},
};

/// The transaction that a guarded handler runs in.
///
/// It derefs to [`deadpool_postgres::Client`], so `query_one`, `execute`, `prepare_cached` and the
/// rest are called on it directly; a function that takes `&impl GenericClient` takes `&**tx`:
///
/// ```
/// use deadpool_postgres::GenericClient;
/// use idem_runtime::postgres::Tx;
///
/// async fn balance(
///     db: &impl GenericClient,
///     account: &str,
/// ) -> Result<i64, deadpool_postgres::tokio_postgres::Error> {
///     let row = db.query_one("SELECT balance FROM accounts WHERE id = $1", &[&account]).await?;
///     row.try_get(0)
/// }
///
/// async fn in_a_handler(tx: &Tx) -> Result<i64, deadpool_postgres::tokio_postgres::Error> {
///     balance(&**tx, "acct_1").await
/// }
/// ```
///
/// The runtime begins, commits and rolls back. A handler that sends `COMMIT` or `ROLLBACK` by
/// itself and then answers success is answered 500, and nothing is recorded; what it has committed
/// stays. To undo a part, use [`Tx::savepoint`].
pub struct Tx {
    connection: Connection,
    statements: Arc<Statements>,
    shared: Arc<Shared>,
    /// `now()` of the claim: the same as long as it is the same transaction.
    began: SystemTime,
    /// How long a COMMIT that is not answered keeps the connection.
    fence: Duration,
    savepoints: AtomicU32,
}

/// A pooled connection that is closed, not returned, unless its transaction was seen to end: no
/// recycling method of deadpool ends a transaction that was left open.
pub(super) type Connection = ScopeGuard<Client, fn(Client)>;

pub(super) fn guarded(client: Client) -> Connection {
    #[cfg(feature = "__seeded")]
    if crate::seeded::is("no-rollback-on-drop") {
        return scopeguard::guard(client, drop);
    }
    scopeguard::guard(client, |client| drop(Client::take(client)))
}

impl Tx {
    pub(super) fn new(
        connection: Connection,
        statements: Arc<Statements>,
        shared: Arc<Shared>,
        fence: Duration,
    ) -> Self {
        Self {
            connection,
            statements,
            shared,
            began: SystemTime::UNIX_EPOCH,
            fence,
            savepoints: AtomicU32::new(0),
        }
    }

    /// Sets a savepoint: what the handler does from here on can be undone alone.
    ///
    /// ```
    /// # async fn example(tx: &idem_runtime::postgres::Tx) -> Result<(), deadpool_postgres::tokio_postgres::Error> {
    /// let savepoint = tx.savepoint().await?;
    /// match savepoint.execute("INSERT INTO usernames VALUES ('ada')", &[]).await {
    ///     Ok(_) => savepoint.release().await?,
    ///     Err(_) => savepoint.rollback().await?, // the transaction goes on
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// What the database says, for example when a statement has already failed.
    pub async fn savepoint(&self) -> Result<Savepoint<'_>, Error> {
        let number = self.savepoints.fetch_add(1, Ordering::Relaxed);
        let savepoint = Savepoint {
            tx: self,
            name: format!("idem_{number}"),
            ended: false,
        };
        self.batch_execute(&format!("SAVEPOINT {}", savepoint.name))
            .await?;
        Ok(savepoint)
    }

    /// Flight 1: BEGIN, the claim with its lookup, the service's own settings.
    pub(super) async fn claim(&self, begin: &str, call: &Call) -> Result<Vec<Row>, Error> {
        let (client, statements) = (&*self.connection, &self.statements);
        let settings = &self.shared.settings;
        let fingerprint = call.fingerprint.as_bytes().as_slice();
        let identity = &call.identity;
        let (scope, operation) = (identity.scope().as_str(), identity.operation());
        let parameters: [&(dyn ToSql + Sync); 7] = [
            &settings.lock(&call.identity),
            &settings.idle_timeout(&call.session),
            &settings.check_interval,
            &scope,
            &operation,
            &identity.key().as_str(),
            &fingerprint,
        ];
        // Boxed, as the other statements of every request: what holds one on its way is large, and
        // each future around it would be larger.
        let claim = Box::pin(statements.claim.query(client, &parameters));
        self.flight(begin, claim, &call.session).await
    }

    /// Tells what has become of a key. Who holds it is asked first: a COMMIT shows its record before it lets go.
    pub(super) async fn status(&self, identity: &Identity) -> Result<Seen, StoreError> {
        let (client, shared) = (&*self.connection, &self.shared);
        let lock = shared.settings.lock(identity);
        let (scope, operation) = (identity.scope().as_str(), identity.operation());
        let parameters: [&(dyn ToSql + Sync); 3] = [&scope, &operation, &identity.key().as_str()];
        let held = [&lock as &(dyn ToSql + Sync)];
        let held = shared.held.query(client, &held);
        let record = shared.status.query(client, &parameters);
        let (held, record) = join(held, record).await;
        let held = held.map_err(|error| store_error(&error))?;
        let record = record.map_err(|error| store_error(&error))?;
        Ok(Seen {
            held: held.first().is_some_and(|row| row.get("held")),
            record: record.first().map(dated).transpose()?,
        })
    }

    /// Flight 1 of a request without a key: BEGIN, the fences, the service's own settings.
    pub(super) async fn open(&self, begin: &str, session: &Session) -> Result<Vec<Row>, Error> {
        let settings = &self.shared.settings;
        let parameters: [&(dyn ToSql + Sync); 2] =
            [&settings.idle_timeout(session), &settings.check_interval];
        let open = Box::pin(self.statements.open.query(&self.connection, &parameters));
        self.flight(begin, open, session).await
    }

    async fn flight(
        &self,
        begin: &str,
        first: impl Future<Output = Result<Vec<Row>, Error>>,
        session: &Session,
    ) -> Result<Vec<Row>, Error> {
        let begin = self.connection.batch_execute(begin);
        if session.settings.is_empty() {
            let (begun, rows) = join(begin, first).await;
            return begun.and(rows);
        }
        let (names, values): (Vec<_>, Vec<_>) = session.settings.iter().cloned().unzip();
        let settings: [&(dyn ToSql + Sync); 2] = [&names, &values];
        let set = self.statements.set.execute(&self.connection, &settings);
        let (begun, rows, set) = Box::pin(join3(begin, first, set)).await;
        // In the order in which they were sent: what follows a failure only says that one came before.
        begun?;
        let rows = rows?;
        set?;
        Ok(rows)
    }

    /// Rolls back and begins anew, some time later and without looking.
    #[cfg(feature = "__seeded")]
    async fn unclaimed(mut self) -> Result<Claimed<Self>, StoreError> {
        let begun = async {
            self.connection.batch_execute("ROLLBACK").await?;
            tokio::time::sleep(crate::seeded::GAP).await;
            self.connection.batch_execute("BEGIN").await?;
            self.connection
                .query("SELECT pg_catalog.now() AS began", &[])
                .await
        };
        let rows = begun.await.map_err(|error| store_error(&error))?;
        self.began(&rows);
        Claimed::new(self, true, None)
    }

    /// Remembers when the transaction began.
    pub(super) fn began(&mut self, rows: &[Row]) {
        if let Some(row) = rows.first() {
            self.began = row.get("began");
        }
    }

    /// Reads what the claim brought.
    pub(super) fn claimed(self, rows: &[Row]) -> Result<Claimed<Self>, StoreError> {
        let locked = rows.first().is_some_and(|row| row.get("locked"));
        Claimed::new(self, locked, rows.iter().filter_map(stored))
    }

    /// Sends `last` and COMMIT in one flight. `last` must not wait for anything before it sends:
    /// what it sends late would come behind the COMMIT.
    async fn end(
        self,
        last: impl AsyncFnOnce(&Client) -> Result<(), Error>,
    ) -> Result<(), KeepError> {
        let Self {
            connection,
            shared,
            fence,
            ..
        } = self;
        #[cfg(feature = "__seeded")]
        if crate::seeded::is("record-after-commit") {
            let commit = connection.batch_execute("COMMIT").await;
            return judge(last(&connection).await, commit);
        }
        let mut committing = false;
        let flight = async {
            let commit = connection.batch_execute("COMMIT");
            let mut last = pin!(last(&connection));
            // The first poll sends it. What cannot even be sent must not be followed by a COMMIT:
            // then closing the connection rolls back.
            match last.as_mut().now_or_never() {
                None => {
                    let last = async {
                        let answer = last.await;
                        committing = true;
                        answer
                    };
                    Ok(join(last, commit).await)
                }
                Some(Ok(())) => {
                    committing = true;
                    Ok((Ok(()), commit.await))
                }
                Some(Err(error)) => Err(error),
            }
        };
        let Ok(sent) = timeout(shared.settings.timeout, flight).await else {
            // COMMIT may wait for a standby. It is never cancelled: that would commit it here and
            // not there. Until the server answers, it is at work for this connection, which keeps
            // its place in the pool: otherwise each request would leave one more behind. If it has
            // not come to COMMIT, closing the connection ends the transaction sooner.
            if committing {
                tokio::spawn(roll_back(connection, fence));
            }
            return Err(KeepError::InDoubt(StoreError::TimedOut(
                shared.settings.timeout,
            )));
        };
        let (last, commit) = match sent {
            Ok(answers) => answers,
            // The server was quick to refuse it.
            Err(error) if error.as_db_error().is_some() => return judge(Err(error), Ok(())),
            // The connection had died, and the transaction with it.
            Err(error) if error.is_closed() => {
                return Err(KeepError::Overtaken(store_error(&error)));
            }
            Err(error) => return Err(KeepError::Refused(store_error(&error))),
        };
        match &commit {
            // Committed or rolled back, the transaction has ended.
            Ok(()) => drop(ScopeGuard::into_inner(connection)),
            // The server says so before it lets go of the key, and answers the next statement
            // after that.
            Err(error) if error.as_db_error().is_some() => {
                let rollback = connection.batch_execute("ROLLBACK");
                let _ = timeout(shared.settings.timeout, rollback).await;
            }
            Err(_) => {}
        }
        judge(last, commit)
    }
}

impl Open for Tx {
    async fn keep(self, call: &Call, entry: Entry<'_>) -> Result<(), KeepError> {
        let Entry {
            kind,
            snapshot,
            replaces_expired,
        } = entry;
        let Call {
            identity,
            fingerprint,
            ttl,
            ..
        } = call;
        let statements = Arc::clone(&self.statements);
        let Statements {
            clear,
            mark,
            unmark,
            keep,
            ..
        } = &*statements;
        let (scope, operation) = (identity.scope().as_str(), identity.operation());
        let (key, fingerprint) = (identity.key().as_str(), fingerprint.as_bytes().as_slice());
        let request = match kind {
            Kind::Effect => &[],
            Kind::Refusal => fingerprint,
        };
        let status = i16::try_from(snapshot.status).unwrap_or(i16::MAX);
        let headers = snapshot.headers.as_bytes();
        let (body, began, ttl) = (&*snapshot.body, self.began, ttl.as_secs_f64());
        // A snapshot from before the lock hides a refusal of this request that was committed in
        // between: its row is claimed and let go again, which fails if it is there.
        let stricter = call.session.isolation != Isolation::ReadCommitted && kind == Kind::Effect;
        let place: [&(dyn ToSql + Sync); 4] = [&scope, &operation, &key, &fingerprint];
        let row: [&(dyn ToSql + Sync); 10] = [
            &scope,
            &operation,
            &key,
            &request,
            &fingerprint,
            &status,
            &headers,
            &body,
            &began,
            &ttl,
        ];
        self.end(async |client| {
            // Boxed, the rare ones too, so that no request carries the room for them.
            let clear = replaces_expired.then(|| Box::pin(clear.execute(client, &place)));
            let mark = stricter.then(|| Box::pin(mark.execute(client, &place)));
            let unmark = stricter.then(|| Box::pin(unmark.execute(client, &place)));
            let (cleared, marked, unmarked, kept) = join4(
                OptionFuture::from(clear),
                OptionFuture::from(mark),
                OptionFuture::from(unmark),
                Box::pin(keep.execute(client, &row)),
            )
            .await;
            cleared.transpose()?;
            marked.transpose()?;
            unmarked.transpose()?;
            kept.map(drop)
        })
        .await
    }

    async fn again(mut self, call: &Call) -> Result<Claimed<Self>, KeepError> {
        #[cfg(feature = "__seeded")]
        if crate::seeded::is("refusal-without-claim") {
            return self.unclaimed().await.map_err(KeepError::Overtaken);
        }
        let (statements, began) = (Arc::clone(&self.statements), self.began);
        let began: [&(dyn ToSql + Sync); 1] = [&began];
        let flight = join3(
            statements.intact.execute(&self.connection, &began),
            self.connection.batch_execute("ROLLBACK"),
            self.claim(begin(Isolation::ReadCommitted), call),
        );
        let limit = self.shared.settings.timeout;
        let Ok((intact, rolled_back, claimed)) = timeout(limit, flight).await else {
            return Err(KeepError::Overtaken(StoreError::TimedOut(limit)));
        };
        // That a statement of the handler had failed makes no difference to a refusal.
        if let Err(KeepError::Ended) = judge(intact.map(drop), Ok(())) {
            return Err(KeepError::Ended);
        }
        let rows = rolled_back
            .and(claimed)
            .map_err(|error| KeepError::Overtaken(store_error(&error)))?;
        self.began(&rows);
        self.claimed(&rows).map_err(KeepError::Overtaken)
    }

    async fn commit(self) -> Result<(), KeepError> {
        let statements = Arc::clone(&self.statements);
        let (intact, began) = (&statements.intact, self.began);
        self.end(async |client| intact.execute(client, &[&began]).await.map(drop))
            .await
    }

    async fn give_up(self) {
        roll_back(self.connection, self.shared.settings.timeout).await;
    }

    async fn let_go(self) {
        // The first poll queues it, ahead of whatever the connection's next user sends. Only the
        // connection's end can make it fail.
        let rollback = self.connection.batch_execute("ROLLBACK").now_or_never();
        if !matches!(rollback, Some(Err(_))) {
            drop(ScopeGuard::into_inner(self.connection));
        }
    }
}

/// Ends whatever transaction is open, behind what is still to be answered, and returns the
/// connection to its pool; one that does not answer in time is closed.
async fn roll_back(connection: Connection, limit: Duration) {
    let rolled_back = timeout(limit, connection.batch_execute("ROLLBACK")).await;
    if matches!(rolled_back, Ok(Ok(()))) {
        drop(ScopeGuard::into_inner(connection));
    } else {
        backend::lost();
    }
}

/// Reads the record of a row, if it holds one.
pub(super) fn stored(row: &Row) -> Option<Stored<'_>> {
    let request = row.get::<_, Option<_>>("request")?;
    Some(Stored {
        request,
        fingerprint: row.get("fingerprint"),
        status: row.get("status"),
        headers: row.get("headers"),
        body: row.get("body"),
        remaining: remaining(row.get("remaining")),
    })
}

/// Reads a record with its times.
fn dated(row: &Row) -> Result<Dated, StoreError> {
    let stored =
        stored(row).ok_or_else(|| StoreError::Corrupt("a record without a request".to_owned()))?;
    Ok(Dated {
        record: stored.record()?,
        created: row.get("created"),
        expires: row.get("expires"),
    })
}

impl Deref for Tx {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.connection
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}

impl Supply for &'static Tx {
    type Backend = Postgres;
    type Ref<'a> = &'a Tx;

    fn supply(open: &mut Tx) -> &Tx {
        open
    }
}

/// A part of a [`Tx`] that can be undone alone. Dropping it undoes it.
#[derive(Debug)]
#[must_use = "a savepoint that is dropped at once undoes nothing"]
pub struct Savepoint<'a> {
    tx: &'a Tx,
    name: String,
    ended: bool,
}

impl Savepoint<'_> {
    /// Keeps what was done since the savepoint.
    ///
    /// # Errors
    ///
    /// What the database says, for example when a statement has failed since.
    pub async fn release(mut self) -> Result<(), Error> {
        self.ended = true;
        self.tx
            .batch_execute(&format!("RELEASE SAVEPOINT {}", self.name))
            .await
    }

    /// Undoes what was done since the savepoint; the transaction can go on.
    ///
    /// # Errors
    ///
    /// What the database says.
    pub async fn rollback(mut self) -> Result<(), Error> {
        self.ended = true;
        self.tx.batch_execute(&self.undo()).await
    }

    fn undo(&self) -> String {
        format!(
            "ROLLBACK TO SAVEPOINT {0}; RELEASE SAVEPOINT {0}",
            self.name
        )
    }
}

impl Deref for Savepoint<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.tx
    }
}

impl Drop for Savepoint<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // The first poll queues it, ahead of whatever the handler sends next.
            let _ = self.tx.batch_execute(&self.undo()).now_or_never();
        }
    }
}
