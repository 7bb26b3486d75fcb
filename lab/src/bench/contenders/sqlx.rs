//! Those on sqlx's PostgreSQL pool.

use actix_web::{HttpResponse, post, web};
use idem_runtime::idempotent;
use sqlx::{PgConnection, PgPool, query, query_scalar};

use super::{INSERT, NewPayment, Payment, UPDATE, failed, refused};

async fn pay(connection: &mut PgConnection, payment: &NewPayment) -> sqlx::Result<Payment> {
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
    pool: web::Data<PgPool>,
    payment: web::Json<NewPayment>,
) -> actix_web::Result<HttpResponse> {
    let mut transaction = pool.begin().await.map_err(failed)?;
    let paid = pay(&mut transaction, &payment).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(paid.answer())
}

#[post("/ours")]
#[idempotent(scope = global)]
async fn ours(
    payment: web::Json<NewPayment>,
    tx: &mut PgConnection,
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
