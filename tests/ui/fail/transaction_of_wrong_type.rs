//! A reference parameter that no backend supplies.

use actix_web::web;
use idem_runtime::idempotent;

#[idempotent(scope = account)]
async fn pay(account: web::Path<String>, name: &str) -> String {
    format!("{account}{name}")
}

fn main() {}
