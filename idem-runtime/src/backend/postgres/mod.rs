//! PostgreSQL through deadpool-postgres: two flights around the handler.

mod error;
mod pool;
mod schema;
mod statement;
mod tx;

use std::{sync::Arc, time::Duration};

/// The pool that this backend works with.
pub(crate) use deadpool_postgres::Pool as Deadpool;
use scopeguard::ScopeGuard;
use tokio::time::timeout;
use tokio_postgres::Row;

use self::{
    error::{is_stale, pool_error, store_error},
    statement::Statements,
};
pub use self::{
    pool::{PoolBuilder, pool},
    schema::MIGRATIONS,
    statement::StatementMode,
    tx::{Savepoint, Tx},
};
use super::{Backend, Call, Claimed, Pool, Session};
use crate::{
    error::{SettingsError, StoreError},
    model::Isolation,
};

/// How many connections flight 1 tries: a pool learns only from use that one has died.
const CONNECTIONS: u32 = 3;

/// How long deleting one batch of expired records may take.
const SWEEP: Duration = Duration::from_secs(60);

/// Keeps records in PostgreSQL, beside the tables that the handlers write.
#[derive(Clone, Debug)]
pub struct Postgres {
    pool: Deadpool,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    schema: Box<str>,
    statements: Statements,
    /// How long one flight may take.
    timeout: Duration,
    /// The value of `client_connection_check_interval`.
    check_interval: String,
    /// Keeps the locks of two schemas in one database apart.
    lock_salt: i64,
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

impl Postgres {
    pub(crate) fn new(pool: Deadpool, options: Options) -> Result<Self, SettingsError> {
        let Options {
            schema,
            statements,
            timeout,
            check_interval,
        } = options;
        if pool.timeouts().wait.is_none() {
            return Err(SettingsError::NoWaitTimeout);
        }
        if !schema::is_valid_name(&schema) {
            return Err(SettingsError::SchemaName(schema));
        }
        if timeout.is_zero() {
            return Err(SettingsError::Zero("the database timeout"));
        }
        let shared = Shared {
            statements: Statements::new(&schema, statements),
            timeout,
            check_interval: check_interval.as_millis().to_string(),
            lock_salt: schema::lock_salt(&schema),
            schema: schema.into(),
        };
        Ok(Self {
            pool,
            shared: Arc::new(shared),
        })
    }

    /// Takes a connection and sends flight 1. Connections that turn out to be dead, or inside
    /// somebody's transaction, are closed and others taken: nothing of the request has run yet.
    async fn flight_1<T>(
        &self,
        flight: impl AsyncFn(&Tx) -> Result<(Option<Row>, T), tokio_postgres::Error>,
    ) -> Result<(Tx, Row, T), StoreError> {
        let mut last = None;
        for _ in 0..CONNECTIONS {
            let client = self.pool.get().await.map_err(pool_error)?;
            let mut tx = Tx::new(client, Arc::clone(&self.shared));
            match timeout(self.shared.timeout, flight(&tx)).await {
                Ok(Ok((Some(row), rest))) if row.get("fresh") => {
                    tx.began = row.get("began");
                    return Ok((tx, row, rest));
                }
                Ok(Ok(_)) => last = None,
                Ok(Err(error)) if is_stale(&error) => last = Some(error),
                Ok(Err(error)) => return Err(store_error(&error)),
                Err(_) => return Err(StoreError::TimedOut(self.shared.timeout)),
            }
        }
        Err(last.map_or_else(
            || {
                StoreError::Refused(
                    "the pool hands out connections inside a transaction that was begun \
                     elsewhere: some code of this service sends BEGIN without ending it"
                        .to_owned(),
                )
            },
            |error| store_error(&error),
        ))
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

    async fn claim(&self, call: &Call) -> Result<Claimed<Tx>, StoreError> {
        let begin = begin(call.session.isolation);
        let (tx, row, found) = self
            .flight_1(async |tx| tx.claim(begin, call).await)
            .await?;
        tx.claimed(&row, &found)
    }

    async fn begin(&self, session: &Session) -> Result<Tx, StoreError> {
        let begin = begin(session.isolation);
        let (tx, _, ()) = self
            .flight_1(async |tx| tx.open(begin, session).await)
            .await?;
        Ok(tx)
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        schema::migrate(&self.pool, &self.shared.schema).await
    }

    async fn verify_schema(&self) -> Result<(), StoreError> {
        schema::verify(&self.pool, &self.shared.statements).await
    }

    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        let connection = tx::guarded(self.pool.get().await.map_err(pool_error)?);
        let sweep = async {
            let sweep = self.shared.statements.sweep.ready(&connection).await?;
            sweep.execute(&connection, &[&i64::from(limit)]).await
        };
        let swept = timeout(SWEEP, sweep)
            .await
            .map_err(|_| StoreError::TimedOut(SWEEP))?;
        let swept = swept.map_err(|error| store_error(&error))?;
        drop(ScopeGuard::into_inner(connection));
        Ok(swept)
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
