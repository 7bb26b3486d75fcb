//! The transaction that a handler is lent, from the claim to its end.

use std::{fmt, sync::Arc, time::Duration};

use sqlx::{Error, Executor, PgConnection, Postgres, Row, Transaction, postgres::PgRow};
use tokio::time::timeout;

use super::{
    Shared, SqlxPostgres,
    statement::{Moment, Sql},
};
use crate::{
    backend::{
        self, Call, Claimed, Dated, Entry, KeepError, Open, Seen, Session, Stored, Supply,
        held::Held,
        postgres::{
            error::{Failure, Refusal, judge, store_error},
            remaining,
        },
    },
    error::StoreError,
    model::{Identity, Isolation, Kind},
};

/// Ends the transaction and begins the next one, whatever the endpoint's level, in one round trip.
const AGAIN: &str = "ROLLBACK; BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// Holds an open transaction; the handler is lent what is inside.
pub struct Tx {
    held: Held<Postgres>,
    shared: Arc<Shared>,
    /// `now()` of the claim: the same as long as it is the same transaction.
    began: Moment,
    /// How long a COMMIT that is not answered keeps the connection.
    fence: Duration,
}

impl Tx {
    pub(super) fn new(held: Held<Postgres>, shared: Arc<Shared>, fence: Duration) -> Self {
        Self {
            held,
            shared,
            began: Moment::default(),
            fence,
        }
    }

    pub(super) fn connection(&mut self) -> &mut PgConnection {
        self.held.connection()
    }

    /// Sends the claim, and the service's own settings if there are any.
    pub(super) async fn claim(&mut self, call: &Call) -> Result<Vec<PgRow>, Error> {
        let shared = Arc::clone(&self.shared);
        let settings = &shared.settings;
        let identity = &call.identity;
        let rows = shared
            .statements
            .claim
            .query()
            .bind(settings.lock(identity))
            .bind(settings.idle_timeout(&call.session))
            .bind(&settings.check_interval)
            .bind(identity.scope().as_str())
            .bind(identity.operation())
            .bind(identity.key().as_str())
            .bind(call.fingerprint.as_bytes().as_slice())
            .fetch_all(self.connection())
            .await?;
        self.set(&shared.statements.set, &call.session).await?;
        Ok(rows)
    }

    /// Tells what has become of a key. Who holds it is asked first: a COMMIT shows its record before it lets go.
    pub(super) async fn status(&mut self, identity: &Identity) -> Result<Seen, StoreError> {
        let shared = Arc::clone(&self.shared);
        let statements = &shared.statements;
        let rows = async {
            let held = statements.held.query().bind(shared.settings.lock(identity));
            let held = held.fetch_one(self.connection()).await?.try_get("held")?;
            let record = statements
                .status
                .query()
                .bind(identity.scope().as_str())
                .bind(identity.operation())
                .bind(identity.key().as_str())
                .fetch_optional(self.connection())
                .await?;
            Ok::<_, Error>((held, record))
        };
        let rows = rows.await;
        let (held, record) = rows.map_err(|error| store_error(&Failure::from(&error)))?;
        let record = record.as_ref().map(dated).transpose()?;
        Ok(Seen { held, record })
    }

    /// Sends what stands for the claim of a request without a key.
    pub(super) async fn open(&mut self, session: &Session) -> Result<Vec<PgRow>, Error> {
        let shared = Arc::clone(&self.shared);
        let settings = &shared.settings;
        let rows = shared
            .statements
            .open
            .query()
            .bind(settings.idle_timeout(session))
            .bind(&settings.check_interval)
            .fetch_all(self.connection())
            .await?;
        self.set(&shared.statements.set, session).await?;
        Ok(rows)
    }

    async fn set(&mut self, set: &Sql, session: &Session) -> Result<(), Error> {
        if session.settings.is_empty() {
            return Ok(());
        }
        let (names, values): (Vec<_>, Vec<_>) = session.settings.iter().cloned().unzip();
        let set = set.query().bind(names).bind(values);
        set.execute(self.connection()).await.map(drop)
    }

    /// Reads when the transaction has begun, and whether it has written nothing so far.
    pub(super) fn has_begun(&mut self, rows: &[PgRow]) -> Result<bool, Error> {
        let row = rows.first().ok_or(Error::RowNotFound)?;
        self.began = row.try_get("began")?;
        row.try_get("fresh")
    }

    /// Reads what the claim brought.
    pub(super) fn claimed(self, rows: &[PgRow]) -> Result<Claimed<Self>, StoreError> {
        let locked = rows.first().ok_or(Error::RowNotFound);
        let locked = locked.and_then(|row| row.try_get("locked"));
        let locked = locked.map_err(|error| StoreError::Corrupt(error.to_string()))?;
        Claimed::new(self, locked, stored(rows)?)
    }

    /// Sends `last`, and then COMMIT.
    async fn end_with(
        mut self,
        last: impl AsyncFnOnce(&mut PgConnection) -> Result<(), Error>,
    ) -> Result<(), KeepError> {
        if !self.held.is_outermost() {
            return Err(KeepError::Ended);
        }
        let limit = self.shared.settings.timeout;
        match timeout(limit, last(self.held.connection())).await {
            Ok(Ok(())) => self.end().await,
            Ok(Err(error)) => Err(match Failure::from(&error) {
                refused @ Failure::Server(Refusal { is_error: true, .. }) => judge(&refused, false),
                // COMMIT has not left, so the end of the connection rolls back.
                lost => KeepError::Overtaken(store_error(&lost)),
            }),
            Err(_) => Err(KeepError::Overtaken(StoreError::TimedOut(limit))),
        }
    }

    /// Commits.
    pub(super) async fn end(self) -> Result<(), KeepError> {
        let (limit, fence) = (self.shared.settings.timeout, self.fence);
        let mut commit = Box::pin(self.held.commit());
        match timeout(limit, &mut commit).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(judge(&Failure::from(&error), true)),
            // COMMIT may wait for a standby. It is never cancelled: that would commit it here and
            // not there. Until the server answers, it is at work for this connection, which keeps
            // its place in the pool: otherwise each request would leave one more behind.
            Err(_) => {
                tokio::spawn(timeout(fence, commit));
                Err(KeepError::InDoubt(StoreError::TimedOut(limit)))
            }
        }
    }
}

impl Open for Tx {
    async fn keep(self, call: &Call, entry: Entry<'_>) -> Result<(), KeepError> {
        let Entry {
            kind,
            snapshot,
            replaces_expired,
        } = entry;
        let (shared, began) = (Arc::clone(&self.shared), self.began);
        let statements = &shared.statements;
        let identity = &call.identity;
        let (scope, operation) = (identity.scope().as_str(), identity.operation());
        let (key, fingerprint) = (
            identity.key().as_str(),
            call.fingerprint.as_bytes().as_slice(),
        );
        let request = match kind {
            Kind::Effect => &[],
            Kind::Refusal => fingerprint,
        };
        // A snapshot from before the lock hides a refusal of this request that was committed in
        // between: its row is claimed and let go again, which fails if it is there.
        let stricter = call.session.isolation != Isolation::ReadCommitted && kind == Kind::Effect;
        let before = [
            (replaces_expired, &statements.clear),
            (stricter, &statements.mark),
            (stricter, &statements.unmark),
        ];
        self.end_with(async |connection| {
            for (needed, sql) in before {
                if needed {
                    let place = sql.query().bind(scope).bind(operation).bind(key);
                    place.bind(fingerprint).execute(&mut *connection).await?;
                }
            }
            statements
                .keep
                .query()
                .bind(scope)
                .bind(operation)
                .bind(key)
                .bind(request)
                .bind(fingerprint)
                .bind(i16::try_from(snapshot.status).unwrap_or(i16::MAX))
                .bind(snapshot.headers.as_bytes())
                .bind(&*snapshot.body)
                .bind(began)
                .bind(call.ttl.as_secs_f64())
                .execute(connection)
                .await
                .map(drop)
        })
        .await
    }

    async fn again(mut self, call: &Call) -> Result<Claimed<Self>, KeepError> {
        if !self.held.is_outermost() {
            return Err(KeepError::Ended);
        }
        let (shared, began) = (Arc::clone(&self.shared), self.began);
        let limit = shared.settings.timeout;
        let intact = shared.statements.intact.query().bind(began);
        let Ok(intact) = timeout(limit, intact.execute(self.connection())).await else {
            return Err(KeepError::Overtaken(StoreError::TimedOut(limit)));
        };
        // That a statement of the handler had failed makes no difference to a refusal.
        if let Err(error) = intact
            && let KeepError::Ended = judge(&Failure::from(&error), false)
        {
            return Err(KeepError::Ended);
        }
        let flight = async {
            self.connection().execute(AGAIN).await?;
            let rows = self.claim(call).await?;
            self.has_begun(&rows)?;
            Ok::<_, Error>(rows)
        };
        let again = match timeout(limit, flight).await {
            Ok(Ok(rows)) => self.claimed(&rows),
            Ok(Err(error)) => Err(store_error(&Failure::from(&error))),
            Err(_) => Err(StoreError::TimedOut(limit)),
        };
        again.map_err(KeepError::Overtaken)
    }

    async fn commit(self) -> Result<(), KeepError> {
        let (shared, began) = (Arc::clone(&self.shared), self.began);
        self.end_with(async |connection| {
            let intact = shared.statements.intact.query().bind(began);
            intact.execute(connection).await.map(drop)
        })
        .await
    }

    async fn give_up(self) {
        let limit = self.shared.settings.timeout;
        // What takes longer is closed.
        let rolled_back = timeout(limit, self.held.roll_back()).await;
        if !matches!(rolled_back, Ok(Ok(()))) {
            backend::lost();
        }
    }
}

/// Reads the records of the rows that hold one.
pub(super) fn stored(rows: &[PgRow]) -> Result<Vec<Stored<'_>>, StoreError> {
    let rows: Result<_, Error> = rows
        .iter()
        .filter_map(|row| columns(row).transpose())
        .collect();
    rows.map_err(|error| StoreError::Corrupt(error.to_string()))
}

fn columns(row: &PgRow) -> Result<Option<Stored<'_>>, Error> {
    let Some(request) = row.try_get("request")? else {
        return Ok(None);
    };
    Ok(Some(Stored {
        request,
        fingerprint: row.try_get("fingerprint")?,
        status: row.try_get("status")?,
        headers: row.try_get("headers")?,
        body: row.try_get("body")?,
        remaining: remaining(row.try_get("remaining")?),
    }))
}

/// Reads a record with its times.
fn dated(row: &PgRow) -> Result<Dated, StoreError> {
    let read = || {
        let record = columns(row)?.ok_or(Error::RowNotFound)?;
        Ok::<_, Error>((record, row.try_get("created")?, row.try_get("expires")?))
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

impl Supply for &'static mut PgConnection {
    type Backend = SqlxPostgres;
    type Ref<'a> = &'a mut PgConnection;

    fn supply(open: &mut Tx) -> &mut PgConnection {
        open.connection()
    }
}

impl Supply for &'static mut Transaction<'static, Postgres> {
    type Backend = SqlxPostgres;
    type Ref<'a> = &'a mut Transaction<'static, Postgres>;

    fn supply(open: &mut Tx) -> &mut Transaction<'static, Postgres> {
        open.held.transaction()
    }
}
