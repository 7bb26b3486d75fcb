//! Those on SQLite.

use actix_web::{HttpResponse, post, web};
use idem_runtime::idempotent;
use sqlx::{SqliteConnection, SqlitePool, query, query_scalar};

use super::{INSERT, NewPayment, Payment, UPDATE, failed, refused};

pub(crate) const SCHEMA: &str = "
    CREATE TABLE accounts (id integer PRIMARY KEY, balance integer NOT NULL);
    WITH RECURSIVE ids (id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM ids WHERE id < 999)
    INSERT INTO accounts SELECT id, 0 FROM ids;
    CREATE TABLE payments (id integer PRIMARY KEY, account integer NOT NULL, amount integer NOT NULL);";

async fn pay(connection: &mut SqliteConnection, payment: &NewPayment) -> sqlx::Result<Payment> {
    let id = query_scalar(INSERT)
        .bind(payment.account)
        .bind(payment.amount)
        .fetch_one(&mut *connection)
        .await?;
    query(UPDATE)
        .bind(payment.account)
        .bind(payment.amount)
        .execute(connection)
        .await?;
    Ok(Payment::of(id, payment))
}

#[post("/bare")]
async fn bare(
    pool: web::Data<SqlitePool>,
    payment: web::Json<NewPayment>,
) -> actix_web::Result<HttpResponse> {
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await.map_err(failed)?;
    let paid = pay(&mut transaction, &payment).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(paid.answer())
}

#[post("/ours")]
#[idempotent(scope = global)]
async fn ours(
    payment: web::Json<NewPayment>,
    tx: &mut SqliteConnection,
) -> actix_web::Result<HttpResponse> {
    let paid = pay(tx, &payment).await.map_err(failed)?;
    if payment.amount < 0 {
        return Ok(refused());
    }
    Ok(paid.answer())
}

pub(super) fn routes(app: &mut web::ServiceConfig) {
    app.service(bare).service(ours);
}
