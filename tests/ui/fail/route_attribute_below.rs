//! A route attribute below the attribute.

use actix_web::{post, web};
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account)]
#[post("/payments")]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
