//! The record table: its migrations, and the check that it is there.

use sqlx::{Executor, Row, SqliteConnection};

use super::error::store_error;
use crate::error::StoreError;

/// The migrations of the record table, in order, for people with a migration tool of their own.
///
/// Each is to be run once, and adds its number to `idem_migrations`. Within a release line
/// they only add. [`Idempotency::migrate`](crate::Idempotency::migrate) applies those that are
/// missing.
pub const MIGRATIONS: &[&str] = &[include_str!("migrations/0001_records.sql")];

/// The first release of SQLite that tells the time in milliseconds.
const OLDEST: (u32, u32) = (3, 42);

/// The value of `PRAGMA synchronous` at which each commit is on the disk when it is acknowledged.
const FULL: i64 = 2;

/// Applies the migrations that are missing, inside a transaction that can write.
pub(super) async fn migrate(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    let applied = newest(connection).await?;
    for migration in MIGRATIONS.iter().skip(applied) {
        let applied = connection.execute(*migration).await;
        applied.map_err(|error| store_error(&error))?;
    }
    Ok(())
}

/// Checks what the protocol relies on, and says what to do where it is missing.
pub(super) async fn verify(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    let row = sqlx::query(include_str!("sql/verify.sql")).fetch_one(&mut *connection);
    let row = row.await.map_err(|error| store_error(&error))?;
    let read = || {
        Ok((
            row.try_get::<String, _>("version")?,
            row.try_get::<String, _>("journal_mode")?,
            row.try_get::<i64, _>("synchronous")?,
        ))
    };
    let (version, journal_mode, synchronous) = read().map_err(|error| store_error(&error))?;
    if release(&version) < Some(OLDEST) {
        return Err(StoreError::Refused(format!(
            "this is SQLite {version}, and 3.42 is needed"
        )));
    }
    let applied = newest(connection).await?;
    if applied < MIGRATIONS.len() {
        return Err(StoreError::Schema(format!(
            "the record table has version {applied}"
        )));
    }
    // BEGIN IMMEDIATE passes over a file that cannot be written; this does not, and deletes nothing.
    let written = connection.execute("DELETE FROM idem_records WHERE 0").await;
    written.map_err(|error| store_error(&error))?;
    if journal_mode != "wal" {
        tracing::warn!(
            journal_mode,
            "the database is not in WAL mode, so reading and writing hold each other up: open the \
             pool with `idem_runtime::sqlite::pool`, or with `journal_mode(SqliteJournalMode::Wal)`"
        );
    }
    if synchronous < FULL {
        tracing::warn!(
            synchronous,
            "a power cut may lose the last acknowledged commits, effect and record together: \
             open the pool with `synchronous(SqliteSynchronous::Full)`"
        );
    }
    Ok(())
}

/// Tells how many migrations were applied.
///
/// # Errors
///
/// When there are more than this release knows: it would not know what they mean.
async fn newest(connection: &mut SqliteConnection) -> Result<usize, StoreError> {
    let newest = async {
        let there = sqlx::query_scalar::<_, bool>(include_str!("sql/there.sql"));
        if !there.fetch_one(&mut *connection).await? {
            return Ok(0);
        }
        let newest = sqlx::query_scalar::<_, i64>(include_str!("sql/newest.sql"));
        newest.fetch_one(&mut *connection).await
    };
    let newest = newest.await.map_err(|error| store_error(&error))?;
    let applied = usize::try_from(newest).unwrap_or_default();
    if applied > MIGRATIONS.len() {
        return Err(StoreError::Refused(format!(
            "the record table has version {applied}, and this release of idem-runtime knows up to \
             {}: run the release that made it, or a newer one",
            MIGRATIONS.len()
        )));
    }
    Ok(applied)
}

fn release(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_compare_by_number_and_not_by_text() {
        assert!(release("3.9.2") < Some(OLDEST));
        assert!(release("3.41.2") < Some(OLDEST));
        assert!(release("3.42.0") >= Some(OLDEST));
        assert!(release("3.100.0") > Some(OLDEST));
        assert!(release("unknown") < Some(OLDEST));
    }
}
