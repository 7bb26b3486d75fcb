//! A check that takes other parameters.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account, authorize = may_pay)]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

async fn may_pay(account: &web::Json<String>) -> Result<(), actix_web::Error> {
    drop(account.len());
    Ok(())
}

fn main() {}
