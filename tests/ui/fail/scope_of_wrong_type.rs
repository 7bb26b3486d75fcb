//! A scope whose type cannot be one.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = amount)]
async fn pay(amount: web::Json<f64>, _tx: &Tx) -> String {
    amount.to_string()
}

fn main() {}
