//! The runtime under another path, as a crate that re-exports it needs.

use actix_web::{App, web};

mod framework {
    pub use idem_runtime as idempotency;
}

use framework::idempotency::{ScopeKey, idempotent, postgres::Tx};

/// Hides the crate of this name: generated code must not reach for it.
mod idem_runtime_is_not_named {}

#[derive(ScopeKey, serde::Deserialize)]
#[scope(crate = crate::framework::idempotency)]
struct Owner {
    tenant: String,
}

#[idempotent(scope = owner.0, crate = crate::framework::idempotency)]
async fn pay(owner: web::Query<Owner>, _tx: &Tx) -> String {
    owner.into_inner().tenant
}

fn main() {
    let _ = App::new().route("/payments", web::post().to(pay));
}
