//! The backends under test, as the harness and the tests that they share see them.

#![allow(
    clippy::unwrap_used,
    reason = "a test whose service cannot be set up has failed"
)]

use std::{future::Future, time::Duration};

use actix_web::web;
use idem_runtime::{Backend, Idempotency, Pool as RuntimePool, postgres};
use sqlx::postgres::PgPoolOptions;

use crate::{
    database::{self, Database, Engine, Template, postgres::Postgres},
    service::{deadpool, handlers::Failure, sqlite, sqlx_postgres},
};

/// A backend, with its engine, its pool, and handlers that take its transaction.
pub trait Kind: Sized + 'static {
    /// What the program `service` knows it by.
    const NAME: &'static str;
    /// What its driver logs of every statement at the lowest level.
    const LOGGED: &'static str;
    /// Whether a handler's own COMMIT is refused.
    const REFUSES_COMMITS: bool = false;

    /// Where its databases are.
    type Engine: Engine;
    /// The backend itself.
    type Backend: Backend;
    /// The pool that it is opened over.
    type Pool: RuntimePool<Backend = Self::Backend, Options: Send> + Clone + Send + Sync + 'static;

    /// A database with the record table, and the tables that the scripts write.
    fn template() -> &'static Template<Self::Engine>;

    /// Opens a pool of this size, with a bounded wait for a connection.
    fn pool(url: &str, size: usize, wait: Duration) -> impl Future<Output = Self::Pool> + Send;

    /// Adds the routes of its handlers.
    fn routes(app: &mut web::ServiceConfig);

    /// Tells whether all connections of a pool are back.
    fn is_whole(pool: &Self::Pool) -> bool;

    /// Runs statements over a connection of the pool, as code that forgets about transactions does.
    fn run(pool: &Self::Pool, statements: &str) -> impl Future<Output = Result<(), Failure>>;

    /// Runs a query over a connection of the pool and returns its one column as text.
    fn ask(pool: &Self::Pool, query: &str)
    -> impl Future<Output = Result<Option<String>, Failure>>;
}

/// Fills a template: the record table as the backend itself makes it, and the scripts' tables.
async fn prepare<K: Kind>(database: &Database<K::Engine>) {
    let pool = K::pool(&database.url(), 1, Duration::from_secs(5)).await;
    let idempotency = Idempotency::new(pool).unwrap();
    idempotency.migrate().await.unwrap();
    database.run_sql(K::Engine::TABLES).unwrap();
}

/// PostgreSQL through deadpool-postgres.
#[derive(Debug)]
pub struct Deadpool;

impl Kind for Deadpool {
    const NAME: &'static str = "deadpool";
    const LOGGED: &'static str = "executing statement";

    type Engine = Postgres;
    type Backend = postgres::Postgres;
    type Pool = deadpool_postgres::Pool;

    fn template() -> &'static Template<Postgres> {
        static TEMPLATE: Template<Postgres> =
            Template::new(|database| Box::pin(prepare::<Deadpool>(database)));
        &TEMPLATE
    }

    async fn pool(url: &str, size: usize, wait: Duration) -> Self::Pool {
        let pool = postgres::pool(url).max_size(size).wait_timeout(wait);
        pool.open().unwrap()
    }

    fn routes(app: &mut web::ServiceConfig) {
        deadpool::configure(app);
    }

    fn is_whole(pool: &Self::Pool) -> bool {
        pool.status().available == pool.status().size
    }

    async fn run(pool: &Self::Pool, statements: &str) -> Result<(), Failure> {
        let client = pool.get().await.map_err(|_| Failure::status(503))?;
        Ok(client.batch_execute(statements).await?)
    }

    async fn ask(pool: &Self::Pool, query: &str) -> Result<Option<String>, Failure> {
        let client = pool.get().await.map_err(|_| Failure::status(503))?;
        Ok(client.query_one(query, &[]).await?.get(0))
    }
}

/// PostgreSQL through sqlx.
#[derive(Debug)]
pub struct SqlxPostgres;

impl Kind for SqlxPostgres {
    const NAME: &'static str = "sqlx-postgres";
    const LOGGED: &'static str = "sqlx::query";

    type Engine = Postgres;
    type Backend = postgres::SqlxPostgres;
    type Pool = sqlx::PgPool;

    fn template() -> &'static Template<Postgres> {
        static TEMPLATE: Template<Postgres> =
            Template::new(|database| Box::pin(prepare::<SqlxPostgres>(database)));
        &TEMPLATE
    }

    async fn pool(url: &str, size: usize, wait: Duration) -> Self::Pool {
        let pool = PgPoolOptions::new().max_connections(size.try_into().unwrap());
        // A database that is down is the service's affair.
        pool.acquire_timeout(wait).connect_lazy(url).unwrap()
    }

    fn routes(app: &mut web::ServiceConfig) {
        sqlx_postgres::configure(app);
    }

    fn is_whole(pool: &Self::Pool) -> bool {
        pool.num_idle() == pool.size() as usize
    }

    async fn run(pool: &Self::Pool, statements: &str) -> Result<(), Failure> {
        sqlx::raw_sql(statements).execute(pool).await?;
        Ok(())
    }

    async fn ask(pool: &Self::Pool, query: &str) -> Result<Option<String>, Failure> {
        Ok(sqlx::query_scalar(query).fetch_one(pool).await?)
    }
}

/// SQLite through sqlx.
#[derive(Debug)]
pub struct Sqlite;

impl Kind for Sqlite {
    const NAME: &'static str = "sqlite";
    const LOGGED: &'static str = "sqlx::query";
    const REFUSES_COMMITS: bool = true;

    type Engine = database::sqlite::Sqlite;
    type Backend = idem_runtime::sqlite::Sqlite;
    type Pool = sqlx::SqlitePool;

    fn template() -> &'static Template<Self::Engine> {
        static TEMPLATE: Template<database::sqlite::Sqlite> =
            Template::new(|database| Box::pin(prepare::<Sqlite>(database)));
        &TEMPLATE
    }

    async fn pool(url: &str, size: usize, wait: Duration) -> Self::Pool {
        let pool = idem_runtime::sqlite::pool(url).max_size(size.try_into().unwrap());
        pool.wait_timeout(wait).open().await.unwrap()
    }

    fn routes(app: &mut web::ServiceConfig) {
        sqlite::configure(app);
    }

    fn is_whole(pool: &Self::Pool) -> bool {
        pool.num_idle() == pool.size() as usize
    }

    async fn run(pool: &Self::Pool, statements: &str) -> Result<(), Failure> {
        sqlx::raw_sql(statements).execute(pool).await?;
        Ok(())
    }

    async fn ask(pool: &Self::Pool, query: &str) -> Result<Option<String>, Failure> {
        Ok(sqlx::query_scalar(query).fetch_one(pool).await?)
    }
}

/// Leaves behind what the statements in its body leave behind; the last one may fail.
pub async fn leaking<K: Kind>(statements: String, pool: web::Data<K::Pool>) -> String {
    drop(K::run(&pool, &statements).await);
    String::new()
}

/// Adds the route of [`leaking`].
pub fn leaking_route<K: Kind>(app: &mut web::ServiceConfig) {
    app.route("/leaking", web::post().to(leaking::<K>));
}
