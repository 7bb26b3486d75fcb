//! An option without a value, and one without a comma before it.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account, ttl)]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account ttl = "1h", wait = "5s")]
async fn no_comma(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
