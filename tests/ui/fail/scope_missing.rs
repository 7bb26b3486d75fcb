//! An attribute without a scope.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent]
async fn without_options(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(ttl = "1h")]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
