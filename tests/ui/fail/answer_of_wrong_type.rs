//! A result that actix cannot answer with.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account)]
async fn pay(account: web::Path<String>, _tx: &Tx) -> u32 {
    u32::from(account.is_empty())
}

fn main() {}
