//! Scopes that mention no parameter.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = "payments")]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = None)]
async fn none(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = tenant())]
async fn call(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn tenant() -> String {
    String::new()
}

fn main() {}
