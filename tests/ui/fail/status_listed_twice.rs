//! A status in one list twice, and in both lists.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account, commit_on = [402, 409, 402], release_on = [404, 409])]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn main() {}
