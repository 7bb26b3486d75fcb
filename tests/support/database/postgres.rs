//! PostgreSQL: one private cluster for each test process, and what its sessions are at.

#![allow(
    clippy::expect_used,
    reason = "a test whose database cannot be prepared has failed"
)]

use std::{panic::resume_unwind, path::Path, sync::OnceLock};

use idem_cluster::Cluster;

use super::{Database, Engine};

/// A database in the cluster of this process.
#[derive(Debug)]
pub struct Postgres {
    name: String,
}

/// Every other session of a client in this database.
const OTHERS: &str = "FROM pg_stat_activity WHERE datname = current_database() \
                      AND pid <> pg_backend_pid() AND backend_type = 'client backend'";

/// Counts the handlers of this database that sleep in Rust, their effect written.
///
/// Between two statements a session is idle too, but not for long; a statement that is only prepared shows as well.
pub const ASLEEP_IN_RUST: &str = "SELECT count(*) FROM pg_stat_activity \
    WHERE datname = current_database() AND state = 'idle in transaction' \
    AND (query LIKE 'INSERT INTO effects%' OR query LIKE '%nextval%') \
    AND state_change < clock_timestamp() - interval '0.1 s'";

impl Engine for Postgres {
    const RECORDS: &'static str = "idem.records";

    // `effects` has no unique constraint, so that a second effect shows.
    const TABLES: &'static str = "
        CREATE TABLE effects (id bigserial, scope text, note text);
        CREATE TABLE money (id text PRIMARY KEY, amount bigint NOT NULL);
        CREATE TABLE parents (id int PRIMARY KEY);
        CREATE TABLE children (id int REFERENCES parents DEFERRABLE INITIALLY DEFERRED);";

    const DROP: &'static str = "DROP SCHEMA idem CASCADE";

    const EXPIRE: &'static str =
        "UPDATE idem.records SET expires_at = clock_timestamp() - interval '1 s'";

    const REFUSE_CREATED: &'static str =
        "ALTER TABLE idem.records ADD CHECK (status <> 201) NOT VALID";

    const OTHER_FINGERPRINT_VERSION: &'static str =
        "UPDATE idem.records SET fingerprint = '\\x09'::bytea || substr(fingerprint, 2)";

    fn create(name: &str, _: &Path) -> Self {
        cluster()
            .create_database(name)
            .expect("creating a database");
        Self {
            name: name.to_owned(),
        }
    }

    fn copy(original: &Self, name: &str, _: &Path) -> Self {
        cluster()
            .create_database_from(name, &original.name)
            .expect("copying the template");
        Self {
            name: name.to_owned(),
        }
    }

    /// Keeps everybody out of it: a database that is in use cannot be copied.
    fn close(&self) {
        let name = &self.name;
        let close = format!(
            "ALTER DATABASE {name} ALLOW_CONNECTIONS false; \
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        );
        cluster()
            .run_sql("postgres", &close)
            .expect("closing the template");
    }

    fn url(&self) -> String {
        cluster().url(&self.name)
    }

    fn run_sql(&self, sql: &str) -> Result<String, String> {
        let ran = cluster().run_sql(&self.name, sql);
        ran.map_err(|error| error.to_string())
    }

    fn text_of(column: &str) -> String {
        format!("SELECT encode({column}, 'escape') FROM idem.records")
    }

    fn insert_records(expired: usize, live: usize) -> String {
        format!(
            "INSERT INTO idem.records
             SELECT 's', 'o', n::text, '', '\\x01', 200, '', '', now(),
                    now() + CASE WHEN n <= {expired} THEN interval '-1 s' ELSE interval '1 h' END
               FROM generate_series(1, {expired} + {live}) AS n"
        )
    }

    fn sleep_in_rust(&self, handlers: usize) -> bool {
        self.brings(ASLEEP_IN_RUST, &handlers.to_string())
    }

    fn is_clean(&self, connections: usize) -> Result<(), String> {
        let open =
            format!("SELECT count(*) {OTHERS} AND (state <> 'idle' OR xact_start IS NOT NULL)");
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
                     AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let surplus = format!("SELECT greatest(count(*) - {connections}, 0) {OTHERS}");
        for (query, what) in [
            (&*open, "open transactions"),
            (locks, "advisory locks"),
            (&surplus, "connections too many"),
        ] {
            let left = self.run_sql(query)?;
            if left != "0" {
                return Err(format!("{left} {what}"));
            }
        }
        Ok(())
    }
}

impl Postgres {
    /// Ends every other session of a client, as a server that restarts does.
    ///
    /// # Panics
    /// When the database does not answer.
    pub fn end_sessions(&self) {
        self.run_sql(&format!("SELECT count(pg_terminate_backend(pid)) {OTHERS}"))
            .expect("ending the sessions");
    }

    /// Returns the name inside the cluster.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the server's port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        cluster().port()
    }

    fn brings(&self, query: &str, expected: &str) -> bool {
        self.run_sql(query).expect("the condition's query") == expected
    }
}

impl Database<Postgres> {
    /// Waits until this many sessions sleep inside a statement.
    pub async fn until_asleep_in_sql(&self, sessions: usize) {
        let asleep = format!("SELECT count(*) {OTHERS} AND wait_event = 'PgSleep'");
        self.until(&asleep, &sessions.to_string()).await;
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // A test that failed for another reason should say that one.
        _ = cluster().drop_database(&self.name);
    }
}

/// Returns the cluster of this process; it ends with the process.
fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let started = Cluster::builder().setting("max_connections", "300").start();
        started.unwrap_or_else(|error| resume_unwind(Box::new(error.to_string())))
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tokio_postgres::NoTls;

    use super::{super::Template, *};

    static NUMBERS: Template<Postgres> = Template::new(|database| {
        Box::pin(async move {
            let (client, connection) = tokio_postgres::connect(&database.url(), NoTls)
                .await
                .unwrap();
            tokio::spawn(connection);
            let create = "CREATE TABLE numbers AS SELECT 7 AS n";
            client.batch_execute(create).await.unwrap();

            // A session that would outlast the preparation: the template has to become free all the same.
            let name = database.engine().name().to_owned();
            thread::spawn(move || cluster().run_sql(&name, "SELECT pg_sleep(60)"));
            let asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
            while database.run_sql(asleep).unwrap() == "0" {
                tokio::task::yield_now().await;
            }
        })
    });

    #[test]
    fn each_test_gets_its_own_copy_of_the_template() {
        let (one, two) = (NUMBERS.database(), NUMBERS.database());
        one.run_sql("UPDATE numbers SET n = 8").unwrap();
        assert_eq!(one.run_sql("SELECT n FROM numbers").unwrap(), "8");
        assert_eq!(two.run_sql("SELECT n FROM numbers").unwrap(), "7");
    }

    #[tokio::test]
    async fn database_can_be_asked_for_inside_a_runtime_and_is_dropped_with_its_handle() {
        static EMPTY: Template<Postgres> = Template::new(|_| Box::pin(async {}));
        let database = EMPTY.database();
        let present = format!(
            "SELECT count(*) FROM pg_database WHERE datname = '{}'",
            database.engine().name()
        );
        assert_eq!(database.run_sql(&present).unwrap(), "1");
        drop(database);
        assert_eq!(cluster().run_sql("postgres", &present).unwrap(), "0");
    }

    #[test]
    #[should_panic(expected = "no such table")]
    fn failed_preparation_fails_the_test() {
        static BROKEN: Template<Postgres> =
            Template::new(|_| Box::pin(async { panic!("no such table") }));
        drop(BROKEN.database());
    }
}
