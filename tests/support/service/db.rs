//! What the handlers ask of the transaction that they are lent, whichever backend lends it.

use std::future::Future;

use deadpool_postgres::tokio_postgres;
use futures_util::StreamExt;
use idem_runtime::postgres::Tx;
use reqwest::StatusCode;
use sqlx::{Connection, PgConnection, SqliteConnection, raw_sql};

use super::handlers::Failure;

/// A transaction that somebody else has begun and will end.
pub trait Db {
    /// Writes an effect and returns a text that no other execution returns.
    fn effect(&mut self, scope: &str, note: &str) -> impl Future<Output = Result<String, Failure>>;

    /// Runs any number of statements.
    fn run(&mut self, sql: &str) -> impl Future<Output = Result<(), Failure>>;

    /// Runs statements below a savepoint, and undoes them when one fails.
    fn try_below_a_savepoint(&mut self, sql: &str) -> impl Future<Output = Result<(), Failure>>;

    /// Reads the amount in a row of `money`.
    fn amount(&mut self, id: &str) -> impl Future<Output = Result<i64, Failure>>;

    /// Leaves a stream of many rows behind that nobody reads.
    fn leak_rows(&mut self) -> impl Future<Output = Result<(), Failure>>;
}

const AMOUNT: &str = "SELECT amount FROM money WHERE id = $1";

const EFFECT_IN_POSTGRES: &str =
    "INSERT INTO effects (scope, note) VALUES ($1, $2) RETURNING gen_random_uuid()::text";

const MANY_ROWS_IN_POSTGRES: &str = "SELECT repeat('x', 10000) FROM generate_series(1, 1000)";

impl Db for &Tx {
    async fn effect(&mut self, scope: &str, note: &str) -> Result<String, Failure> {
        let insert = self.prepare_cached(EFFECT_IN_POSTGRES).await?;
        Ok(self.query_one(&insert, &[&scope, &note]).await?.get(0))
    }

    async fn run(&mut self, sql: &str) -> Result<(), Failure> {
        Ok(self.batch_execute(sql).await?)
    }

    async fn try_below_a_savepoint(&mut self, sql: &str) -> Result<(), Failure> {
        let savepoint = self.savepoint().await?;
        match savepoint.batch_execute(sql).await {
            Ok(()) => Ok(savepoint.release().await?),
            Err(_) => Ok(savepoint.rollback().await?),
        }
    }

    async fn amount(&mut self, id: &str) -> Result<i64, Failure> {
        Ok(self.query_one(AMOUNT, &[&id]).await?.get(0))
    }

    async fn leak_rows(&mut self) -> Result<(), Failure> {
        let none: [&str; 0] = [];
        let rows = self.query_raw(MANY_ROWS_IN_POSTGRES, none).await?;
        std::mem::forget(Box::pin(rows));
        Ok(())
    }
}

/// Both of sqlx's connections take the same calls; only the types differ.
macro_rules! through_sqlx {
    ($connection:ty, $effect:expr, $many_rows:expr) => {
        impl Db for &mut $connection {
            async fn effect(&mut self, scope: &str, note: &str) -> Result<String, Failure> {
                let insert = $effect;
                let insert = sqlx::query_scalar(insert).bind(scope).bind(note);
                Ok(insert.fetch_one(&mut **self).await?)
            }

            async fn run(&mut self, sql: &str) -> Result<(), Failure> {
                raw_sql(sql).execute(&mut **self).await?;
                Ok(())
            }

            async fn try_below_a_savepoint(&mut self, sql: &str) -> Result<(), Failure> {
                let mut savepoint = self.begin().await?;
                match raw_sql(sql).execute(&mut *savepoint).await {
                    Ok(_) => Ok(savepoint.commit().await?),
                    Err(_) => Ok(savepoint.rollback().await?),
                }
            }

            async fn amount(&mut self, id: &str) -> Result<i64, Failure> {
                let amount = sqlx::query_scalar(AMOUNT).bind(id);
                Ok(amount.fetch_one(&mut **self).await?)
            }

            async fn leak_rows(&mut self) -> Result<(), Failure> {
                let mut rows = raw_sql($many_rows).fetch(&mut **self);
                rows.next().await;
                std::mem::forget(rows);
                Ok(())
            }
        }
    };
}

through_sqlx!(PgConnection, EFFECT_IN_POSTGRES, MANY_ROWS_IN_POSTGRES);
through_sqlx!(SqliteConnection, EFFECT_IN_SQLITE, MANY_ROWS_IN_SQLITE);

const EFFECT_IN_SQLITE: &str =
    "INSERT INTO effects (scope, note) VALUES ($1, $2) RETURNING hex(randomblob(16))";

const MANY_ROWS_IN_SQLITE: &str = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1000) \
     SELECT hex(randomblob(5000)) FROM numbers";

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        if matches!(error, sqlx::Error::PoolTimedOut) {
            return Self::status(503);
        }
        let code = error
            .as_database_error()
            .and_then(sqlx::error::DatabaseError::code);
        Self::of_database(code.map(std::borrow::Cow::into_owned))
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        let code = error.code().map(|code| code.code().to_owned());
        Self::of_database(code)
    }
}

impl Failure {
    fn of_database(code: Option<String>) -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR.as_u16();
        Self {
            code,
            ..Self::status(status)
        }
    }
}
