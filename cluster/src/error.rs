//! What can go wrong with a throwaway cluster, in sentences that say what to do about it.

use std::io;
use std::path::PathBuf;

/// Tells why a cluster could not be started, or did not do what was asked of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// No folder with the server's programs was found.
    #[error(
        "PostgreSQL's server is not installed: run `apt-get install postgresql` on Debian, `dnf install postgresql-server` \
         on Fedora or `brew install postgresql@17` on macOS, or point PG_BIN at the folder that holds `initdb`"
    )]
    NotInstalled,
    /// Only servers before version 14 were found.
    #[error("PostgreSQL 14 or newer is needed, but {} holds version {version}", .folder.display())]
    TooOld {
        /// The folder of the newest programs found.
        folder: PathBuf,
        /// Their major version.
        version: u32,
    },
    /// Root may not run the server, and there is nobody to hand it to.
    #[error(
        "PostgreSQL refuses to run as root and there is no user `postgres` to run it: `useradd --system postgres` makes one"
    )]
    NoServerUser,
    /// The server, or the program that controls it, failed.
    #[error("PostgreSQL could not {action}; its log ends with:\n{log}")]
    Server {
        /// What was attempted, as a verb phrase.
        action: &'static str,
        /// The last lines of the log.
        log: String,
    },
    /// A client program ended with an error.
    #[error("{program} failed: {message}")]
    Client {
        /// The program's name.
        program: &'static str,
        /// What it wrote to its standard error.
        message: String,
    },
    /// The operating system refused something.
    #[error("could not {action}: {source}")]
    Io {
        /// What was attempted, as a verb phrase.
        action: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
}

impl ClusterError {
    pub(crate) fn io(action: &'static str, source: io::Error) -> Self {
        Self::Io { action, source }
    }
}
