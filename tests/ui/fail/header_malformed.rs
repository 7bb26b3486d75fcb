//! A header name with a space, and an empty one.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account, header = "Request Id")]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account, header = "")]
async fn empty(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
