//! Applies the migrations through deadpool-postgres, and checks what the protocol relies on.

use deadpool_postgres::Client;
use scopeguard::ScopeGuard;
use tokio_postgres::Error;

use super::{
    super::{
        schema::{
            Facts, LOCK, LOST_STATEMENT, MIGRATION_LOCK, THERE, lost_statements, missing, newest,
        },
        within,
    },
    Postgres, Shared,
    error::store_error,
    tx::guarded,
};
use crate::error::StoreError;

/// Applies the migrations that are missing.
pub(super) async fn migrate(tx: &Client, schema: &str) -> Result<(), StoreError> {
    let migrate = async {
        tx.execute(LOCK, &[&MIGRATION_LOCK]).await?;
        let table = format!("{schema}.migrations");
        let applied = if tx.query_one(THERE, &[&table]).await?.get(0) {
            tx.query_one(&newest(schema), &[]).await?.get(0)
        } else {
            0
        };
        for migration in missing(applied, schema) {
            tx.batch_execute(&migration).await?;
        }
        Ok::<_, Error>(())
    };
    migrate.await.map_err(|error| store_error(&error))
}

/// Checks what the protocol relies on, and says what to do where it is missing.
pub(super) async fn verify(backend: &Postgres) -> Result<(), StoreError> {
    let shared = &backend.shared;
    let client = guarded(backend.connection().await?);
    within(shared.settings.timeout, verify_over(&client, shared)).await?;
    drop(ScopeGuard::into_inner(client));
    if !shared.statements.are_cached() || backend.pool.status().max_size < 2 {
        return Ok(()); // Nothing to compare.
    }
    verify_statement_mode(backend).await
}

async fn verify_over(client: &Client, shared: &Shared) -> Result<(), StoreError> {
    let rows = shared.verify.query(client, &[]).await;
    let rows = rows.map_err(|error| store_error(&error))?;
    let Some(row) = rows.first() else {
        return Err(StoreError::Corrupt("the server brought no row".to_owned()));
    };
    let facts = Facts {
        server: row.get("server"),
        standby: row.get("standby"),
        synchronous_commit: row.get("synchronous_commit"),
        allowed: row.get("allowed"),
        version: row.get("version"),
    };
    facts.verify()?;
    let prepared = shared.statements.on(client).await;
    prepared.map(drop).map_err(|error| store_error(&error))
}

/// Notices a pooler that hands the server's end of a connection to somebody else between two
/// transactions, while the statement mode counts on prepared statements staying there.
async fn verify_statement_mode(backend: &Postgres) -> Result<(), StoreError> {
    let (Ok(one), Ok(two)) = (backend.connection().await, backend.connection().await) else {
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
    let probe = async {
        probe.await.map_err(|error| match error.code() {
            Some(code) if code.code() == LOST_STATEMENT => lost_statements(),
            _ => store_error(&error),
        })
    };
    within(backend.shared.settings.timeout, probe).await?;
    drop((ScopeGuard::into_inner(one), ScopeGuard::into_inner(two)));
    Ok(())
}
