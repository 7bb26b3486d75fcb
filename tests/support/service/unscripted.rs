//! Handlers that are not scripted: other bodies, other parameters, other answers.

use actix_web::{HttpRequest, http::StatusCode};
use bytes::Bytes;
use futures_util::{Stream, stream};
use serde::Deserialize;

use super::{
    db::Db,
    handlers::{Failure, Runs},
};

/// A form that carries its own key.
#[derive(Debug, Deserialize)]
pub struct Form {
    /// The key.
    pub idempotency_key: Option<String>,
    /// Anything else.
    pub note: String,
}

/// Writes these handlers, with the transaction parameter of one backend.
macro_rules! unscripted {
    ($tx:ty) => {
        /// Echoes its body, so that any bytes can be stored.
        #[idempotent(scope = account)]
        pub async fn echo(
            account: Account,
            body: Bytes,
            runs: Runs,
            tx: $tx,
        ) -> Result<HttpResponse, Failure> {
            write_effect(&account.0, &runs, tx).await?;
            Ok(HttpResponse::Ok()
                .content_type("application/octet-stream")
                .body(body))
        }

        /// Answers with a stream: a chunk for each word of the body. The word `fail` breaks it off.
        #[idempotent(scope = account, max_response = "1KiB")]
        pub async fn streamed(
            account: Account,
            body: String,
            runs: Runs,
            tx: $tx,
        ) -> Result<HttpResponse, Failure> {
            write_effect(&account.0, &runs, tx).await?;
            Ok(HttpResponse::Ok().streaming(chunks(&body)))
        }

        /// The key stands in a form field.
        #[idempotent(scope = account, key = form.idempotency_key)]
        pub async fn form(
            account: Account,
            form: web::Form<Form>,
            runs: Runs,
            tx: $tx,
        ) -> Result<HttpResponse, Failure> {
            write_effect(&account.0, &runs, tx).await?;
            Ok(HttpResponse::Created().body(form.into_inner().note))
        }

        /// The scope has two parts, which stand in the path.
        #[idempotent(scope = tenant)]
        pub async fn tenant(
            tenant: web::Path<(String, String)>,
            runs: Runs,
            tx: $tx,
        ) -> Result<HttpResponse, Failure> {
            write_effect("", &runs, tx).await?;
            Ok(HttpResponse::Created().body(format!("{tenant:?}")))
        }

        /// Answers without a body, with the status that `x-status` asks for.
        #[idempotent(scope = account)]
        pub async fn silent(account: Account, request: HttpRequest, _tx: $tx) -> HttpResponse {
            let _ = account;
            HttpResponse::new(wanted_status(&request))
        }

        /// Answers with the key in use and what was derived from it, and with the status that `x-status` asks for.
        #[idempotent(scope = account)]
        pub async fn deriving(
            account: Account,
            key: IdempotencyKey,
            request: HttpRequest,
            _tx: $tx,
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
            _tx: $tx,
        ) -> HttpResponse {
            let _ = account;
            HttpResponse::Ok()
                .body(key.map_or_else(|| "none".to_owned(), |key| key.derive("charge")))
        }

        /// Takes a key that no guard has put there.
        pub async fn unguarded(key: IdempotencyKey) -> HttpResponse {
            HttpResponse::Ok().body(key.derive("charge"))
        }

        /// Gives the database nothing of the request, so that what is logged of it comes from elsewhere.
        #[idempotent(scope = account)]
        pub async fn discreet(
            account: Account,
            body: Bytes,
            runs: Runs,
            tx: $tx,
        ) -> Result<HttpResponse, Failure> {
            let _ = account;
            write_effect("", &runs, tx).await?;
            Ok(HttpResponse::Created().body(body))
        }

        /// Routes of these handlers.
        pub fn configure_unscripted(app: &mut web::ServiceConfig) {
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
    };
}
pub(super) use unscripted;

/// A chunk for each word; the word `fail` breaks it off.
pub(super) fn chunks(words: &str) -> impl Stream<Item = Result<Bytes, Failure>> + use<> {
    let chunks: Vec<_> = words
        .split(' ')
        .map(|word| match word {
            "fail" => Err(Failure::status(500)),
            word => Ok(Bytes::copy_from_slice(word.as_bytes())),
        })
        .collect();
    stream::iter(chunks)
}

pub(super) fn wanted_status(request: &HttpRequest) -> StatusCode {
    let status = request.headers().get("x-status");
    let status = status.and_then(|status| StatusCode::from_bytes(status.as_bytes()).ok());
    status.unwrap_or(StatusCode::OK)
}

pub(super) async fn write_effect(scope: &str, runs: &Runs, mut db: impl Db) -> Result<(), Failure> {
    runs.count();
    db.effect(scope, "unscripted").await?;
    Ok(())
}
