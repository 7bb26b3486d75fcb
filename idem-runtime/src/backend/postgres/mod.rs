//! PostgreSQL through deadpool-postgres: two flights around the handler.

mod error;
mod pool;
mod schema;
mod statement;
mod tx;

use std::{sync::Arc, time::Duration};

use deadpool_postgres::Client;
/// The pool that this backend works with.
pub(crate) use deadpool_postgres::Pool as Deadpool;
use tokio::time::timeout;
use tokio_postgres::{Row, types::Type};

use self::tx::guarded;
use self::{
    error::{is_stale, pool_error, store_error},
    statement::{Prepared, Sql, Statements},
};
pub use self::{
    pool::{PoolBuilder, pool},
    schema::MIGRATIONS,
    statement::StatementMode,
    tx::{Savepoint, Tx},
};
use super::{Backend, Call, Claimed, KeepError, Open, Pool, Session};
use crate::{
    error::{SettingsError, StoreError},
    model::Isolation,
};

/// How many connections flight 1 tries: a pool learns only from use that one has died.
const CONNECTIONS: u32 = 3;

/// How long deleting one batch of expired records may take.
const SWEEP: Duration = Duration::from_secs(60);

/// How long one statement's end and the next one's beginning may be apart in a migration.
const MIGRATION: Duration = Duration::from_secs(60);

/// Keeps records in PostgreSQL, beside the tables that the handlers write.
#[derive(Clone, Debug)]
pub struct Postgres {
    pool: Deadpool,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    schema: Box<str>,
    statements: Prepared,
    sweep: Sql,
    verify: Sql,
    /// How long one flight may take.
    timeout: Duration,
    /// How long getting a connection may take: a pool need not limit how long it takes to make one.
    patience: Duration,
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
        let Some(wait) = pool.timeouts().wait else {
            return Err(SettingsError::NoWaitTimeout);
        };
        if !schema::is_valid_name(&schema) {
            return Err(SettingsError::SchemaName(schema));
        }
        if timeout.is_zero() {
            return Err(SettingsError::Zero("the database timeout"));
        }
        let shared = Shared {
            statements: Prepared::new(&schema, statements),
            sweep: Sql::unnamed(include_str!("sql/sweep.sql"), &[Type::INT8], &schema),
            verify: Sql::unnamed(include_str!("sql/verify.sql"), &[], &schema),
            timeout,
            patience: wait.saturating_add(timeout),
            check_interval: check_interval.as_millis().to_string(),
            lock_salt: schema::lock_salt(&schema),
            schema: schema.into(),
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

    /// Takes a connection and sends flight 1. Connections that turn out to be dead, or inside
    /// somebody's transaction, are closed and others taken: nothing of the request has run yet.
    async fn flight_1(
        &self,
        session: &Session,
        call: Option<&Call>,
        statements: Option<Arc<Statements>>,
    ) -> Result<(Tx, Vec<Row>), StoreError> {
        let begin = begin(session.isolation);
        let mut last = None;
        for _ in 0..CONNECTIONS {
            let connection = guarded(self.connection().await?);
            let flight = async {
                let statements = match &statements {
                    Some(statements) => Arc::clone(statements),
                    None => self.shared.statements.on(&connection).await?,
                };
                let tx = Tx::new(connection, statements, Arc::clone(&self.shared));
                let rows = match call {
                    Some(call) => tx.claim(begin, call).await,
                    None => tx.open(begin, session).await,
                };
                Ok((tx, rows?))
            };
            match timeout(self.shared.timeout, flight).await {
                Ok(Ok((mut tx, rows))) if rows.first().is_some_and(|row| row.get("fresh")) => {
                    tx.began(&rows);
                    return Ok((tx, rows));
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

    async fn claim(&self, call: &Call) -> Result<Claimed<Tx>, StoreError> {
        let (tx, rows) = self.flight_1(&call.session, Some(call), None).await?;
        tx.claimed(&rows)
    }

    async fn begin(&self, session: &Session) -> Result<Tx, StoreError> {
        let (tx, _) = self.flight_1(session, None, None).await?;
        Ok(tx)
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        let tx = self.begin_own(MIGRATION).await?;
        schema::migrate(&tx, &self.shared.schema)
            .await
            .map_err(|error| store_error(&error))?;
        tx.commit().await.map_err(KeepError::into_store_error)
    }

    async fn verify_schema(&self) -> Result<(), StoreError> {
        schema::verify(&self.pool, &self.shared).await
    }

    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        let tx = self.begin_own(SWEEP).await?;
        let limit = i64::from(limit);
        let swept = timeout(SWEEP, self.shared.sweep.execute(&tx, &[&limit]))
            .await
            .map_err(|_| StoreError::TimedOut(SWEEP))?;
        let swept = swept.map_err(|error| store_error(&error))?;
        tx.commit().await.map_err(KeepError::into_store_error)?;
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
