//! A handler with a receiver.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

struct Payments;

impl Payments {
    #[idempotent(scope = account)]
    async fn pay(&self, account: web::Path<String>, _tx: &Tx) -> String {
        account.into_inner()
    }
}

fn main() {}
