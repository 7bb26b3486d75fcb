//! SQLite: a file for each test, looked at through connections of its own.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test whose database cannot be prepared has failed"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
    thread,
    time::Duration,
};

use sqlx::{
    ConnectOptions, Connection, Row, SqliteConnection, raw_sql,
    sqlite::{SqliteConnectOptions, SqliteRow},
};
use tokio::runtime;

use super::Engine;

/// A database file, in WAL mode once a pool has made it so.
#[derive(Debug)]
pub struct Sqlite {
    path: PathBuf,
    /// The file of a template, which needs no folder.
    bytes: OnceLock<Vec<u8>>,
}

/// Long enough for what only takes a moment, short for what sleeps.
const MOMENT: Duration = Duration::from_millis(100);

/// How long a test's own statement waits for a writer.
const PATIENCE: Duration = Duration::from_secs(20);

impl Engine for Sqlite {
    const RECORDS: &'static str = "idem_records";

    // `effects` has no unique constraint, so that a second effect shows.
    const TABLES: &'static str = "
        CREATE TABLE effects (id INTEGER PRIMARY KEY, scope TEXT, note TEXT);
        CREATE TABLE money (id TEXT PRIMARY KEY, amount INTEGER NOT NULL);
        CREATE TABLE parents (id INTEGER PRIMARY KEY);
        CREATE TABLE children (id INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED);";

    const DROP: &'static str = "DROP TABLE idem_records; DROP TABLE idem_migrations";

    const EXPIRE: &'static str = "UPDATE idem_records SET expires_at = unixepoch() * 1000 - 1000";

    const REFUSE_CREATED: &'static str = "CREATE TRIGGER refuse BEFORE INSERT ON idem_records WHEN NEW.status = 201 \
         BEGIN SELECT RAISE(ABORT, 'not this one'); END";

    const OTHER_FINGERPRINT_VERSION: &'static str = "UPDATE idem_records \
         SET fingerprint = CAST(x'09' || substr(fingerprint, 2) AS BLOB)";

    fn create(_: &str, folder: &Path) -> Self {
        fs::create_dir_all(folder).expect("a folder for the database");
        Self {
            path: folder.join("shop.db"),
            bytes: OnceLock::new(),
        }
    }

    fn copy(original: &Self, name: &str, folder: &Path) -> Self {
        let copy = Self::create(name, folder);
        let bytes = original.bytes.get().expect("a closed template");
        fs::write(&copy.path, bytes).expect("copying the template");
        copy
    }

    fn close(&self) {
        while let Err(left) = self.is_clean(0) {
            assert!(!left.is_empty());
            thread::sleep(MOMENT);
        }
        let bytes = fs::read(&self.path).expect("reading the template");
        self.bytes.set(bytes).expect("a template is closed once");
        let folder = self.path.parent().expect("a file in a folder");
        fs::remove_dir_all(folder).expect("removing the template's folder");
    }

    fn url(&self) -> String {
        self.path.to_str().expect("a path in UTF-8").to_owned()
    }

    fn run_sql(&self, sql: &str) -> Result<String, String> {
        self.run(sql, PATIENCE).map_err(|error| error.to_string())
    }

    fn text_of(column: &str) -> String {
        format!("SELECT CAST({column} AS TEXT) FROM idem_records")
    }

    fn insert_records(expired: usize, live: usize) -> String {
        format!(
            "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {expired} + {live})
             INSERT INTO idem_records
             SELECT 's', 'o', CAST(n AS TEXT), x'', x'01', 200, x'', x'', unixepoch() * 1000,
                    unixepoch() * 1000 + CASE WHEN n <= {expired} THEN -1000 ELSE 3600000 END
               FROM numbers"
        )
    }

    /// There is one writer at a time, and it holds the file from its claim on.
    fn sleep_in_rust(&self, handlers: usize) -> bool {
        assert!(handlers <= 1, "SQLite has one writer");
        self.is_being_written() == (handlers == 1)
    }

    fn is_clean(&self, connections: usize) -> Result<(), String> {
        if self.is_being_written() {
            return Err("a writer".to_owned());
        }
        let checkpoint = self.run("PRAGMA wal_checkpoint(TRUNCATE)", MOMENT);
        if !checkpoint.is_ok_and(|found| found.starts_with('0')) {
            return Err("a reader".to_owned());
        }
        match self.connections().saturating_sub(connections) {
            0 => Ok(()),
            surplus => Err(format!("{surplus} connections too many")),
        }
    }
}

impl Sqlite {
    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells whether another connection holds the file as its writer, for more than a moment.
    #[must_use]
    pub fn is_being_written(&self) -> bool {
        self.run("BEGIN IMMEDIATE; ROLLBACK", MOMENT).is_err()
    }

    /// Runs statements over a connection that waits this long for others.
    ///
    /// # Errors
    /// What SQLite says.
    pub fn run(&self, sql: &str, wait: Duration) -> Result<String, sqlx::Error> {
        self.with(wait, async |connection| {
            let rows = raw_sql(sql).fetch_all(connection).await?;
            let lines: Result<Vec<_>, _> = rows.iter().map(line).collect();
            Ok(lines?.join("\n"))
        })
    }

    /// Does something with a connection of its own, in a thread of its own: the caller may be inside a runtime.
    fn with<T: Send>(
        &self,
        wait: Duration,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, sqlx::Error> + Send,
    ) -> Result<T, sqlx::Error> {
        let options = SqliteConnectOptions::new()
            .filename(&self.path)
            .create_if_missing(true)
            .busy_timeout(wait)
            .disable_statement_logging();
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let runtime = runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("starting a runtime").block_on(async {
                    let mut connection = options.connect().await?;
                    let done = work(&mut connection).await;
                    connection.close().await?;
                    done
                })
            });
            thread.join().expect("a connection of the test's own")
        })
    }

    /// Counts the connections to the file, of all processes, where the system tells. Each has the log open for itself;
    /// the file itself may stay open for longer than its connection.
    fn connections(&self) -> usize {
        let log = self.path.with_extension("db-wal");
        let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
        let numbered = |entry: &fs::DirEntry| {
            let name = entry.file_name();
            name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
        };
        let processes = entries(Path::new("/proc")).filter(numbered);
        let files = processes.flat_map(|process| entries(&process.path().join("fd")));
        let open = files.filter_map(|file| fs::read_link(file.path()).ok());
        open.filter(|path| *path == log).count()
    }
}

fn line(row: &SqliteRow) -> Result<String, sqlx::Error> {
    let columns = (0..row.len()).map(|column| {
        // Whatever its type, SQLite has it as text.
        let value: Option<String> = row.try_get_unchecked(column)?;
        Ok(value.unwrap_or_default())
    });
    Ok(columns.collect::<Result<Vec<_>, sqlx::Error>>()?.join("|"))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Database, Template},
        *,
    };

    static NUMBERS: Template<Sqlite> = Template::new(|database| {
        Box::pin(async move {
            let create = "PRAGMA journal_mode = WAL; CREATE TABLE numbers AS SELECT 7 AS n, NULL";
            database.run_sql(create).unwrap();
        })
    });

    #[test]
    fn each_test_gets_its_own_copy_of_the_template() {
        let (one, two) = (NUMBERS.database(), NUMBERS.database());
        one.run_sql("UPDATE numbers SET n = 8").unwrap();
        assert_eq!(one.run_sql("SELECT * FROM numbers").unwrap(), "8|");
        assert_eq!(two.run_sql("SELECT * FROM numbers").unwrap(), "7|");
    }

    #[test]
    fn writer_reader_and_connection_are_noticed_until_they_have_gone() {
        let database = NUMBERS.database();
        let engine = database.engine();
        assert_eq!(
            (engine.is_clean(0), engine.sleep_in_rust(0)),
            (Ok(()), true)
        );
        for (begin, left) in [
            ("BEGIN IMMEDIATE", "a writer"),
            ("BEGIN; SELECT * FROM numbers", "a reader"),
            ("SELECT * FROM numbers", "1 connections too many"),
        ] {
            let other = engine.with(PATIENCE, async |connection| {
                // Something for a reader to hold up.
                engine.run_sql("UPDATE numbers SET n = n + 1").unwrap();
                raw_sql(begin).fetch_all(&mut *connection).await?;
                engine.run("UPDATE numbers SET n = n + 1", MOMENT).ok();
                assert_eq!(engine.is_clean(0), Err(left.to_owned()));
                assert_eq!(engine.is_being_written(), left == "a writer");
                Ok(())
            });
            other.unwrap();
            assert_eq!(engine.is_clean(0), Ok(()));
        }
    }

    #[test]
    fn file_is_gone_with_its_database() {
        let database = Database::<Sqlite>::empty();
        database.run_sql("CREATE TABLE t (n int)").unwrap();
        let path = database.engine().path().to_owned();
        assert!(path.exists());
        drop(database);
        assert!(!path.parent().unwrap().exists());
    }
}
