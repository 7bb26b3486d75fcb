//! A parameter that may be compiled out.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account)]
async fn pay(account: web::Path<String>, #[cfg(unix)] _form: web::Bytes, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
