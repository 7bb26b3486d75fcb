//! Sizes that cannot be read.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account, max_body = "1MB", max_response = 1024)]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account, max_body = "0B", max_response = "lots")]
async fn zero(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account, max_body = "257MiB", max_response = "3000MiB")]
async fn huge(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
