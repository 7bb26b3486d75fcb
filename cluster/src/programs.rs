//! Finds the installed PostgreSQL programs.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::ClusterError;

/// The oldest major version that will do.
const OLDEST: u32 = 14;

/// Folders in which package managers put one folder a version, and what follows below it.
const VERSIONED: [(&str, &str, &str); 5] = [
    ("/usr/lib/postgresql", "", "bin"),
    ("/usr", "pgsql-", "bin"),
    ("/opt/homebrew/opt", "postgresql", "bin"),
    ("/usr/local/opt", "postgresql", "bin"),
    ("/home/linuxbrew/.linuxbrew/opt", "postgresql", "bin"),
];

/// Locates the server's programs and the clients, of a version that will do.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// Looks at `PG_BIN` alone where it is set, else along `PATH`, else takes the newest of the usual places.
    pub(crate) fn find() -> Result<Self, ClusterError> {
        if let Some(folder) = env::var_os("PG_BIN") {
            return choose(versions([PathBuf::from(folder)]));
        }
        let path = env::var_os("PATH").unwrap_or_default();
        let mut found = versions(env::split_paths(&path));
        let mut installed = versions(usual_places());
        installed.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
        found.extend(installed);
        choose(found)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Prepares a call of one of the programs, shielded from the caller's own PostgreSQL settings.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.folder.join(program));
        shield(&mut command);
        command
    }
}

/// Takes `PGHOST`, `PGOPTIONS`, `PGSERVICE` and their like, meant for another server, out of a command's environment.
pub(crate) fn shield(command: &mut Command) {
    for (name, _) in env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"PG") {
            command.env_remove(name);
        }
    }
    // Messages are searched, and a server on macOS refuses to start under an unset locale.
    command.env("LC_ALL", "C");
}

/// Takes the first version that will do.
fn choose(found: Vec<(u32, PathBuf)>) -> Result<Programs, ClusterError> {
    let newest = found.iter().max_by_key(|(version, _)| *version).cloned();
    match (
        found.into_iter().find(|(version, _)| *version >= OLDEST),
        newest,
    ) {
        (Some((_, folder)), _) => Ok(Programs { folder }),
        (None, Some((version, folder))) => Err(ClusterError::TooOld { folder, version }),
        (None, None) => Err(ClusterError::NotInstalled),
    }
}

/// Asks the server in each folder for its version; folders without a whole installation fall out.
fn versions(folders: impl IntoIterator<Item = PathBuf>) -> Vec<(u32, PathBuf)> {
    let whole = |folder: &PathBuf| {
        ["initdb", "pg_ctl", "postgres", "psql", "createdb", "dropdb"]
            .iter()
            .all(|program| folder.join(program).is_file())
    };
    folders
        .into_iter()
        .filter(whole)
        .filter_map(|folder| {
            let output = Command::new(folder.join("postgres"))
                .arg("--version")
                .output()
                .ok()?;
            let version = major_version(&String::from_utf8_lossy(&output.stdout))?;
            Some((version, folder))
        })
        .collect()
}

fn usual_places() -> impl Iterator<Item = PathBuf> {
    VERSIONED.into_iter().flat_map(|(parent, prefix, below)| {
        fs::read_dir(parent)
            .into_iter()
            .flatten()
            .flatten()
            .filter(move |entry| starts_with(&entry.file_name(), prefix))
            .map(move |entry| entry.path().join(below))
    })
}

fn starts_with(name: &OsStr, prefix: &str) -> bool {
    name.as_encoded_bytes().starts_with(prefix.as_bytes())
}

/// Reads `postgres (PostgreSQL) 15.4 (Debian 15.4-1)` and `postgres (PostgreSQL) 18beta1`.
fn major_version(text: &str) -> Option<u32> {
    let (_, version) = text.split_once("(PostgreSQL) ")?;
    let digits = version
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(version.len());
    version.get(..digits)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_releases_and_betas() {
        for (text, version) in [
            ("postgres (PostgreSQL) 15.4 (Debian 15.4-1)\n", Some(15)),
            ("postgres (PostgreSQL) 18beta1\n", Some(18)),
            ("postgres (PostgreSQL) 9.6.24\n", Some(9)),
            ("something else", None),
        ] {
            assert_eq!(major_version(text), version, "{text}");
        }
    }

    #[test]
    fn first_version_that_will_do_is_taken() {
        let found = vec![(13, "/a".into()), (15, "/b".into()), (16, "/c".into())];
        assert_eq!(choose(found).unwrap().folder(), Path::new("/b"));
    }

    #[test]
    fn too_old_version_is_named() {
        let error = choose(vec![(9, "/a".into()), (13, "/b".into())]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "PostgreSQL 14 or newer is needed, but /b holds version 13"
        );
    }

    #[test]
    fn missing_installation_is_one_sentence_for_three_systems() {
        let text = choose(Vec::new()).unwrap_err().to_string();
        for part in ["apt-get install", "dnf install", "brew install", "PG_BIN"] {
            assert!(text.contains(part), "{part} is missing from: {text}");
        }
        assert!(!text.contains('\n'));
    }
}
