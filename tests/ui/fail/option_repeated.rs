//! An option given twice.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(ttl = "1h", scope = account, ttl = "2h")]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
