//! Statuses that are no refusal, or that free the key anyway.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account, commit_on = [200, 500, 402], release_on = [429, "404"])]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account, commit_on = 402, release_on = [])]
async fn no_list(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
