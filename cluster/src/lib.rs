//! A private PostgreSQL cluster that lives exactly as long as its owner: the handle and what can be asked of it.
//!
//! [`Cluster::start`] makes a new cluster from the PostgreSQL server installed on this machine, in a folder of its own
//! and on a free port of the loopback interface. Dropping the handle stops the server and removes the folder. The
//! same happens when the owning process ends in any other way, `SIGKILL` included: a small guardian process notices.
//!
//! ```no_run
//! # fn main() -> Result<(), idem_cluster::ClusterError> {
//! let cluster = idem_cluster::Cluster::start()?;
//! cluster.create_database("shop")?;
//! assert_eq!(cluster.run_sql("shop", "SELECT 1 + 1")?, "2");
//! println!("{}", cluster.url("shop"));
//! # Ok(())
//! # }
//! ```
//!
//! Everybody who can reach the loopback interface may connect as superuser. Unix only.

mod builder;
mod error;
mod folder;
mod guardian;
mod programs;

use std::path::PathBuf;

pub use builder::Builder;
pub use error::ClusterError;
use folder::Folder;
use guardian::{Errand, Guardian};
use programs::Programs;

/// Runs a PostgreSQL cluster that nobody else uses, and removes it when dropped.
#[derive(Debug)]
pub struct Cluster {
    // Dropped first: the guardian stops the server before the folder goes.
    guardian: Guardian,
    folder: Folder,
    programs: Programs,
    port: u16,
}

impl Cluster {
    /// Starts a cluster with the default settings, in the system's temporary folder.
    ///
    /// # Errors
    /// See [`Builder::start`].
    pub fn start() -> Result<Self, ClusterError> {
        Self::builder().start()
    }

    /// Prepares a cluster with settings of its own.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Names a database of this cluster as a connection URL; the database need not exist yet.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Returns the port on 127.0.0.1 at which the server listens; it stays the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the server's data folder, which holds `postmaster.pid` while it runs.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.folder.data()
    }

    /// Creates an empty database.
    ///
    /// # Errors
    /// [`ClusterError::Client`] when it exists already or the server is down.
    pub fn create_database(&self, name: &str) -> Result<(), ClusterError> {
        self.create_database_from(name, "template0")
    }

    /// Creates a database as a copy of another one, to which nobody may be connected.
    ///
    /// # Errors
    /// [`ClusterError::Client`] when it exists already, the template is missing or in use, or the server is down.
    pub fn create_database_from(&self, name: &str, template: &str) -> Result<(), ClusterError> {
        self.client("createdb", &["--template", template, "--", name])
            .map(drop)
    }

    /// Drops a database, ending the sessions that still use it.
    ///
    /// # Errors
    /// [`ClusterError::Client`] when there is no such database or the server is down.
    pub fn drop_database(&self, name: &str) -> Result<(), ClusterError> {
        self.client("dropdb", &["--force", "--", name]).map(drop)
    }

    /// Runs SQL text through psql and returns what it answers: a row a line, columns separated by `|`.
    ///
    /// Several statements run in one transaction, unless the text holds transaction commands of its own.
    ///
    /// # Errors
    /// [`ClusterError::Client`] with the server's message when a statement fails.
    pub fn run_sql(&self, database: &str, sql: &str) -> Result<String, ClusterError> {
        self.client(
            "psql",
            &[
                "--no-psqlrc",
                "--quiet",
                "--tuples-only",
                "--no-align",
                "--set=ON_ERROR_STOP=1",
                "--dbname",
                database,
                "--command",
                sql,
            ],
        )
    }

    /// Stops the server in an orderly way, ending all sessions; the data stay.
    ///
    /// # Errors
    /// [`ClusterError::Server`] when it is not running or does not end in time.
    pub fn stop_server(&self) -> Result<(), ClusterError> {
        self.errand(Errand::Stop)
    }

    /// Stops the server as a crash would, without a checkpoint: the next start recovers from the write-ahead log.
    ///
    /// # Errors
    /// [`ClusterError::Server`] when it is not running or does not end in time.
    pub fn crash_server(&self) -> Result<(), ClusterError> {
        self.errand(Errand::Crash)
    }

    /// Starts a stopped server again, at the same port, and waits until it takes connections.
    ///
    /// # Errors
    /// [`ClusterError::Server`] when it is running already or does not come up in time.
    pub fn start_server(&self) -> Result<(), ClusterError> {
        self.errand(Errand::Start)
    }

    /// Stops the server and starts it again.
    ///
    /// # Errors
    /// As [`Cluster::stop_server`] and [`Cluster::start_server`].
    pub fn restart(&self) -> Result<(), ClusterError> {
        self.stop_server()?;
        self.start_server()
    }

    fn errand(&self, errand: Errand) -> Result<(), ClusterError> {
        self.guardian.send(errand, &self.folder)
    }

    fn client(&self, program: &'static str, arguments: &[&str]) -> Result<String, ClusterError> {
        let output = self
            .programs
            .command(program)
            .args(["--host=127.0.0.1", "--username=postgres", "--no-password"])
            .arg(format!("--port={}", self.port))
            .args(arguments)
            .output()
            .map_err(|source| ClusterError::io("run a client program", source))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout)
                .trim_end()
                .to_owned())
        } else {
            Err(ClusterError::Client {
                program,
                message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            })
        }
    }
}
