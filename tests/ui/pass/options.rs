//! Every option, in every form it can be written.
#![deny(warnings)]

use actix_web::{App, Error, HttpResponse, error::ErrorForbidden, web};
use idem_runtime::{FingerprintInput, idempotent, postgres::Tx};
use serde::Deserialize;

#[derive(Deserialize)]
struct NewPayment {
    request_id: String,
    tenant: String,
}

impl NewPayment {
    fn owner(&self) -> &str {
        &self.tenant
    }
}

#[idempotent(
    scope = (account, payment.owner()),
    ttl = "24h",
    key = payment.request_id,
    operation = "payments.create",
    fingerprint = raw,
    wait = "5s",
    timeout = "10s",
    authorize = may_pay,
    commit_on = [402],
    release_on = [404, 409],
    isolation = "serializable",
    max_body = "1MiB",
    max_response = "64KiB",
    crate = ::idem_runtime,
)]
async fn all(
    account: web::Path<String>,
    payment: web::Json<NewPayment>,
    _tx: &Tx,
) -> Result<HttpResponse, Error> {
    Ok(HttpResponse::Created().body(format!("{account}{}", payment.tenant)))
}

async fn may_pay(
    account: &web::Path<String>,
    payment: &web::Json<NewPayment>,
) -> Result<(), Error> {
    if account.as_str() == payment.tenant {
        return Ok(());
    }
    Err(ErrorForbidden("not yours"))
}

#[idempotent(scope = global, key = required, isolation = "repeatable read", ttl = "2w")]
async fn required(_tx: &Tx) -> String {
    String::new()
}

#[idempotent(scope = global, key = optional, header = "X-Request-Id", isolation = "read committed")]
async fn optional(_tx: &Tx) -> String {
    String::new()
}

#[idempotent(scope = tenant_of(&account), fingerprint = by_method, max_body = "500B")]
async fn functions(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn tenant_of(account: &str) -> String {
    account.chars().take(3).collect()
}

fn by_method(input: &FingerprintInput<'_>) -> Vec<u8> {
    input.method.as_bytes().to_vec()
}

#[idempotent(scope = format!("{account}/eu"), key = match payment.tenant.as_str() {
    "legacy" => format!("legacy-{}", payment.request_id),
    _ => payment.request_id.clone(),
})]
async fn expressions(
    account: web::Path<String>,
    payment: web::Json<NewPayment>,
    _tx: &Tx,
) -> String {
    format!("{account}{}", payment.tenant)
}

#[idempotent(scope = (&account, (payment.tenant.len() as u64) + 1, &*payment.tenant))]
async fn nested(account: web::Path<String>, payment: web::Json<NewPayment>, _tx: &Tx) -> String {
    format!("{account}{}", payment.tenant)
}

fn main() {
    let _ = App::new()
        .route("/all", web::post().to(all))
        .route("/required", web::post().to(required))
        .route("/optional", web::post().to(optional))
        .route("/functions", web::post().to(functions))
        .route("/expressions", web::post().to(expressions))
        .route("/nested", web::post().to(nested));
}
