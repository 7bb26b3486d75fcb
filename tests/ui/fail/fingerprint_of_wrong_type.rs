//! A fingerprint that is no function of the request.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account, fingerprint = mine)]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn mine(body: &[u8]) -> Vec<u8> {
    body.to_vec()
}

fn main() {}
