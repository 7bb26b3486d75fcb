//! The cluster's folder: created under a lock that ends with its owner, so that abandoned ones can be told from living ones.

use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, lchown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::ClusterError;

const PREFIX: &str = "idem-cluster-";

/// How many lines of the log an error carries.
const LOG_TAIL: usize = 25;

/// How many new names are tried before the creation is given up.
const NAME_ATTEMPTS: usize = 8;

/// Holds a folder for this process, and removes what is left of it when dropped.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    server_user: Option<User>,
    // The kernel frees it when the process ends, however it ends.
    _lock: File,
}

/// Names who runs the server where this process, being root's, may not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct User {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

impl Folder {
    /// Creates a folder that only the user who will run the server may enter.
    pub(crate) fn create(parent: &Path) -> Result<Self, ClusterError> {
        let mut folder = Self::create_locked(parent)
            .map_err(|source| ClusterError::io("create the cluster's folder", source))?;
        if folder_owner(&folder.path) == Some(0) {
            let user = User::postgres().ok_or(ClusterError::NoServerUser)?;
            lchown(&folder.path, Some(user.user), Some(user.group)).map_err(|source| {
                ClusterError::io("hand the cluster's folder to `postgres`", source)
            })?;
            folder.server_user = Some(user);
        }
        Ok(folder)
    }

    /// Finds folders of the same user, in the same place, whose owners are gone and whose guardians did not clean up.
    pub(crate) fn abandoned_beside(&self) -> Vec<Self> {
        let owner = folder_owner(&self.path);
        let named_like_ours = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default();
            name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
        };
        self.path
            .parent()
            .and_then(|parent| fs::read_dir(parent).ok())
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(named_like_ours)
            // A stranger's folder, or a link to one, is not ours to remove.
            .filter(|path| folder_owner(path) == owner)
            .filter_map(|path| Self::lock(path, self.server_user))
            .collect()
    }

    fn create_locked(parent: &Path) -> io::Result<Self> {
        let parent = fs::canonicalize(parent)?;
        for _ in 0..NAME_ATTEMPTS {
            let path = parent.join(format!("{PREFIX}{:016x}", RandomState::new().hash_one(())));
            DirBuilder::new().mode(0o700).create(&path)?;
            // Another start that tidies up at this very moment may have locked and removed it: then a new name.
            if let Some(folder) = Self::lock(path, None) {
                return Ok(folder);
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    fn lock(path: PathBuf, server_user: Option<User>) -> Option<Self> {
        let lock = File::open(&path).ok()?;
        lock.try_lock().ok()?;
        let folder = Self {
            path,
            server_user,
            _lock: lock,
        };
        folder.path.exists().then_some(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    pub(crate) fn server_user(&self) -> Option<User> {
        self.server_user
    }

    /// Returns the last lines that the server and its tools wrote.
    pub(crate) fn log_tail(&self) -> String {
        let log = fs::read(self.path.join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines.len().saturating_sub(LOG_TAIL);
        lines.get(tail..).unwrap_or_default().join("\n")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Usually the guardian was here before.
        _ = fs::remove_dir_all(&self.path);
    }
}

impl User {
    fn postgres() -> Option<Self> {
        let ask = |option| {
            let output = Command::new("id")
                .args([option, "postgres"])
                .output()
                .ok()?;
            String::from_utf8_lossy(&output.stdout).trim().parse().ok()
        };
        Some(Self {
            user: ask("-u")?,
            group: ask("-g")?,
        })
    }
}

/// Tells who owns the folder itself, not what a link in its place points at; `None` where it is no folder.
fn folder_owner(path: &Path) -> Option<u32> {
    let metadata = fs::symlink_metadata(path).ok()?;
    metadata.is_dir().then(|| metadata.uid())
}
