//! PostgreSQL through sqlx: the same statements, one after the other.

mod error;
mod schema;
mod statement;
mod tx;

use std::{future::Future, sync::Arc, time::Duration};

use scopeguard::ScopeGuard;
use sqlx::{PgPool, Postgres, pool::PoolConnection, postgres::PgRow};
use tokio::{runtime::Handle, time::timeout};
use tokio_util::context::TokioContext;

use self::{
    statement::Statements,
    tx::{Tx, stored},
};
use super::{
    MIGRATION, MIGRATIONS_TAKE, Options, SWEEP, Settings, begin,
    error::{Failure, is_stale, store_error},
    within,
};
use crate::{
    backend::{
        self, Backend, CONNECTIONS, Call, Claimed, KeepError, Open, Pool, Seen, Session, driver,
        found, held, held::Held, left_in_transaction,
    },
    error::{SettingsError, StoreError},
    model::{Found, Identity, Isolation},
};

/// Keeps records in PostgreSQL, through the pool of sqlx that a service already has.
///
/// sqlx sends one statement at a time, and waits for its answer: a first request costs four round
/// trips beside the handler's own (BEGIN, the claim, the record, COMMIT), two more than the same
/// handler in a transaction of its own. The pool's check of each connection that it hands out is
/// one more; with `test_before_acquire(false)` there is none, and a connection that has died is
/// noticed by the claim, which takes another.
///
/// The pool's `acquire_timeout` (30 s by default) is how long a request waits for a connection
/// before it is answered 503; 5 s are enough for most services.
#[derive(Clone, Debug)]
pub struct SqlxPostgres {
    pool: PgPool,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    statements: Statements,
    /// Drives the connections that the framework opens.
    driver: Handle,
}

impl Pool for PgPool {
    type Backend = SqlxPostgres;
    type Options = Options;

    fn open(self, options: Options) -> Result<SqlxPostgres, SettingsError> {
        held::prepare()?;
        let mode = options.statements;
        let settings = Settings::new(options)?;
        let shared = Shared {
            statements: Statements::new(&settings.schema, mode),
            settings,
            driver: driver::handle()?,
        };
        Ok(SqlxPostgres {
            pool: self,
            shared: Arc::new(shared),
        })
    }
}

impl SqlxPostgres {
    /// Takes a connection. One that has to be opened for it is driven by the framework's runtime:
    /// an actix worker that stops would take those that it has opened with it.
    async fn connection(&self) -> Result<PoolConnection<Postgres>, StoreError> {
        let acquire = TokioContext::new(self.pool.acquire(), self.shared.driver.clone());
        acquire.await.map_err(|error| match error {
            // sqlx says the same when it could not open a connection.
            sqlx::Error::PoolTimedOut if self.pool.size() < self.largest() => {
                let limit = self.pool.options().get_acquire_timeout();
                StoreError::Unreachable(format!("no connection could be opened within {limit:?}"))
            }
            sqlx::Error::PoolTimedOut => StoreError::Busy,
            error => store_error(&Failure::from(&error)),
        })
    }

    fn largest(&self) -> u32 {
        self.pool.options().get_max_connections()
    }

    /// Takes a connection and sends flight 1.
    async fn flight_1(
        &self,
        session: &Session,
        call: Option<&Call>,
    ) -> Result<(Tx, Vec<PgRow>), StoreError> {
        self.on_a_sound_connection(move |connection| async move {
            let held = Held::begin(connection, begin(session.isolation)).await?;
            let fence = self.shared.settings.fence(session);
            let mut tx = Tx::new(held, Arc::clone(&self.shared), fence);
            let rows = match call {
                Some(call) => tx.claim(call).await?,
                None => tx.open(session).await?,
            };
            let fresh = tx.has_begun(&rows)?;
            Ok(fresh.then_some((tx, rows)))
        })
        .await
    }

    /// Begins a request's work on a connection. Those that turn out to be dead, or inside
    /// somebody's transaction (`None`), are closed and others taken: nothing has run yet.
    async fn on_a_sound_connection<T, F>(
        &self,
        work: impl Fn(PoolConnection<Postgres>) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<Option<T>, sqlx::Error>>,
    {
        let limit = self.shared.settings.timeout;
        let mut last = None;
        for _ in 0..CONNECTIONS {
            let connection = self.connection().await?;
            match timeout(limit, work(connection)).await {
                Ok(Ok(Some(begun))) => return Ok(begun),
                Ok(Ok(None)) => last = None,
                Ok(Err(error)) => {
                    let failure = Failure::from(&error);
                    if !is_stale(&failure) {
                        return Err(store_error(&failure));
                    }
                    backend::lost();
                    last = Some(store_error(&failure));
                }
                Err(_) => return Err(StoreError::TimedOut(limit)),
            }
        }
        Err(last.unwrap_or_else(left_in_transaction))
    }

    /// Begins a transaction for work of the framework's own: at a known level, and never inside
    /// somebody else's.
    async fn begin_own(&self, limit: Duration) -> Result<Tx, StoreError> {
        let session = Session {
            isolation: Isolation::ReadCommitted,
            timeout: limit,
            settings: Vec::new(),
        };
        self.begin(&session).await
    }
}

impl Backend for SqlxPostgres {
    type Open = Tx;

    async fn look(&self, call: &Call) -> Result<Found, StoreError> {
        let statements = &self.shared.statements;
        let identity = &call.identity;
        let look = move || {
            let look = statements.look.query();
            look.bind(identity.scope().as_str())
                .bind(identity.operation())
                .bind(identity.key().as_str())
                .bind(call.fingerprint.as_bytes().as_slice())
        };
        let rows = self.on_a_sound_connection(move |connection| async move {
            // sqlx prepares an unnamed statement in a trip of its own, behind which a pooler may give
            // the server's end to somebody else: not inside a transaction.
            if !statements.are_cached() {
                let mut held = Held::begin(connection, begin(Isolation::ReadCommitted)).await?;
                let rows = look().fetch_all(held.connection()).await?;
                held.roll_back().await?;
                return Ok(Some(rows));
            }
            let mut connection = held::guarded(connection);
            let rows = look().fetch_all(&mut **connection).await?;
            drop(ScopeGuard::into_inner(connection));
            Ok(Some(rows))
        });
        found(stored(&rows.await?)?)
    }

    async fn claim(&self, call: &Call) -> Result<Claimed<Tx>, StoreError> {
        let (tx, rows) = self.flight_1(&call.session, Some(call)).await?;
        tx.claimed(&rows)
    }

    async fn status(&self, identity: &Identity) -> Result<Seen, StoreError> {
        let limit = self.shared.settings.timeout;
        let mut tx = self.begin_own(limit).await?;
        let seen = within(limit, tx.status(identity)).await?;
        tx.give_up().await;
        Ok(seen)
    }

    async fn begin(&self, session: &Session) -> Result<Tx, StoreError> {
        let (tx, _) = self.flight_1(session, None).await?;
        Ok(tx)
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        let mut tx = self.begin_own(MIGRATION).await?;
        let migrate = schema::migrate(tx.connection(), &self.shared.settings.schema);
        within(MIGRATIONS_TAKE, migrate).await?;
        tx.end().await.map_err(KeepError::into_store_error)
    }

    async fn verify_schema(&self) -> Result<(), StoreError> {
        schema::verify(self).await
    }

    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        let mut tx = self.begin_own(SWEEP).await?;
        let statements = &self.shared.statements;
        let sweep = async {
            let sweep = statements.sweep.query().bind(i64::from(limit));
            let swept = sweep.execute(tx.connection()).await;
            swept.map_err(|error| store_error(&Failure::from(&error)))
        };
        let swept = within(SWEEP, sweep).await?;
        tx.end().await.map_err(KeepError::into_store_error)?;
        Ok(swept.rows_affected())
    }
}
