//! Those on deadpool-postgres: one pool, one statement cache.

use actix_web::{HttpRequest, HttpResponse, post, web};
use deadpool_postgres::{GenericClient, Pool, tokio_postgres};
use futures_util::future::join;
use idem_runtime::{Idempotency, idempotent, postgres::Tx};
use sha2::{Digest, Sha256};

use super::{INSERT, NewPayment, Payment, UPDATE, failed, key, refused};

/// The tables. `by_hand` is the record table of those who write it themselves; it has the same columns, key and index
/// as the framework's.
pub(crate) const SCHEMA: &str = "
    CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50);
    INSERT INTO accounts SELECT id, 0 FROM generate_series(0, 999) AS id;
    CREATE TABLE payments (id bigserial PRIMARY KEY, account int NOT NULL, amount bigint NOT NULL);
    CREATE TABLE by_hand (LIKE idem.records INCLUDING ALL);
    ALTER TABLE by_hand ALTER status DROP NOT NULL, ALTER headers DROP NOT NULL,
                        ALTER body DROP NOT NULL, ALTER expires_at DROP NOT NULL;";

pub(crate) type Cached = web::Data<Idempotency>;

/// The business: two statements.
async fn pay(
    client: &impl GenericClient,
    payment: &NewPayment,
) -> Result<Payment, tokio_postgres::Error> {
    let NewPayment {
        account, amount, ..
    } = payment;
    let insert = client.prepare_cached(INSERT).await?;
    let row = client.query_one(&insert, &[account, amount]).await?;
    let update = client.prepare_cached(UPDATE).await?;
    client.execute(&update, &[account, amount]).await?;
    Ok(Payment::of(row.get(0), payment))
}

#[post("/bare")]
async fn bare(
    pool: web::Data<Pool>,
    payment: web::Json<NewPayment>,
) -> actix_web::Result<HttpResponse> {
    let mut client = pool.get().await.map_err(failed)?;
    let transaction = client.transaction().await.map_err(failed)?;
    let paid = pay(&transaction, &payment).await.map_err(failed)?;
    if payment.amount < 0 {
        transaction.rollback().await.map_err(failed)?;
        return Ok(refused());
    }
    transaction.commit().await.map_err(failed)?;
    Ok(paid.answer())
}

const KEEP: &str = "INSERT INTO by_hand (scope, operation, key, request, fingerprint, status, headers, body, created_at, expires_at)
    VALUES ($1, 'POST /floor', $2, '', $3, 201, $4, $5, clock_timestamp(), clock_timestamp() + interval '24 h')";

const HEADERS: &[u8] = b"content-type: application/json\r\n";

#[post("/floor")]
async fn floor(
    pool: web::Data<Pool>,
    request: HttpRequest,
    payment: web::Json<NewPayment>,
) -> actix_web::Result<HttpResponse> {
    let key = key(&request)?;
    let client = pool.get().await.map_err(failed)?;
    let keep = client.prepare_cached(KEEP).await.map_err(failed)?;
    client.batch_execute("BEGIN").await.map_err(failed)?;
    let paid = pay(&client, &payment).await.map_err(failed)?;
    let body = serde_json::to_vec(&paid)?;
    let fingerprint = [1_u8; 33].as_slice();
    let (kept, committed) = join(
        client.execute(&keep, &[&"acct", &key, &fingerprint, &HEADERS, &body]),
        client.batch_execute("COMMIT"),
    )
    .await;
    kept.map_err(failed)?;
    committed.map_err(failed)?;
    Ok(paid.answer())
}

const RESERVE: &str =
    "INSERT INTO by_hand (scope, operation, key, request, fingerprint, created_at)
    VALUES ($1, 'POST /recipe', $2, '', $3, clock_timestamp()) ON CONFLICT DO NOTHING";
const LOOK: &str = "SELECT fingerprint, body FROM by_hand
    WHERE scope = $1 AND operation = 'POST /recipe' AND key = $2 AND request = ''";
const FILL: &str = "UPDATE by_hand SET status = 201, headers = $3, body = $4, expires_at = clock_timestamp() + interval '24 h'
    WHERE scope = $1 AND operation = 'POST /recipe' AND key = $2 AND request = ''";

#[post("/recipe")]
async fn recipe(
    pool: web::Data<Pool>,
    request: HttpRequest,
    body: web::Bytes,
) -> actix_web::Result<HttpResponse> {
    let key = key(&request)?;
    let fingerprint = Sha256::digest(&body).to_vec();
    let payment: NewPayment = serde_json::from_slice(&body)?;
    let mut client = pool.get().await.map_err(failed)?;
    let transaction = client.transaction().await.map_err(failed)?;
    let reserve = transaction.prepare_cached(RESERVE).await.map_err(failed)?;
    let reserved = transaction
        .execute(&reserve, &[&"acct", &key, &fingerprint])
        .await
        .map_err(failed)?;
    if reserved == 0 {
        let look = transaction.prepare_cached(LOOK).await.map_err(failed)?;
        let row = transaction
            .query_one(&look, &[&"acct", &key])
            .await
            .map_err(failed)?;
        transaction.commit().await.map_err(failed)?;
        if row.get::<_, &[u8]>(0) != fingerprint {
            return Ok(HttpResponse::UnprocessableEntity().finish());
        }
        return Ok(HttpResponse::Created()
            .content_type("application/json")
            .body(row.get::<_, Vec<u8>>(1)));
    }
    let paid = pay(&transaction, &payment).await.map_err(failed)?;
    if payment.amount < 0 {
        // The key goes with it: this recipe remembers no refusal.
        transaction.rollback().await.map_err(failed)?;
        return Ok(refused());
    }
    let body = serde_json::to_vec(&paid)?;
    let fill = transaction.prepare_cached(FILL).await.map_err(failed)?;
    transaction
        .execute(&fill, &[&"acct", &key, &HEADERS, &body])
        .await
        .map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(paid.answer())
}

#[post("/ours")]
#[idempotent(scope = global)]
async fn ours(payment: web::Json<NewPayment>, tx: &Tx) -> actix_web::Result<HttpResponse> {
    let paid = pay(&**tx, &payment).await.map_err(failed)?;
    if payment.amount < 0 {
        return Ok(refused());
    }
    Ok(paid.answer())
}

pub(super) fn routes(app: &mut web::ServiceConfig) {
    app.service(bare)
        .service(floor)
        .service(recipe)
        .configure(guarded);
}

pub(super) fn guarded(app: &mut web::ServiceConfig) {
    app.service(ours);
}
