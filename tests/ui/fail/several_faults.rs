//! All faults are reported at once, in source order.

use actix_web::web;
use idem_runtime::idempotent;

#[idempotent(ttl = "0s", scop = account, wait = "1d")]
#[actix_web::post("/payments")]
fn pay(account: web::Path<String>) -> String {
    account.into_inner()
}

fn main() {}
