//! A scope that misspells a parameter, and one that names nothing at all.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = acount)]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = (account, tenant.id))]
async fn pay_for_tenant(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account)]
async fn pay_anonymously(_: web::Path<String>, _tx: &Tx) -> String {
    String::new()
}

fn main() {}
