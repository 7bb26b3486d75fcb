//! Attributes above ours see the handler as it was written.

use actix_web::{App, post, web};
use idem_runtime::{idempotent, postgres::Tx};
use tracing::instrument;
use utoipa::OpenApi;

/// Creates a payment.
#[utoipa::path(params(("account" = String, Path)), responses((status = 200, body = String)))]
#[post("/accounts/{account}/payments")]
#[idempotent(scope = account)]
async fn documented(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[instrument(skip_all, fields(%account))]
#[idempotent(scope = account)]
async fn traced(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[derive(OpenApi)]
#[openapi(paths(documented))]
struct Document;

fn main() {
    let _ = App::new()
        .service(documented)
        .route("/traced", web::post().to(traced));

    let paths = Document::openapi().paths.paths;
    assert!(paths.contains_key("/accounts/{account}/payments"));
}
