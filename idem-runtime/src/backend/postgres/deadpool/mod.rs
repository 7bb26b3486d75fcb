//! PostgreSQL through deadpool-postgres: two flights around the handler.

mod error;
mod pool;
mod schema;
mod statement;
mod tx;

use std::{future::Future, sync::Arc, time::Duration};

use deadpool_postgres::Client;
/// The pool that this backend works with.
pub(crate) use deadpool_postgres::Pool as Deadpool;
use scopeguard::ScopeGuard;
use tokio::time::timeout;
use tokio_postgres::{
    Error, Row,
    types::{ToSql, Type},
};

use self::{
    error::{is_stale, pool_error, store_error},
    statement::{Prepared, Sql, Statements},
    tx::{Connection, guarded, stored},
};
pub use self::{
    pool::{PoolBuilder, pool},
    tx::{Savepoint, Tx},
};
use super::{MIGRATION, MIGRATIONS_TAKE, Options, SWEEP, Settings, begin, within};
use crate::{
    backend::{
        self, Backend, CONNECTIONS, Call, Claimed, KeepError, Open, Pool, Seen, Session, found,
        left_in_transaction,
    },
    error::{SettingsError, StoreError},
    model::{Found, Identity, Isolation},
};

/// Keeps records in PostgreSQL, beside the tables that the handlers write.
#[derive(Clone, Debug)]
pub struct Postgres {
    pool: Deadpool,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    statements: Prepared,
    held: Sql,
    status: Sql,
    sweep: Sql,
    verify: Sql,
    /// How long getting a connection may take: a pool need not limit how long it takes to make one.
    patience: Duration,
}

impl Postgres {
    pub(crate) fn new(pool: Deadpool, options: Options) -> Result<Self, SettingsError> {
        let Some(wait) = pool.timeouts().wait else {
            return Err(SettingsError::NoWaitTimeout);
        };
        let mode = options.statements;
        let settings = Settings::new(options)?;
        let schema = &settings.schema;
        let shared = Shared {
            statements: Prepared::new(schema, mode),
            held: Sql::unnamed(include_str!("../sql/held.sql"), &[Type::INT8], schema),
            status: Sql::unnamed(
                include_str!("../sql/status.sql"),
                &[Type::TEXT, Type::TEXT, Type::TEXT],
                schema,
            ),
            sweep: Sql::unnamed(include_str!("../sql/sweep.sql"), &[Type::INT8], schema),
            verify: Sql::unnamed(include_str!("../sql/verify.sql"), &[], schema),
            patience: wait.saturating_add(settings.timeout),
            settings,
        };
        Ok(Self {
            pool,
            shared: Arc::new(shared),
        })
    }

    async fn connection(&self) -> Result<Client, StoreError> {
        let limit = self.shared.patience;
        match timeout(limit, self.pool.get()).await {
            Ok(client) => client.map_err(pool_error),
            Err(_) => Err(StoreError::TimedOut(limit)),
        }
    }

    /// Takes a connection and sends flight 1.
    async fn flight_1(
        &self,
        session: &Session,
        call: Option<&Call>,
        statements: Option<Arc<Statements>>,
    ) -> Result<(Tx, Vec<Row>), StoreError> {
        let begin = begin(session.isolation);
        let statements = statements.as_ref();
        self.on_a_sound_connection(move |connection| async move {
            let statements = match statements {
                Some(statements) => Arc::clone(statements),
                None => self.shared.statements.on(&connection).await?,
            };
            let fence = self.shared.settings.fence(session);
            let mut tx = Tx::new(connection, statements, Arc::clone(&self.shared), fence);
            let rows = match call {
                Some(call) => tx.claim(begin, call).await?,
                None => tx.open(begin, session).await?,
            };
            let fresh = rows.first().is_some_and(|row| row.get("fresh"));
            tx.began(&rows);
            Ok(fresh.then_some((tx, rows)))
        })
        .await
    }

    /// Begins a request's work on a connection. Those that turn out to be dead, or inside
    /// somebody's transaction (`None`), are closed and others taken: nothing has run yet.
    async fn on_a_sound_connection<T, F>(
        &self,
        work: impl Fn(Connection) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<Option<T>, Error>>,
    {
        let mut last = None;
        for _ in 0..CONNECTIONS {
            let connection = guarded(self.connection().await?);
            match timeout(self.shared.settings.timeout, work(connection)).await {
                Ok(Ok(Some(begun))) => return Ok(begun),
                Ok(Ok(None)) => last = None,
                Ok(Err(error)) if is_stale(&error) => {
                    backend::lost();
                    last = Some(error);
                }
                Ok(Err(error)) => return Err(store_error(&error)),
                Err(_) => return Err(StoreError::TimedOut(self.shared.settings.timeout)),
            }
        }
        Err(last.map_or_else(left_in_transaction, |error| store_error(&error)))
    }

    /// Begins a transaction for work of the framework's own: at a known level, and never inside
    /// somebody else's.
    async fn begin_own(&self, limit: Duration) -> Result<Tx, StoreError> {
        let session = Session {
            isolation: Isolation::ReadCommitted,
            timeout: limit,
            settings: Vec::new(),
        };
        let unnamed = Some(self.shared.statements.unnamed());
        let (tx, _) = self.flight_1(&session, None, unnamed).await?;
        Ok(tx)
    }
}

impl Pool for Deadpool {
    type Backend = Postgres;
    type Options = Options;

    fn open(self, options: Options) -> Result<Postgres, SettingsError> {
        Postgres::new(self, options)
    }
}

impl Backend for Postgres {
    type Open = Tx;

    async fn look(&self, call: &Call) -> Result<Found, StoreError> {
        let Call {
            identity,
            fingerprint,
            ..
        } = call;
        let (scope, operation) = (identity.scope().as_str(), identity.operation());
        let (key, fingerprint) = (identity.key().as_str(), fingerprint.as_bytes().as_slice());
        let place: [&(dyn ToSql + Sync); 4] = [&scope, &operation, &key, &fingerprint];
        let place = &place;
        let rows = self.on_a_sound_connection(move |connection| async move {
            let statements = self.shared.statements.on(&connection).await?;
            let rows = Box::pin(statements.look.query(&connection, place)).await?;
            drop(ScopeGuard::into_inner(connection));
            Ok(Some(rows))
        });
        found(rows.await?.iter().filter_map(stored))
    }

    async fn claim(&self, call: &Call) -> Result<Claimed<Tx>, StoreError> {
        let (tx, rows) = self.flight_1(&call.session, Some(call), None).await?;
        tx.claimed(&rows)
    }

    async fn status(&self, identity: &Identity) -> Result<Seen, StoreError> {
        let limit = self.shared.settings.timeout;
        let tx = self.begin_own(limit).await?;
        let seen = within(limit, tx.status(identity)).await?;
        tx.give_up().await;
        Ok(seen)
    }

    async fn begin(&self, session: &Session) -> Result<Tx, StoreError> {
        let (tx, _) = self.flight_1(session, None, None).await?;
        Ok(tx)
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        let tx = self.begin_own(MIGRATION).await?;
        let migrate = schema::migrate(&tx, &self.shared.settings.schema);
        within(MIGRATIONS_TAKE, migrate).await?;
        tx.commit().await.map_err(KeepError::into_store_error)
    }

    async fn verify_schema(&self) -> Result<(), StoreError> {
        schema::verify(self).await
    }

    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        let tx = self.begin_own(SWEEP).await?;
        let limit = i64::from(limit);
        let sweep = async {
            let swept = self.shared.sweep.execute(&tx, &[&limit]).await;
            swept.map_err(|error| store_error(&error))
        };
        let swept = within(SWEEP, sweep).await?;
        tx.commit().await.map_err(KeepError::into_store_error)?;
        Ok(swept)
    }
}
