//! A pool beside the transaction draws a warning; here it is an error.

#![deny(deprecated)]

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account)]
async fn pay(account: web::Path<String>, pool: web::Data<PgPool>, _tx: &Tx) -> String {
    format!("{account}{}", pool.size)
}

struct PgPool {
    size: u32,
}

fn main() {}
