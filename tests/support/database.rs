//! A fresh database for each test, and what tests ask of it, whatever its engine.

#![allow(
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "a test whose database cannot be prepared or asked has failed"
)]

pub mod postgres;
pub mod sqlite;

use std::{
    fs,
    panic::resume_unwind,
    path::{Path, PathBuf},
    pin::Pin,
    process,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{runtime, task::spawn_blocking, time::sleep};

/// Holds a database of the test's own, dropped with this handle, sessions or not.
#[derive(Debug)]
pub struct Database<E> {
    engine: Arc<E>,
    folder: PathBuf,
}

/// One kind of database server, or library.
pub trait Engine: Sized + Send + Sync + 'static {
    /// The record table.
    const RECORDS: &'static str;
    /// The tables that the scripted handlers write.
    const TABLES: &'static str;
    /// Drops all tables of the framework's own.
    const DROP: &'static str;
    /// Makes all records expire a second ago.
    const EXPIRE: &'static str;
    /// Makes the record table refuse answers of status 201.
    const REFUSE_CREATED: &'static str;
    /// Makes all fingerprints those of a version that nobody knows.
    const OTHER_FINGERPRINT_VERSION: &'static str;

    /// Makes an empty database, which is gone when this is dropped. The folder, which is still to be made, is removed
    /// after it.
    fn create(name: &str, folder: &Path) -> Self;

    /// Makes a copy of a database that nobody uses any more.
    fn copy(original: &Self, name: &str, folder: &Path) -> Self;

    /// Ends whatever still uses the database, for good: it is only copied from now on.
    fn close(&self);

    /// Names it as a connection URL.
    fn url(&self) -> String;

    /// Runs SQL text over a connection of its own and returns the rows, a line each, columns separated by `|`.
    ///
    /// # Errors
    /// What the engine says when a statement fails.
    fn run_sql(&self, sql: &str) -> Result<String, String>;

    /// Writes a query for a column of bytes as text.
    fn text_of(column: &str) -> String;

    /// Writes an INSERT of this many records that have expired, and of others that live for an hour.
    fn insert_records(expired: usize, live: usize) -> String;

    /// Tells whether this many handlers sleep in Rust, their effect written.
    fn sleep_in_rust(&self, handlers: usize) -> bool;

    /// Tells what is left over: an open transaction, a lock, more connections than these.
    ///
    /// # Errors
    /// What it is.
    fn is_clean(&self, connections: usize) -> Result<(), String>;
}

/// How long a condition may take to come about, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(20);

impl<E: Engine> Database<E> {
    /// Makes an empty one.
    #[must_use]
    pub fn empty() -> Self {
        Self::made(E::create)
    }

    fn made(make: impl FnOnce(&str, &Path) -> E) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("idem-{}-{name}", process::id()));
        Self {
            engine: Arc::new(make(&name, &folder)),
            folder,
        }
    }

    /// What only this engine can do.
    #[must_use]
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// Returns the URL to connect to.
    #[must_use]
    pub fn url(&self) -> String {
        self.engine.url()
    }

    /// Names a file of the test's own, which is gone with the database.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        fs::create_dir_all(&self.folder).expect("a folder for the test");
        self.folder.join(name)
    }

    /// Runs SQL text over a connection of its own and returns the rows, a line each, columns separated by `|`.
    ///
    /// # Errors
    /// What the engine says when a statement fails.
    pub fn run_sql(&self, sql: &str) -> Result<String, String> {
        self.engine.run_sql(sql)
    }

    /// Runs SQL text while this thread does other things.
    ///
    /// # Panics
    /// When a statement fails.
    pub async fn run_sql_aside(&self, sql: String) -> String {
        let engine = Arc::clone(&self.engine);
        let run = spawn_blocking(move || engine.run_sql(&sql));
        run.await.expect("a thread").unwrap()
    }

    /// How many effects there are.
    #[must_use]
    pub fn effects(&self) -> usize {
        self.count("effects")
    }

    /// How many records there are.
    #[must_use]
    pub fn records(&self) -> usize {
        self.count(E::RECORDS)
    }

    /// How many rows a table has.
    #[must_use]
    pub fn count(&self, table: &str) -> usize {
        let count = self.run_sql(&format!("SELECT count(*) FROM {table}"));
        count.unwrap().trim().parse().unwrap()
    }

    /// Reads a column of the records that holds bytes, as text.
    #[must_use]
    pub fn stored(&self, column: &str) -> String {
        self.run_sql(&E::text_of(column)).unwrap()
    }

    /// Returns how many handlers have begun to run in processes of their own, undone work included.
    #[must_use]
    pub fn begun(&self) -> usize {
        fs::read(self.begun_file()).map_or(0, |begun| begun.len())
    }

    /// The file to which a service in a process of its own adds a byte for each execution.
    #[must_use]
    pub fn begun_file(&self) -> PathBuf {
        self.file("begun")
    }

    /// Waits until a query brings what is expected.
    ///
    /// # Panics
    /// When that takes longer than any machine needs.
    pub async fn until(&self, query: &str, expected: &str) {
        until(|| {
            let found = self.run_sql(query).expect("the condition's query");
            let wrong = || format!("waited for {expected}, found {found}: {query}");
            (found == expected).then_some(()).ok_or_else(wrong)
        })
        .await;
    }

    /// Waits until there are so many effects, or more.
    pub async fn until_effects(&self, least: usize) {
        self.until_count("effects", least).await;
    }

    /// Waits until there are so many records, or more.
    pub async fn until_records(&self, least: usize) {
        self.until_count(E::RECORDS, least).await;
    }

    async fn until_count(&self, table: &str, least: usize) {
        until(|| {
            let found = self.count(table);
            let wrong = || format!("waited for {least}, found {found} rows in {table}");
            (found >= least).then_some(()).ok_or_else(wrong)
        })
        .await;
    }

    /// Waits until this many handlers sleep in Rust, their effect written.
    pub async fn until_asleep_in_rust(&self, handlers: usize) {
        until(|| {
            let asleep = self.engine.sleep_in_rust(handlers);
            let wrong = || format!("not {handlers} handlers are asleep");
            asleep.then_some(()).ok_or_else(wrong)
        })
        .await;
    }

    /// Checks that everything ends clean: no open transaction, no lock, and at most this many connections.
    pub async fn assert_clean(&self, connections: usize) {
        until(|| self.engine.is_clean(connections)).await;
    }
}

impl<E> Drop for Database<E> {
    fn drop(&mut self) {
        // A test that failed for another reason should say that one.
        _ = fs::remove_dir_all(&self.folder);
    }
}

/// Waits until a condition holds, and fails with what it said last.
///
/// # Panics
/// When that takes longer than any machine needs.
pub async fn until(holds: impl Fn() -> Result<(), String>) {
    let start = Instant::now();
    while let Err(wrong) = holds() {
        assert!(start.elapsed() < PATIENCE, "{wrong}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Prepares a database once, of which every test then gets a copy.
///
/// ```no_run
/// use idem_tests::database::{Template, postgres::Postgres};
///
/// static SHOP: Template<Postgres> = Template::new(|database| {
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
pub struct Template<E> {
    prepare: Prepare<E>,
    original: OnceLock<Database<E>>,
}

/// Fills the database that becomes the template.
pub type Prepare<E> = for<'a> fn(&'a Database<E>) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

impl<E: Engine> Template<E> {
    /// Takes what fills the template; it runs once a process, in a tokio runtime of its own.
    #[must_use]
    pub const fn new(prepare: Prepare<E>) -> Self {
        Self {
            prepare,
            original: OnceLock::new(),
        }
    }

    /// Creates a database that no other test sees.
    ///
    /// # Panics
    /// When the engine is not on this machine, or the template cannot be prepared.
    pub fn database(&self) -> Database<E> {
        let original = self.original.get_or_init(|| self.build());
        Database::made(|name, folder| E::copy(&original.engine, name, folder))
    }

    fn build(&self) -> Database<E> {
        let database = Database::empty();
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
        database.engine.close();
        database
    }
}
