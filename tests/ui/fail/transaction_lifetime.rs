//! Lifetimes the transaction cannot have.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account)]
async fn pay<'a>(account: web::Path<String>, _tx: &'a Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account)]
async fn forever(account: web::Path<String>, _tx: &'static Tx) -> String {
    account.into_inner()
}

fn main() {}
