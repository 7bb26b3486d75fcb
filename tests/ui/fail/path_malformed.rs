//! Calls where the name of a function belongs.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account, authorize = may_pay(account), fingerprint = "raw", crate = "idem")]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
