//! The record table: its migrations, and what it and the server have to be like.

use super::error::GRANTS;
use crate::error::StoreError;

/// The migrations of the record table, in order, for people with a migration tool of their own.
///
/// Each is to be run once, and adds its number to `idem.migrations`. They work in the schema `idem`;
/// for another one, replace the word `idem` in them. Within a release line they only add.
/// [`Idempotency::migrate`](crate::Idempotency::migrate) applies those that are missing.
pub const MIGRATIONS: &[&str] = &[include_str!("migrations/0001_records.sql")];

/// Waits until no other instance migrates; its parameter is [`MIGRATION_LOCK`].
pub(super) const LOCK: &str = "SELECT pg_catalog.pg_advisory_xact_lock($1)";

/// Serialises the migrations of several instances: "idem" in ASCII.
pub(super) const MIGRATION_LOCK: i64 = 0x6964_656d;

/// Tells whether a table is there.
pub(super) const THERE: &str = "SELECT pg_catalog.to_regclass($1) IS NOT NULL";

/// The statement that tells the newest migration that was applied.
pub(super) fn newest(schema: &str) -> String {
    in_schema(include_str!("sql/newest.sql"), schema)
}

/// The migrations that are missing, as they are to be sent.
pub(super) fn missing(applied: i32, schema: &str) -> impl Iterator<Item = String> {
    let missing = MIGRATIONS
        .iter()
        .skip(usize::try_from(applied).unwrap_or_default());
    missing.map(move |migration| in_schema(migration, schema))
}

/// Holds what `verify.sql` tells.
pub(super) struct Facts {
    pub(super) server: i32,
    pub(super) standby: bool,
    pub(super) synchronous_commit: String,
    pub(super) allowed: bool,
    pub(super) version: Option<i32>,
}

impl Facts {
    /// Checks what the protocol relies on, and says what to do where it is missing.
    pub(super) fn verify(&self) -> Result<(), StoreError> {
        let refused = |what: &str| Err(StoreError::Refused(what.to_owned()));
        if self.server < 140_000 {
            return refused("this server is older than PostgreSQL 14");
        }
        if self.standby {
            return refused("this server is a standby: connect to the primary");
        }
        if !self.allowed {
            return refused(&format!("the role may not do what records need: {GRANTS}"));
        }
        let version = self.version.unwrap_or_default();
        if usize::try_from(version).unwrap_or_default() < MIGRATIONS.len() {
            return Err(StoreError::Schema(format!(
                "the record table has version {version}"
            )));
        }
        if self.synchronous_commit == "off" {
            tracing::warn!(
                "synchronous_commit is off: a crash of the server may lose the last acknowledged \
                 commits, effect and record together"
            );
        }
        Ok(())
    }
}

/// The SQLSTATE of a statement that was prepared elsewhere.
pub(super) const LOST_STATEMENT: &str = "26000";

/// Says that the statement mode does not fit what stands between.
pub(super) fn lost_statements() -> StoreError {
    StoreError::Refused(
        "prepared statements get lost on the way, so a pooler in transaction mode stands between: \
         build with `.statements(StatementMode::Unnamed)`"
            .to_owned(),
    )
}

/// Puts a statement into a schema, and takes its comments off.
pub(super) fn in_schema(sql: &str, schema: &str) -> String {
    let code = sql
        .lines()
        .map(|line| line.split("--").next().unwrap_or_default().trim_end());
    let mut text = code
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("\n");
    if schema != "idem" {
        let quoted = format!("\"{schema}\"");
        text = text
            .replace("idem.", &format!("{quoted}."))
            .replace("EXISTS idem;", &format!("EXISTS {quoted};"));
    }
    text
}

/// Whether a schema's name is plain enough to stand in statements.
pub(super) fn is_valid_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (1..=63).contains(&name.len())
        && name.bytes().all(plain)
        && !name.starts_with(|first: char| first.is_ascii_digit())
}

/// Tells the locks of one schema from those of another (FNV-1a; zero for the default).
pub(super) fn lock_salt(schema: &str) -> i64 {
    if schema == "idem" {
        return 0;
    }
    schema
        .bytes()
        .fold(-0x340d_631b_7bdd_dcdb, |hash: i64, byte| {
            (hash ^ i64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_go_into_the_schema_without_their_comments() {
        let text = in_schema(
            "-- idem.records\nSELECT 1 -- why\n  FROM idem.records\n",
            "pay",
        );
        assert_eq!(text, "SELECT 1\n  FROM \"pay\".records");
        assert_eq!(
            in_schema("SELECT 1 FROM idem.records", "idem"),
            "SELECT 1 FROM idem.records"
        );
        for migration in MIGRATIONS {
            let text = in_schema(migration, "pay");
            assert!(!text.contains("idem"), "{text}");
        }
    }

    #[test]
    fn only_plain_identifiers_name_a_schema() {
        for name in ["idem", "_x", "a1", &"a".repeat(63)] {
            assert!(is_valid_name(name), "{name}");
        }
        for name in ["", "1a", "Idem", "a-b", "a\"b", "a.b", "ä", &"a".repeat(64)] {
            assert!(!is_valid_name(name), "{name}");
        }
    }
}
