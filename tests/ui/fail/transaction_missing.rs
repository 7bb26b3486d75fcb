//! Handlers without a transaction, and one that takes it by value.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account)]
async fn pay(account: web::Path<String>) -> String {
    account.into_inner()
}

#[idempotent(scope = global)]
async fn nothing() -> String {
    String::new()
}

#[idempotent(scope = global)]
async fn by_value(_tx: Tx) -> String {
    String::new()
}

fn main() {}
