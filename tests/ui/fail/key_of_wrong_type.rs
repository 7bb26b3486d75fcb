//! A key whose type cannot be one.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account, key = amount.0)]
async fn pay(account: web::Path<String>, amount: web::Json<f64>, _tx: &Tx) -> String {
    format!("{account}{amount}")
}

fn main() {}
