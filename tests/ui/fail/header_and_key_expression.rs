//! A header beside a key that is read from the request.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account, header = "X-Request-Id", key = account)]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
