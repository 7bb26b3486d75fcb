//! The record table: its migrations, and the check that it is there.

use deadpool_postgres::{Client, Pool};
use scopeguard::ScopeGuard;
use tokio_postgres::{Error, error::SqlState};

use super::{
    Shared,
    error::{pool_error, store_error},
    tx::guarded,
};
use crate::error::StoreError;

/// The migrations of the record table, in order, for people with a migration tool of their own.
///
/// Each creates what is missing in the schema `idem` and adds its number to `idem.migrations`.
/// For another schema, replace the word `idem` in them. Within a release line they only add.
/// [`Idempotency::migrate`](crate::Idempotency::migrate) applies those that are missing.
pub const MIGRATIONS: &[&str] = &[include_str!("migrations/0001_records.sql")];

/// Serialises the migrations of several instances: "idem" in ASCII.
const MIGRATION_LOCK: i64 = 0x6964_656d;

/// Applies the migrations that are missing.
pub(super) async fn migrate(tx: &Client, schema: &str) -> Result<(), Error> {
    let lock = "SELECT pg_catalog.pg_advisory_xact_lock($1)";
    tx.execute(lock, &[&MIGRATION_LOCK]).await?;
    let table = format!("{schema}.migrations");
    let there = "SELECT pg_catalog.to_regclass($1) IS NOT NULL";
    let applied: i32 = if tx.query_one(there, &[&table]).await?.get(0) {
        let newest = in_schema(include_str!("sql/newest.sql"), schema);
        tx.query_one(&newest, &[]).await?.get(0)
    } else {
        0
    };
    let missing = MIGRATIONS
        .iter()
        .skip(usize::try_from(applied).unwrap_or_default());
    for migration in missing {
        tx.batch_execute(&in_schema(migration, schema)).await?;
    }
    Ok(())
}

/// Checks what the protocol relies on, and says what to do where it is missing.
pub(super) async fn verify(pool: &Pool, shared: &Shared) -> Result<(), StoreError> {
    let client = guarded(pool.get().await.map_err(pool_error)?);
    let rows = shared
        .verify
        .query(&client, &[])
        .await
        .map_err(|error| store_error(&error))?;
    let Some(row) = rows.first() else {
        return Err(StoreError::Corrupt("the server brought no row".to_owned()));
    };
    let refused = |what: &str| Err(StoreError::Refused(what.to_owned()));
    if row.get::<_, i32>("server") < 140_000 {
        return refused("this server is older than PostgreSQL 14");
    }
    if row.get("standby") {
        return refused("this server is a standby: connect to the primary");
    }
    if !row.get::<_, bool>("allowed") {
        return refused("the role may not SELECT, INSERT and DELETE on the record table: GRANT it");
    }
    let version = row.get::<_, Option<i32>>("version").unwrap_or_default();
    if usize::try_from(version).unwrap_or_default() < MIGRATIONS.len() {
        return Err(StoreError::Schema(format!(
            "the record table has version {version}"
        )));
    }
    if row.get::<_, &str>("synchronous_commit") == "off" {
        tracing::warn!(
            "synchronous_commit is off: a crash of the server may lose the last acknowledged \
             commits, effect and record together"
        );
    }
    shared
        .statements
        .on(&client)
        .await
        .map_err(|error| store_error(&error))?;
    drop(ScopeGuard::into_inner(client));
    if !shared.statements.are_cached() || pool.status().max_size < 2 {
        return Ok(()); // Nothing to compare.
    }
    verify_statement_mode(pool).await
}

/// Notices a pooler that hands the server's end of a connection to somebody else between two
/// transactions, while the statement mode counts on prepared statements staying there.
async fn verify_statement_mode(pool: &Pool) -> Result<(), StoreError> {
    let (Ok(one), Ok(two)) = (pool.get().await, pool.get().await) else {
        return Ok(()); // Others need them more.
    };
    let (one, two) = (guarded(one), guarded(two));
    let probe = async {
        let prepared = one.prepare_cached("SELECT 1").await?;
        // `two` takes the server's end that `one` has just prepared on.
        two.batch_execute("BEGIN").await?;
        two.simple_query("SELECT 1").await?;
        let probed = one.query(&prepared, &[]).await;
        two.batch_execute("ROLLBACK").await?;
        probed
    };
    match probe.await {
        Ok(_) => {
            drop((ScopeGuard::into_inner(one), ScopeGuard::into_inner(two)));
            Ok(())
        }
        Err(error) if error.code() == Some(&SqlState::INVALID_SQL_STATEMENT_NAME) => {
            Err(StoreError::Refused(
                "prepared statements get lost on the way, so a pooler in transaction mode stands \
                 between: build with `.statements(StatementMode::Unnamed)`"
                    .to_owned(),
            ))
        }
        Err(error) => Err(store_error(&error)),
    }
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
