//! A tracing attribute below the attribute, also a conditional one.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};
use tracing::instrument;

#[idempotent(scope = account)]
#[instrument(skip_all)]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account)]
#[cfg_attr(unix, instrument(skip_all))]
async fn conditionally(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
