//! A second reference parameter.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account)]
async fn pay(account: web::Path<String>, tx: &Tx, name: &str) -> String {
    format!("{account}{name}{tx:?}")
}

fn main() {}
