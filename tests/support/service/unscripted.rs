//! Handlers that are not scripted: other bodies, other parameters, other answers.

use actix_web::{HttpRequest, HttpResponse, http::StatusCode, web};
use bytes::Bytes;
use futures_util::stream;
use idem_runtime::{IdempotencyKey, idempotent, postgres::Tx};
use serde::Deserialize;

use super::handlers::{Account, Failure, Runs};

/// Echoes its body, so that any bytes can be stored.
///
/// # Errors
/// When its effect cannot be written.
#[idempotent(scope = account)]
pub async fn echo(
    account: Account,
    body: Bytes,
    runs: Runs,
    tx: &Tx,
) -> Result<HttpResponse, Failure> {
    write_effect(&account.0, &runs, tx).await?;
    Ok(HttpResponse::Ok()
        .content_type("application/octet-stream")
        .body(body))
}

/// Answers with a stream: a chunk for each word of the body. The word `fail` breaks it off.
///
/// # Errors
/// When its effect cannot be written.
#[idempotent(scope = account, max_response = "1KiB")]
pub async fn streamed(
    account: Account,
    body: String,
    runs: Runs,
    tx: &Tx,
) -> Result<HttpResponse, Failure> {
    write_effect(&account.0, &runs, tx).await?;
    let chunks: Vec<_> = body
        .split(' ')
        .map(|word| match word {
            "fail" => Err(Failure::status(500)),
            word => Ok(Bytes::copy_from_slice(word.as_bytes())),
        })
        .collect();
    Ok(HttpResponse::Ok().streaming(stream::iter(chunks)))
}

/// A form that carries its own key.
#[derive(Debug, Deserialize)]
pub struct Form {
    /// The key.
    pub idempotency_key: Option<String>,
    /// Anything else.
    pub note: String,
}

/// The key stands in a form field.
///
/// # Errors
/// When its effect cannot be written.
#[idempotent(scope = account, key = form.idempotency_key)]
pub async fn form(
    account: Account,
    form: web::Form<Form>,
    runs: Runs,
    tx: &Tx,
) -> Result<HttpResponse, Failure> {
    write_effect(&account.0, &runs, tx).await?;
    Ok(HttpResponse::Created().body(form.into_inner().note))
}

/// The scope has two parts, which stand in the path.
///
/// # Errors
/// When its effect cannot be written.
#[idempotent(scope = tenant)]
pub async fn tenant(
    tenant: web::Path<(String, String)>,
    runs: Runs,
    tx: &Tx,
) -> Result<HttpResponse, Failure> {
    write_effect("", &runs, tx).await?;
    Ok(HttpResponse::Created().body(format!("{tenant:?}")))
}

/// Answers without a body, with the status that `x-status` asks for.
#[idempotent(scope = account)]
pub async fn silent(account: Account, request: HttpRequest, _tx: &Tx) -> HttpResponse {
    let _ = account;
    HttpResponse::new(wanted_status(&request))
}

/// Answers with the key in use and what was derived from it, and with the status that `x-status` asks for.
#[idempotent(scope = account)]
pub async fn deriving(
    account: Account,
    key: IdempotencyKey,
    request: HttpRequest,
    _tx: &Tx,
) -> HttpResponse {
    let _ = account;
    HttpResponse::build(wanted_status(&request)).body(format!(
        "{} {} {}",
        key.as_str(),
        key.derive("charge"),
        key.derive("refund")
    ))
}

/// Answers with what was derived, or that there is no key.
#[idempotent(scope = account, key = optional)]
pub async fn perhaps_deriving(
    account: Account,
    key: Option<IdempotencyKey>,
    _tx: &Tx,
) -> HttpResponse {
    let _ = account;
    HttpResponse::Ok().body(key.map_or_else(|| "none".to_owned(), |key| key.derive("charge")))
}

/// Takes a key that no guard has put there.
pub async fn unguarded(key: IdempotencyKey) -> HttpResponse {
    HttpResponse::Ok().body(key.derive("charge"))
}

/// Gives the database nothing of the request, so that what is logged of it comes from elsewhere.
///
/// # Errors
/// When its effect cannot be written.
#[idempotent(scope = account)]
pub async fn discreet(
    account: Account,
    body: Bytes,
    runs: Runs,
    tx: &Tx,
) -> Result<HttpResponse, Failure> {
    let _ = account;
    write_effect("", &runs, tx).await?;
    Ok(HttpResponse::Created().body(body))
}

fn wanted_status(request: &HttpRequest) -> StatusCode {
    let status = request.headers().get("x-status");
    let status = status.and_then(|status| StatusCode::from_bytes(status.as_bytes()).ok());
    status.unwrap_or(StatusCode::OK)
}

async fn write_effect(scope: &str, runs: &Runs, tx: &Tx) -> Result<(), Failure> {
    runs.count();
    let insert = "INSERT INTO effects (scope, note) VALUES ($1, 'unscripted')";
    tx.execute(insert, &[&scope]).await?;
    Ok(())
}

/// Routes of these handlers.
pub fn routes(app: &mut web::ServiceConfig) {
    app.route("/echo", web::post().to(echo))
        .route("/streamed", web::post().to(streamed))
        .route("/form", web::post().to(form))
        .route("/tenants/{tenant}/{user}", web::post().to(tenant))
        .route("/silent", web::post().to(silent))
        .route("/deriving", web::post().to(deriving))
        .route("/perhaps-deriving", web::post().to(perhaps_deriving))
        .route("/unguarded", web::post().to(unguarded))
        .route("/discreet/{id}", web::post().to(discreet));
}
