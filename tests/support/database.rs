//! One private cluster for each test process, and in it a fresh database for each test.

#![allow(
    clippy::expect_used,
    reason = "a test whose database cannot be prepared has failed"
)]

use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use idem_cluster::{Cluster, ClusterError};
use tokio::runtime;

/// Prepares a database once, of which every test then gets a copy.
///
/// ```no_run
/// use idem_tests::database::Template;
///
/// static SHOP: Template = Template::new(|database| {
///     Box::pin(async move {
///         database.run_sql("CREATE TABLE orders (id int)").unwrap();
///         // … or anything that connects to `database.url()`.
///     })
/// });
///
/// let database = SHOP.database();
/// assert_eq!(database.run_sql("SELECT count(*) FROM orders").unwrap(), "0");
/// ```
#[derive(Debug)]
pub struct Template {
    prepare: Prepare,
    name: OnceLock<String>,
}

/// Fills the database that becomes the template.
pub type Prepare = for<'a> fn(&'a Database) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

impl Template {
    /// Takes what fills the template; it runs once a process, in a tokio runtime of its own.
    #[must_use]
    pub const fn new(prepare: Prepare) -> Self {
        Self {
            prepare,
            name: OnceLock::new(),
        }
    }

    /// Creates a database that no other test sees.
    ///
    /// # Panics
    /// When there is no PostgreSQL on this machine, or the template cannot be prepared.
    pub fn database(&self) -> Database {
        let template = self.name.get_or_init(|| self.build());
        let name = unique_name("test");
        cluster()
            .create_database_from(&name, template)
            .expect("copying the template");
        Database { name }
    }

    fn build(&self) -> String {
        let name = unique_name("template");
        cluster()
            .create_database(&name)
            .expect("creating the template");
        let database = Database { name };
        let prepare = self.prepare;
        // A thread of its own, since the caller may be inside a runtime already.
        thread::scope(|scope| {
            let preparation = scope.spawn(|| {
                runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("starting a runtime")
                    .block_on(prepare(&database));
            });
            preparation
                .join()
                .unwrap_or_else(|panic| resume_unwind(panic));
        });
        database.into_template()
    }
}

/// Holds a database of the test's own, dropped with this handle, sessions or not.
#[derive(Debug)]
pub struct Database {
    name: String,
}

impl Database {
    /// Returns the URL to connect to.
    #[must_use]
    pub fn url(&self) -> String {
        cluster().url(&self.name)
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

    /// Runs SQL text over a connection of its own and returns the rows, a line each, columns separated by `|`.
    ///
    /// # Errors
    /// The server's message when a statement fails.
    pub fn run_sql(&self, sql: &str) -> Result<String, ClusterError> {
        cluster().run_sql(&self.name, sql)
    }

    /// Keeps the database for good and everybody out of it: one that is in use cannot be copied.
    fn into_template(mut self) -> String {
        let name = std::mem::take(&mut self.name);
        let close = format!(
            "ALTER DATABASE {name} ALLOW_CONNECTIONS false; \
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        );
        cluster()
            .run_sql("postgres", &close)
            .expect("closing the template");
        name
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            // A test that failed for another reason should say that one.
            _ = cluster().drop_database(&self.name);
        }
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

fn unique_name(kind: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    format!("{kind}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use tokio_postgres::NoTls;

    use super::*;

    static NUMBERS: Template = Template::new(|database| {
        Box::pin(async move {
            let (client, connection) = tokio_postgres::connect(&database.url(), NoTls)
                .await
                .unwrap();
            tokio::spawn(connection);
            let create = "CREATE TABLE numbers AS SELECT 7 AS n";
            client.batch_execute(create).await.unwrap();

            // A session that would outlast the preparation: the template has to become free all the same.
            let name = database.name().to_owned();
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
        static EMPTY: Template = Template::new(|_| Box::pin(async {}));
        let database = EMPTY.database();
        let present = format!(
            "SELECT count(*) FROM pg_database WHERE datname = '{}'",
            database.name()
        );
        assert_eq!(database.run_sql(&present).unwrap(), "1");
        drop(database);
        assert_eq!(cluster().run_sql("postgres", &present).unwrap(), "0");
    }

    #[test]
    #[should_panic(expected = "no such table")]
    fn failed_preparation_fails_the_test() {
        static BROKEN: Template = Template::new(|_| Box::pin(async { panic!("no such table") }));
        BROKEN.database();
    }
}
