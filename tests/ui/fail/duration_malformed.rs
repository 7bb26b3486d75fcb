//! Durations that cannot be read.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account, ttl = 24h)]
async fn unquoted(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account, ttl = "24hours")]
async fn unknown_unit(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account, ttl = "1y")]
async fn calendar(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account, ttl = "0s")]
async fn zero(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account, ttl = "99999999999999999999s")]
async fn overflow(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account, ttl = "60")]
async fn no_unit(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account, ttl = "a day")]
async fn words(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account, ttl = "20000d")]
async fn too_long(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
