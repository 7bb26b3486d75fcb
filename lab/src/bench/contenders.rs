//! The contenders: one payment, written down in four ways, over one pool and one statement cache.

use actix_web::{HttpRequest, HttpResponse, Responder, error::ErrorInternalServerError, post, web};
use deadpool_postgres::{GenericClient, Pool, tokio_postgres};
use futures_util::future::join;
use idem_runtime::{idempotent, postgres::Tx};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The tables of the contenders. `by_hand` is the record table of those who write it themselves;
/// it has the same columns, key and index as the framework's.
pub(crate) const SCHEMA: &str = "
    CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL);
    INSERT INTO accounts SELECT id, 0 FROM generate_series(0, 999) AS id;
    CREATE TABLE payments (id bigserial PRIMARY KEY, account int NOT NULL, amount bigint NOT NULL);
    CREATE TABLE by_hand (LIKE idem.records INCLUDING ALL);
    ALTER TABLE by_hand ALTER status DROP NOT NULL, ALTER headers DROP NOT NULL,
                        ALTER body DROP NOT NULL, ALTER expires_at DROP NOT NULL;";

/// Their names, which are also their paths.
pub(crate) const NAMES: [&str; 4] = ["bare", "floor", "recipe", "ours"];

#[derive(Deserialize)]
struct NewPayment {
    account: i32,
    amount: i64,
}

#[derive(Serialize)]
struct Payment {
    id: i64,
    account: i32,
    amount: i64,
}

/// The business: two statements.
async fn pay(
    client: &impl GenericClient,
    payment: &NewPayment,
) -> Result<Payment, tokio_postgres::Error> {
    let NewPayment { account, amount } = *payment;
    let insert = "INSERT INTO payments (account, amount) VALUES ($1, $2) RETURNING id";
    let insert = client.prepare_cached(insert).await?;
    let id = client
        .query_one(&insert, &[&account, &amount])
        .await?
        .get(0);
    let update = "UPDATE accounts SET balance = balance + $2 WHERE id = $1";
    let update = client.prepare_cached(update).await?;
    client.execute(&update, &[&account, &amount]).await?;
    Ok(Payment {
        id,
        account,
        amount,
    })
}

/// The handler in a hand-written transaction, unprotected.
#[post("/bare")]
async fn bare(pool: web::Data<Pool>, payment: web::Json<NewPayment>) -> impl Responder {
    let mut client = pool.get().await.map_err(ErrorInternalServerError)?;
    let transaction = client
        .transaction()
        .await
        .map_err(ErrorInternalServerError)?;
    let paid = pay(&transaction, &payment)
        .await
        .map_err(ErrorInternalServerError)?;
    transaction
        .commit()
        .await
        .map_err(ErrorInternalServerError)?;
    Ok::<_, actix_web::Error>(HttpResponse::Created().json(paid))
}

const KEEP: &str = "INSERT INTO by_hand (scope, operation, key, request, fingerprint, status, headers, body, created_at, expires_at)
    VALUES ($1, 'POST /floor', $2, '', $3, 201, $4, $5, clock_timestamp(), clock_timestamp() + interval '24 h')";

/// `bare`, and the record's INSERT sent with COMMIT: what any exactly-once design must write.
#[post("/floor")]
async fn floor(
    pool: web::Data<Pool>,
    request: HttpRequest,
    payment: web::Json<NewPayment>,
) -> impl Responder {
    let key = key(&request)?;
    let client = pool.get().await.map_err(ErrorInternalServerError)?;
    let keep = client
        .prepare_cached(KEEP)
        .await
        .map_err(ErrorInternalServerError)?;
    client
        .batch_execute("BEGIN")
        .await
        .map_err(ErrorInternalServerError)?;
    let paid = pay(&client, &payment)
        .await
        .map_err(ErrorInternalServerError)?;
    let body = serde_json::to_vec(&paid)?;
    let (fingerprint, headers) = (
        [1_u8; 33].as_slice(),
        b"content-type: application/json\r\n".as_slice(),
    );
    let (kept, committed) = join(
        client.execute(&keep, &[&"acct", &key, &fingerprint, &headers, &body]),
        client.batch_execute("COMMIT"),
    )
    .await;
    kept.map_err(ErrorInternalServerError)?;
    committed.map_err(ErrorInternalServerError)?;
    Ok::<_, actix_web::Error>(HttpResponse::Created().json(paid))
}

const RESERVE: &str =
    "INSERT INTO by_hand (scope, operation, key, request, fingerprint, created_at)
    VALUES ($1, 'POST /recipe', $2, '', $3, clock_timestamp()) ON CONFLICT DO NOTHING";
const FILL: &str = "UPDATE by_hand SET status = 201, headers = $3, body = $4, expires_at = clock_timestamp() + interval '24 h'
    WHERE scope = $1 AND operation = 'POST /recipe' AND key = $2 AND request = ''";

/// The well-known recipe: insert the key, do the work, update the row, commit, a round trip each.
#[post("/recipe")]
async fn recipe(pool: web::Data<Pool>, request: HttpRequest, body: web::Bytes) -> impl Responder {
    let key = key(&request)?;
    let fingerprint = Sha256::digest(&body).to_vec();
    let payment = serde_json::from_slice(&body)?;
    let mut client = pool.get().await.map_err(ErrorInternalServerError)?;
    let transaction = client
        .transaction()
        .await
        .map_err(ErrorInternalServerError)?;
    let recorded = async {
        let reserve = transaction.prepare_cached(RESERVE).await?;
        transaction
            .execute(&reserve, &[&"acct", &key, &fingerprint])
            .await?;
        let paid = pay(&transaction, &payment).await?;
        let body = serde_json::to_vec(&paid).unwrap_or_default();
        let headers = b"content-type: application/json\r\n".as_slice();
        let fill = transaction.prepare_cached(FILL).await?;
        transaction
            .execute(&fill, &[&"acct", &key, &headers, &body])
            .await?;
        Ok::<_, tokio_postgres::Error>(paid)
    };
    let paid = recorded.await.map_err(ErrorInternalServerError)?;
    transaction
        .commit()
        .await
        .map_err(ErrorInternalServerError)?;
    Ok::<_, actix_web::Error>(HttpResponse::Created().json(paid))
}

/// The attribute.
#[post("/ours")]
#[idempotent(scope = global)]
async fn ours(payment: web::Json<NewPayment>, tx: &Tx) -> impl Responder {
    let paid = pay(&**tx, &payment)
        .await
        .map_err(ErrorInternalServerError)?;
    Ok::<_, actix_web::Error>(HttpResponse::Created().json(paid))
}

fn key(request: &HttpRequest) -> Result<&str, actix_web::Error> {
    let key = request
        .headers()
        .get("idempotency-key")
        .and_then(|value| value.to_str().ok());
    key.ok_or_else(|| actix_web::error::ErrorBadRequest("no key"))
}

/// Mounts all of them.
pub(crate) fn routes(app: &mut web::ServiceConfig) {
    app.service(bare)
        .service(floor)
        .service(recipe)
        .service(ours);
}
