//! The protocol's statements: where their SQL comes from, and how they are sent.

use std::{fmt, pin::pin};

use bytes::BytesMut;
use deadpool_postgres::Client;
use futures_util::TryStreamExt;
use tokio_postgres::{
    Error, Row, RowStream, Statement,
    types::{IsNull, ToSql, Type},
};

use super::schema;

/// Says how the protocol's statements are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatementMode {
    /// Prepared once a connection: for direct connections, and poolers that know prepared
    /// statements (PgBouncer from 1.21, with `max_prepared_statements` set). The default.
    #[default]
    Cached,
    /// Unnamed, planned anew each time (about 30 µs a statement): for poolers in transaction mode
    /// that do not know prepared statements. They would fail with SQLSTATE 26000 or 42P05.
    Unnamed,
}

/// Holds the protocol's statements for one schema.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) claim: Sql,
    pub(super) open: Sql,
    pub(super) set: Sql,
    pub(super) lookup: Sql,
    pub(super) keep: Sql,
    pub(super) clear: Sql,
    pub(super) mark: Sql,
    pub(super) unmark: Sql,
    pub(super) intact: Sql,
    pub(super) sweep: Sql,
    pub(super) verify: Sql,
}

/// Holds one statement as it is sent.
#[derive(Debug)]
pub(super) struct Sql {
    text: String,
    types: &'static [Type],
    mode: StatementMode,
}

/// Holds a statement that can be sent at once.
pub(super) enum Ready<'a> {
    Cached(Statement),
    Unnamed(&'a Sql),
}

impl Statements {
    pub(super) fn new(schema: &str, mode: StatementMode) -> Self {
        let sql = |text, types| Sql {
            text: schema::in_schema(text, schema),
            types,
            mode,
        };
        Self {
            claim: sql(
                include_str!("sql/claim.sql"),
                &[Type::INT8, Type::TEXT, Type::TEXT],
            ),
            open: sql(include_str!("sql/open.sql"), &[Type::TEXT, Type::TEXT]),
            set: sql(
                include_str!("sql/settings.sql"),
                &[Type::TEXT_ARRAY, Type::TEXT_ARRAY],
            ),
            lookup: sql(
                include_str!("sql/lookup.sql"),
                &[Type::TEXT, Type::TEXT, Type::TEXT, Type::BYTEA],
            ),
            keep: sql(
                include_str!("sql/keep.sql"),
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
            clear: sql(
                include_str!("sql/clear.sql"),
                &[Type::TEXT, Type::TEXT, Type::TEXT, Type::BYTEA],
            ),
            mark: sql(
                include_str!("sql/mark.sql"),
                &[Type::TEXT, Type::TEXT, Type::TEXT, Type::BYTEA],
            ),
            unmark: sql(
                include_str!("sql/unmark.sql"),
                &[Type::TEXT, Type::TEXT, Type::TEXT, Type::BYTEA],
            ),
            intact: sql(include_str!("sql/intact.sql"), &[Type::TIMESTAMPTZ]),
            sweep: sql(include_str!("sql/sweep.sql"), &[Type::INT8]),
            verify: sql(include_str!("sql/verify.sql"), &[]),
        }
    }

    /// All of them, for the check at start.
    pub(super) fn all(&self) -> [&Sql; 11] {
        let Self {
            claim,
            open,
            set,
            lookup,
            keep,
            clear,
            mark,
            unmark,
            intact,
            sweep,
            verify,
        } = self;
        [
            claim, open, set, lookup, keep, clear, mark, unmark, intact, sweep, verify,
        ]
    }
}

impl Sql {
    /// Prepares the statement if this connection has not done so before: only then a round trip.
    pub(super) async fn ready(&self, client: &Client) -> Result<Ready<'_>, Error> {
        match self.mode {
            StatementMode::Cached => client
                .prepare_typed_cached(&self.text, self.types)
                .await
                .map(Ready::Cached),
            StatementMode::Unnamed => Ok(Ready::Unnamed(self)),
        }
    }
}

type Parameters<'a> = [&'a (dyn ToSql + Sync)];

impl Ready<'_> {
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
            Self::Unnamed(sql) => {
                client
                    .query_typed_raw(&sql.text, secrets.zip(sql.types.iter().cloned()))
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
