//! Options that do not exist.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scop = account, retries = 3, idempotency)]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
