//! An OpenAPI attribute below the attribute.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account)]
#[utoipa::path(post, path = "/payments", responses((status = 201)))]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
