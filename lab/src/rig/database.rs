//! The database of one trial, asked past the proxy.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tokio_postgres::{Client, NoTls, Row, types::ToSql};

use crate::Fallible;

/// How much money an account holds at first.
pub(crate) const OPENING: i64 = 1_000_000;

/// How many accounts there are.
pub(crate) const ACCOUNTS: i32 = 100;

/// The tables of the handler under test. `effects` has no unique constraint, so that a second effect shows;
/// `began` is when its handler began, `written` when it was written.
const TABLES: &str = "
    CREATE TABLE effects (id bigserial, scope text NOT NULL, operation text NOT NULL, key text NOT NULL,
        execution uuid NOT NULL DEFAULT gen_random_uuid(), payer int NOT NULL, payee int NOT NULL,
        amount bigint NOT NULL, began timestamptz NOT NULL,
        written timestamptz NOT NULL DEFAULT clock_timestamp());
    CREATE INDEX ON effects (key);
    CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL, moves bigint NOT NULL DEFAULT 0)
        WITH (fillfactor = 50);
    CREATE TABLE limits (id int PRIMARY KEY, amount bigint NOT NULL);
    CREATE TABLE parents (id int PRIMARY KEY);
    CREATE TABLE children (id int REFERENCES parents DEFERRABLE INITIALLY DEFERRED);
    CREATE TABLE late (milliseconds int);
    CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_sleep(NEW.milliseconds / 1000.0); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION dawdle();";

/// Names a database of some server on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Database {
    pub(crate) port: u16,
    pub(crate) name: String,
}

impl Database {
    /// Where it is, for a client.
    pub(crate) fn url(&self) -> String {
        format!(
            "postgres://postgres@127.0.0.1:{}/{}?sslmode=disable",
            self.port, self.name
        )
    }

    /// Creates it, with the record table and the handler's tables.
    ///
    /// # Errors
    ///
    /// When the server refuses.
    pub(crate) async fn create(&self) -> Fallible<()> {
        let server = Self {
            port: self.port,
            name: "postgres".to_owned(),
        };
        let create = format!("CREATE DATABASE {} TEMPLATE template0", self.name);
        server.execute(&create).await?;
        for migration in idem_runtime::postgres::MIGRATIONS {
            self.execute(migration).await?;
        }
        self.execute(TABLES).await?;
        let fill = format!(
            "INSERT INTO accounts SELECT id, {OPENING} FROM generate_series(0, {ACCOUNTS} - 1) AS id;
             INSERT INTO limits SELECT id, 1000 FROM generate_series(0, {ACCOUNTS} - 1) AS id"
        );
        self.execute(&fill).await
    }

    /// Opens a connection of its own, also to a server that is still recovering from what was done to it.
    ///
    /// # Errors
    ///
    /// When the server stays down.
    pub(crate) async fn connect(&self) -> Fallible<Client> {
        let start = Instant::now();
        loop {
            match tokio_postgres::connect(&self.url(), NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    return Ok(client);
                }
                Err(_) if start.elapsed() < Duration::from_secs(20) => {
                    sleep(Duration::from_millis(20)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Runs SQL text.
    ///
    /// # Errors
    ///
    /// The server's.
    pub(crate) async fn execute(&self, sql: &str) -> Fallible<()> {
        self.connect().await?.batch_execute(sql).await?;
        Ok(())
    }

    /// Asks for rows.
    ///
    /// # Errors
    ///
    /// The server's.
    pub(crate) async fn query(&self, sql: &str) -> Fallible<Vec<Row>> {
        let none: [&(dyn ToSql + Sync); 0] = [];
        Ok(self.connect().await?.query(sql, &none).await?)
    }

    /// Asks for one number.
    ///
    /// # Errors
    ///
    /// The server's.
    pub(crate) async fn number(&self, sql: &str) -> Fallible<i64> {
        let rows = self.query(sql).await?;
        Ok(rows.first().ok_or("no row")?.try_get(0)?)
    }

    /// Waits until a query brings `true`.
    ///
    /// # Errors
    ///
    /// When it does not in time.
    pub(crate) async fn until(&self, condition: &str, within: Duration) -> Fallible<()> {
        let start = Instant::now();
        let client = self.connect().await?;
        loop {
            if client.query_one(condition, &[]).await?.try_get(0)? {
                return Ok(());
            }
            if start.elapsed() > within {
                return Err(format!("waited in vain until {condition}").into());
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Every session of a service in this database.
pub(crate) const SERVICE_SESSIONS: &str = "pg_stat_activity WHERE datname = current_database() \
    AND pid <> pg_backend_pid() AND backend_type = 'client backend'";

/// The advisory locks of this database.
pub(crate) const LOCKS: &str = "pg_locks WHERE locktype = 'advisory' AND granted \
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
