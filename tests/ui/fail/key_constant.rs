//! A key that mentions no parameter.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account, key = "payment-1")]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
