//! Operations with a space, without characters, and too long.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account, operation = "create payment")]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account, operation = "")]
async fn empty(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account, operation = payments.create)]
async fn unquoted(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
