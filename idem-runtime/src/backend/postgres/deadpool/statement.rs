//! The protocol's statements: where their SQL comes from, and how they are sent.

use std::{
    collections::HashMap,
    fmt,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use bytes::BytesMut;
use deadpool_postgres::{Client, StatementCache};
use futures_util::{
    TryStreamExt,
    future::{try_join, try_join4, try_join5},
};
use tokio_postgres::{
    Error, Row, RowStream, Statement,
    types::{IsNull, ToSql, Type},
};

use super::super::{StatementMode, schema::in_schema};
use crate::backend;

/// Holds the statements that requests send.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) look: Sql,
    pub(super) claim: Sql,
    pub(super) open: Sql,
    pub(super) set: Sql,
    pub(super) clear: Sql,
    pub(super) mark: Sql,
    pub(super) unmark: Sql,
    pub(super) keep: Sql,
    pub(super) intact: Sql,
}

/// The parameters that name a record: scope, operation, key, request.
const PLACE: &[Type] = &[Type::TEXT, Type::TEXT, Type::TEXT, Type::BYTEA];

impl Statements {
    fn unnamed(schema: &str) -> Self {
        let sql = |text, types| Sql::unnamed(text, types, schema);
        Self {
            look: sql(include_str!("../sql/look.sql"), PLACE),
            claim: sql(
                include_str!("../sql/claim.sql"),
                &[
                    Type::INT8,
                    Type::TEXT,
                    Type::TEXT,
                    Type::TEXT,
                    Type::TEXT,
                    Type::TEXT,
                    Type::BYTEA,
                ],
            ),
            open: sql(include_str!("../sql/open.sql"), &[Type::TEXT, Type::TEXT]),
            set: sql(
                include_str!("../sql/settings.sql"),
                &[Type::TEXT_ARRAY, Type::TEXT_ARRAY],
            ),
            clear: sql(include_str!("../sql/clear.sql"), PLACE),
            mark: sql(include_str!("../sql/mark.sql"), PLACE),
            unmark: sql(include_str!("../sql/unmark.sql"), PLACE),
            keep: sql(
                include_str!("../sql/keep.sql"),
                &[
                    Type::TEXT,
                    Type::TEXT,
                    Type::TEXT,
                    Type::BYTEA,
                    Type::BYTEA,
                    Type::INT2,
                    Type::BYTEA,
                    Type::BYTEA,
                    Type::TIMESTAMPTZ,
                    Type::FLOAT8,
                ],
            ),
            intact: sql(include_str!("../sql/intact.sql"), &[Type::TIMESTAMPTZ]),
        }
    }

    /// Prepares them all on a connection, in one flight.
    async fn prepare(&self, client: &Client) -> Result<Self, Error> {
        let first = try_join5(
            self.look.prepare(client),
            self.claim.prepare(client),
            self.open.prepare(client),
            self.set.prepare(client),
            self.clear.prepare(client),
        );
        let second = try_join4(
            self.mark.prepare(client),
            self.unmark.prepare(client),
            self.keep.prepare(client),
            self.intact.prepare(client),
        );
        let ((look, claim, open, set, clear), (mark, unmark, keep, intact)) =
            try_join(first, second).await?;
        Ok(Self {
            look,
            claim,
            open,
            set,
            clear,
            mark,
            unmark,
            keep,
            intact,
        })
    }
}

/// Knows the statements of every connection, so that a request does not look them up one by one.
#[derive(Debug)]
pub(super) struct Prepared {
    unnamed: Arc<Statements>,
    /// Where they are prepared: by connection.
    cached: Option<Mutex<HashMap<usize, OfConnection>>>,
}

/// The statements of the connection whose cache deadpool keeps at an address. As long as this
/// lives, no other can be at the same one.
type OfConnection = (Weak<StatementCache>, Arc<Statements>);

impl Prepared {
    pub(super) fn new(schema: &str, mode: StatementMode) -> Self {
        Self {
            unnamed: Arc::new(Statements::unnamed(schema)),
            cached: (mode == StatementMode::Cached).then(Mutex::default),
        }
    }

    /// The statements as this connection takes them. Where they are prepared, a connection's first
    /// request waits for one round trip.
    pub(super) async fn on(&self, client: &Client) -> Result<Arc<Statements>, Error> {
        let Some(cached) = &self.cached else {
            return Ok(self.unnamed());
        };
        let cache = &client.statement_cache;
        let address = Arc::as_ptr(cache).addr();
        if let Some((_, statements)) = lock(cached).get(&address) {
            return Ok(Arc::clone(statements));
        }
        let statements = Arc::new(Box::pin(self.unnamed.prepare(client)).await?);
        let mut cached = lock(cached);
        let known = cached.len();
        cached.retain(|_, (connection, _)| connection.strong_count() > 0);
        // A pool that finds a connection broken opens another and tells nobody.
        if cached.len() < known {
            backend::lost();
        }
        cached.insert(address, (Arc::downgrade(cache), Arc::clone(&statements)));
        Ok(statements)
    }

    /// The statements as any connection takes them, even before there is a record table.
    pub(super) fn unnamed(&self) -> Arc<Statements> {
        Arc::clone(&self.unnamed)
    }

    pub(super) fn are_cached(&self) -> bool {
        self.cached.is_some()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds one statement that can be sent at once.
#[derive(Debug)]
pub(super) enum Sql {
    Cached(Statement),
    Unnamed {
        text: String,
        types: &'static [Type],
    },
}

impl Sql {
    pub(super) fn unnamed(text: &str, types: &'static [Type], schema: &str) -> Self {
        #[cfg(feature = "__seeded")]
        let text = &crate::seeded::sql(text);
        Self::Unnamed {
            text: in_schema(text, schema),
            types,
        }
    }

    async fn prepare(&self, client: &Client) -> Result<Self, Error> {
        Ok(Self::Cached(match self {
            Self::Cached(statement) => statement.clone(),
            Self::Unnamed { text, types } => client.prepare_typed_cached(text, types).await?,
        }))
    }
}

type Parameters<'a> = [&'a (dyn ToSql + Sync)];

impl Sql {
    /// Sends the statement on the first poll and brings its rows.
    pub(super) async fn query(
        &self,
        client: &Client,
        parameters: &Parameters<'_>,
    ) -> Result<Vec<Row>, Error> {
        self.send(client, parameters).await?.try_collect().await
    }

    /// Sends the statement on the first poll and tells how many rows it touched.
    pub(super) async fn execute(
        &self,
        client: &Client,
        parameters: &Parameters<'_>,
    ) -> Result<u64, Error> {
        let mut rows = pin!(self.send(client, parameters).await?);
        while rows.try_next().await?.is_some() {}
        Ok(rows.rows_affected().unwrap_or_default())
    }

    async fn send(&self, client: &Client, parameters: &Parameters<'_>) -> Result<RowStream, Error> {
        let secrets = parameters.iter().copied().map(Secret);
        match self {
            Self::Cached(statement) => client.query_raw(statement, secrets).await,
            Self::Unnamed { text, types } => {
                client
                    .query_typed_raw(text, secrets.zip(types.iter().cloned()))
                    .await
            }
        }
    }
}

/// A parameter that never shows: tokio-postgres logs parameters at debug level.
struct Secret<'a>(&'a (dyn ToSql + Sync));

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

impl ToSql for Secret<'_> {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        self.0.to_sql_checked(ty, out)
    }

    // The parameter itself checks, in `to_sql_checked`.
    fn accepts(_: &Type) -> bool {
        true
    }

    fn to_sql_checked(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        self.0.to_sql_checked(ty, out)
    }
}
