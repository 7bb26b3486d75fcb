//! Every type in which a transaction can be lent, at any position and under any pattern.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};
use sqlx::{
    Acquire, Executor, PgConnection, PgTransaction, Postgres, Sqlite, SqliteConnection,
    SqliteTransaction, Transaction,
};

type Answer = Result<String, actix_web::Error>;

#[idempotent(scope = account)]
async fn tokio_postgres(account: web::Path<String>, tx: &Tx) -> Answer {
    let _ = tx.batch_execute("SELECT 1").await;
    Ok(account.into_inner())
}

#[idempotent(scope = account)]
async fn postgres_connection(tx: &mut PgConnection, account: web::Path<String>) -> Answer {
    let _ = sqlx::query("SELECT 1").execute(&mut *tx).await;
    let _ = tx.execute("SELECT 1").await;
    Ok(account.into_inner())
}

#[idempotent(scope = account)]
async fn postgres_transaction(
    account: web::Path<String>,
    mut tx: &mut Transaction<'_, Postgres>,
) -> Answer {
    let _ = sqlx::query("SELECT 1").execute(&mut **tx).await;
    tx = in_part(tx).await;
    let _ = tx.begin().await;
    Ok(account.into_inner())
}

async fn in_part<'a, 'b>(
    tx: &'a mut Transaction<'b, Postgres>,
) -> &'a mut Transaction<'b, Postgres> {
    let _ = tx.execute("SELECT 1").await;
    tx
}

#[idempotent(scope = global)]
async fn postgres_alias(_tx: &mut PgTransaction<'_>) -> String {
    String::new()
}

#[idempotent(scope = account, isolation = "serializable")]
async fn sqlite_connection<T: serde::de::DeserializeOwned + 'static>(
    account: web::Path<String>,
    _body: web::Json<T>,
    tx: &mut SqliteConnection,
) -> Answer {
    let _ = tx.execute("SELECT 1").await;
    Ok(account.into_inner())
}

#[idempotent(scope = account)]
async fn sqlite_transaction(
    account: web::Path<String>,
    tx: &mut Transaction<'_, Sqlite>,
) -> Answer {
    let mut inner = tx.begin().await.map_err(actix_web::error::ErrorInternalServerError)?;
    let _ = inner.execute("SELECT 1").await;
    let _ = inner.commit().await;
    Ok(account.into_inner())
}

#[idempotent(scope = global)]
async fn sqlite_alias(_tx: &mut SqliteTransaction<'_>) -> String {
    String::new()
}

fn main() {
    let _ = actix_web::App::new()
        .route("/1", web::post().to(tokio_postgres))
        .route("/2", web::post().to(postgres_connection))
        .route("/3", web::post().to(postgres_transaction))
        .route("/4", web::post().to(postgres_alias))
        .route("/5", web::post().to(sqlite_connection::<String>))
        .route("/6", web::post().to(sqlite_transaction))
        .route("/7", web::post().to(sqlite_alias));
}
