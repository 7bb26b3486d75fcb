//! A parameter that actix cannot extract.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account)]
async fn pay(account: web::Path<String>, amount: u32, _tx: &Tx) -> String {
    format!("{account}{amount}")
}

fn main() {}
