//! A scope that may be absent.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[idempotent(scope = account)]
async fn pay(account: web::ReqData<Option<String>>, _tx: &Tx) -> String {
    format!("{account:?}")
}

fn main() {}
