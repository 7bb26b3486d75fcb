//! The record table through sqlx: applying its migrations, and checking that it is there.

use sqlx::{Connection, Error, Executor, PgConnection, Row};

use super::{
    super::{
        error::{Failure, store_error},
        schema::{
            Facts, LOCK, LOST_STATEMENT, MIGRATION_LOCK, THERE, lost_statements, missing, newest,
        },
        within,
    },
    SqlxPostgres,
    statement::Statements,
};
use crate::error::StoreError;

/// Applies the migrations that are missing.
pub(super) async fn migrate(connection: &mut PgConnection, schema: &str) -> Result<(), StoreError> {
    let migrate = async {
        let lock = sqlx::query(LOCK).bind(MIGRATION_LOCK).persistent(false);
        lock.execute(&mut *connection).await?;
        let there = sqlx::query_scalar(THERE).bind(format!("{schema}.migrations"));
        let applied = if there.persistent(false).fetch_one(&mut *connection).await? {
            let newest = newest(schema);
            let newest = sqlx::query_scalar(&newest).persistent(false);
            newest.fetch_one(&mut *connection).await?
        } else {
            0
        };
        for migration in missing(applied, schema) {
            connection.execute(&*migration).await?;
        }
        Ok(())
    };
    let migrated: Result<(), Error> = migrate.await;
    migrated.map_err(|error| store_error(&Failure::from(&error)))
}

/// Checks what the protocol relies on, and says what to do where it is missing.
pub(super) async fn verify(backend: &SqlxPostgres) -> Result<(), StoreError> {
    let statements = &backend.shared.statements;
    let mut connection = backend.connection().await?;
    let limit = backend.shared.settings.timeout;
    match within(limit, facts(&mut connection, statements)).await {
        Ok(facts) => facts.verify()?,
        Err(error) => {
            // An answer may still be on its way to it.
            connection.close_on_drop();
            return Err(error);
        }
    }
    drop(connection);
    if !statements.are_cached() || backend.pool.options().get_max_connections() < 2 {
        return Ok(()); // Nothing to compare.
    }
    verify_statement_mode(backend).await
}

async fn facts(
    connection: &mut PgConnection,
    statements: &Statements,
) -> Result<Facts, StoreError> {
    let facts = async {
        // An unnamed statement takes two trips, between which a pooler leaves only a transaction alone.
        let mut transaction = connection.begin().await?;
        let row = statements.verify.query().fetch_one(&mut *transaction);
        let row = row.await?;
        transaction.rollback().await?;
        Ok(Facts {
            server: row.try_get("server")?,
            standby: row.try_get("standby")?,
            synchronous_commit: row.try_get("synchronous_commit")?,
            allowed: row.try_get("allowed")?,
            version: row.try_get("version")?,
        })
    };
    let facts: Result<Facts, Error> = facts.await;
    facts.map_err(|error| store_error(&Failure::from(&error)))
}

/// Notices a pooler that hands the server's end of a connection to somebody else between two
/// transactions, while the statement mode counts on prepared statements staying there.
async fn verify_statement_mode(backend: &SqlxPostgres) -> Result<(), StoreError> {
    let (Ok(mut one), Ok(mut two)) = (backend.connection().await, backend.connection().await)
    else {
        return Ok(()); // Others need them more.
    };
    // A connection that has lost a statement, or waits for an answer, is of no use to anybody.
    one.close_on_drop();
    two.close_on_drop();
    let probe = async {
        let prepared = "SELECT 1";
        sqlx::query(prepared).execute(&mut *one).await?;
        // `two` takes the server's end that `one` has just prepared on.
        let two = two.begin().await?;
        let probed = sqlx::query(prepared).execute(&mut *one).await;
        two.rollback().await?;
        probed
    };
    let probe = async {
        let probed = probe.await;
        probed.map_err(|error: Error| match Failure::from(&error) {
            Failure::Server(refusal) if refusal.code == LOST_STATEMENT => lost_statements(),
            failure => store_error(&failure),
        })
    };
    within(backend.shared.settings.timeout, probe)
        .await
        .map(drop)
}
