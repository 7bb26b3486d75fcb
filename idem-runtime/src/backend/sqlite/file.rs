//! Whether the database's file is still the one that the connections have open.

use std::path::PathBuf;

use sqlx::SqliteConnection;

use super::error::store_error;
use crate::error::StoreError;

/// Remembers which file a path led to when the first connection was used.
///
/// A file that is deleted or replaced lives on for those who have it open, and takes their writes:
/// they would be committed, acknowledged, and gone with the process.
#[derive(Debug)]
pub(super) struct File {
    /// None for a database in memory, and where the system does not let open files go.
    known: Option<(PathBuf, Identity)>,
}

/// Device and number of a file.
type Identity = (u64, u64);

impl File {
    /// Looks which file a connection has open.
    pub(super) async fn of(connection: &mut SqliteConnection) -> Result<Self, StoreError> {
        let file = sqlx::query_scalar::<_, String>(include_str!("sql/file.sql"));
        let path = file.fetch_one(connection).await;
        let path = PathBuf::from(path.map_err(|error| store_error(&error))?);
        if path.as_os_str().is_empty() {
            return Ok(Self { known: None });
        }
        match identity(&path) {
            Ok(identity) => Ok(Self {
                known: identity.map(|identity| (path, identity)),
            }),
            Err(_) => Err(gone()),
        }
    }

    /// Checks that the path still leads to the same file: one system call, no round trip.
    ///
    /// # Errors
    ///
    /// When it leads to another one, or nowhere.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match &self.known {
            Some((path, known)) if identity(path).ok().flatten() != Some(*known) => Err(gone()),
            _ => Ok(()),
        }
    }
}

fn gone() -> StoreError {
    StoreError::Unreachable(
        "the database file was deleted or replaced while the service has it open, and what is \
         written now would be lost: put it back, or restart the service"
            .to_owned(),
    )
}

#[cfg(unix)]
fn identity(path: &std::path::Path) -> std::io::Result<Option<Identity>> {
    use std::os::unix::fs::MetadataExt;

    let file = path.metadata()?;
    Ok(Some((file.dev(), file.ino())))
}

/// Elsewhere a file that is open can be neither deleted nor replaced.
#[cfg(not(unix))]
fn identity(_: &std::path::Path) -> std::io::Result<Option<Identity>> {
    Ok(None)
}
