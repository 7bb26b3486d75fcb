//! A scope and a key that read the transaction.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = _tx.tenant(), key = (account, _tx))]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
