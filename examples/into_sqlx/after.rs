//! A payments service on sqlx, before and after: in `before.rs` a client that asks twice pays twice, in `after.rs` once.
//! The README shows the difference.
//!
//! `DATABASE_URL` names the PostgreSQL database.

use std::{env, error::Error, time::Duration};

use actix_web::{
    App, FromRequest, HttpRequest, HttpResponse, HttpServer,
    dev::Payload,
    error::{ErrorInternalServerError, ErrorPaymentRequired, ErrorUnauthorized},
    http::header,
    post, web,
};
use idem_runtime::{Idempotency, idempotent};
use serde::Deserialize;
use sqlx::{PgConnection, PgPool, query, query_scalar, raw_sql};

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS accounts (id text PRIMARY KEY, balance bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS payments (id bigserial PRIMARY KEY, payer text NOT NULL, amount bigint NOT NULL);
    INSERT INTO accounts VALUES ('acct_1', 1000000) ON CONFLICT DO NOTHING;";

struct Account {
    id: String,
}

#[derive(Deserialize)]
struct NewPayment {
    amount: i64,
}

#[post("/payments")]
#[idempotent(scope = account.id)]
async fn create_payment(
    account: Account,
    payment: web::Json<NewPayment>,
    tx: &mut PgConnection,
) -> actix_web::Result<HttpResponse> {
    let id: i64 = query_scalar("INSERT INTO payments (payer, amount) VALUES ($1, $2) RETURNING id")
        .bind(&account.id)
        .bind(payment.amount)
        .fetch_one(&mut *tx)
        .await
        .map_err(ErrorInternalServerError)?;
    let taken = query("UPDATE accounts SET balance = balance - $2 WHERE id = $1 AND balance >= $2")
        .bind(&account.id)
        .bind(payment.amount)
        .execute(&mut *tx)
        .await
        .map_err(ErrorInternalServerError)?;
    if taken.rows_affected() == 0 {
        return Err(ErrorPaymentRequired("not enough money"));
    }
    Ok(HttpResponse::Created().body(format!("payment {id}")))
}

impl FromRequest for Account {
    type Error = actix_web::Error;
    type Future = std::future::Ready<actix_web::Result<Self>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let header = request.headers().get(header::AUTHORIZATION);
        let id = header.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let id = id.ok_or_else(|| ErrorUnauthorized("say who you are"));
        std::future::ready(id.map(|id| Self { id: id.to_owned() }))
    }
}

#[actix_web::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let pool = PgPool::connect(&env::var("DATABASE_URL")?).await?;
    raw_sql(SCHEMA).execute(&pool).await?;
    let idempotency = Idempotency::new(pool.clone())?;
    idempotency.migrate().await?;
    let _sweeper = idempotency.sweep_every(Duration::from_secs(60));
    HttpServer::new(move || {
        App::new()
            .app_data(web::Data::new(idempotency.clone()))
            .service(create_payment)
    })
    .bind("127.0.0.1:8080")?
    .run()
    .await?;
    Ok(())
}
