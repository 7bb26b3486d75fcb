//! How a cluster comes to life: its settings, its folder, its first start at a port that nobody else holds.

use std::fs::OpenOptions;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::Cluster;
use crate::error::ClusterError;
use crate::folder::Folder;
use crate::guardian::{Errand, Guardian};
use crate::programs::Programs;

/// How many ports are tried before a start is given up.
const PORT_ATTEMPTS: usize = 8;

/// Settings of every cluster, ahead of the builder's own.
const SETTINGS: [(&str, &str); 4] = [
    ("listen_addresses", "127.0.0.1"),
    // A temporary folder's path may be longer than a socket's may be.
    ("unix_socket_directories", ""),
    ("fsync", "off"),
    ("full_page_writes", "off"),
];

/// Collects what is special about a cluster before it starts.
#[derive(Debug, Clone, Default)]
pub struct Builder {
    settings: Vec<(String, String)>,
    parent: Option<PathBuf>,
    /// The port of the server that this one is to follow.
    primary: Option<u16>,
}

impl Builder {
    /// Sets a line of `postgresql.conf`; the last one of a name counts.
    ///
    /// Without it `fsync` and `full_page_writes` are off: the data need not outlive the machine.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Puts the cluster's folder into `parent` instead of the system's temporary folder.
    ///
    /// For root, who hands the server to the user `postgres`, that user must be able to write there.
    #[must_use]
    pub fn within(mut self, parent: impl AsRef<Path>) -> Self {
        self.parent = Some(parent.as_ref().to_owned());
        self
    }

    /// Makes it a standby of another cluster, which has to run: a copy that follows it by streaming replication, until
    /// `SELECT pg_promote()` makes it a primary of its own.
    #[must_use]
    pub fn standby_of(mut self, primary: &Cluster) -> Self {
        self.primary = Some(primary.port());
        self
    }

    /// Creates the cluster, starts its server and waits until it takes connections.
    ///
    /// Removes first what owners that were killed together with their guardians left in the same parent folder.
    ///
    /// # Errors
    /// [`ClusterError::NotInstalled`] and [`ClusterError::TooOld`] say what to install, [`ClusterError::NoServerUser`]
    /// what root lacks; [`ClusterError::Server`] carries the end of the server's log.
    pub fn start(self) -> Result<Cluster, ClusterError> {
        let programs = Programs::find()?;
        let parent = self.parent.unwrap_or_else(std::env::temp_dir);
        let folder = Folder::create(&parent)?;
        for abandoned in folder.abandoned_beside() {
            drop(Guardian::spawn(&abandoned, &programs)?);
        }
        let guardian = Guardian::spawn(&folder, &programs)?;
        let mut cluster = Cluster {
            guardian,
            folder,
            programs,
            port: 0,
        };
        cluster.errand(self.primary.map_or(Errand::Create, Errand::Copy))?;
        for (name, value) in SETTINGS {
            configure(&cluster, name, value)?;
        }
        for (name, value) in &self.settings {
            configure(&cluster, name, value)?;
        }
        start_at_free_port(&mut cluster)?;
        Ok(cluster)
    }
}

/// Starts the server at the first port that is free: whether one is, only the server's own attempt can tell.
fn start_at_free_port(cluster: &mut Cluster) -> Result<(), ClusterError> {
    let mut started = Ok(());
    for _ in 0..PORT_ATTEMPTS {
        cluster.port = random_port();
        configure(cluster, "port", &cluster.port.to_string())?;
        started = cluster.start_server();
        let taken = matches!(&started, Err(ClusterError::Server { log, .. }) if log.contains("could not bind"));
        if !taken {
            break;
        }
    }
    started
}

fn configure(cluster: &Cluster, name: &str, value: &str) -> Result<(), ClusterError> {
    let quoted = value.replace('\\', r"\\").replace('\'', "''");
    OpenOptions::new()
        .append(true)
        .open(cluster.data_dir().join("postgresql.conf"))
        .and_then(|mut file| writeln!(file, "{name} = '{quoted}'"))
        .map_err(|source| ClusterError::io("write postgresql.conf", source))
}

/// Picks a port below the ranges from which systems serve outgoing connections, so that none takes it during a restart.
fn random_port() -> u16 {
    let [.., high, low] = RandomState::new().hash_one(()).to_be_bytes();
    10_240 + u16::from_be_bytes([high, low]) % 22_000
}
