//! A handler with a fault is still registered without a second error.

use actix_web::web;
use idem_runtime::{idempotent, postgres::Tx};

#[actix_web::post("/payments")]
#[idempotent(scope = acount)]
async fn pay(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(ttl = "1h")]
async fn refund(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

fn _services() {
    let _ = actix_web::App::new()
        .service(pay)
        .route("/refunds", web::post().to(refund));
}

fn main() {}
