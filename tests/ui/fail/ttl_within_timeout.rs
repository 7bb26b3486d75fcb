//! Keys that expire while their handler still runs, with a default on either side.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account, ttl = "10s", timeout = "10s")]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account, ttl = "30s")]
async fn default_timeout(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account, timeout = "24h")]
async fn default_ttl(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
