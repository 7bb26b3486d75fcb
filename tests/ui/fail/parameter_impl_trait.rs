//! A parameter whose type has no name.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account)]
async fn pay(account: web::Path<String>, _form: impl actix_web::FromRequest, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
