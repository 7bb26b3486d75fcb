//! Handlers as services write them, documented with utoipa; none of them ever runs.

#![allow(
    clippy::unused_async,
    reason = "handlers are asynchronous, whatever they do"
)]

use actix_web::{FromRequest, HttpResponse, get, post, web};
use idem_runtime::{idempotent, postgres::Tx};
use serde::Deserialize;
use utoipa::ToSchema;

pub(crate) mod payments {
    use super::{HttpResponse, Tx, idempotent, post, web};

    #[utoipa::path(responses(
        (status = 201, description = "paid"),
        (status = 409, description = "the account is closed", body = String),
    ))]
    #[post("/payments")]
    #[idempotent(scope = account, ttl = "7d", wait = "5s", commit_on = [402])]
    pub(crate) async fn create(account: web::ReqData<String>, _tx: &Tx) -> HttpResponse {
        HttpResponse::Created().body(account.into_inner())
    }
}

pub(crate) mod refunds {
    use super::{HttpResponse, Tx, idempotent, post, web};

    #[utoipa::path(responses((status = 201, description = "refunded")))]
    #[post("/refunds")]
    #[idempotent(scope = account)]
    pub(crate) async fn create(account: web::ReqData<String>, _tx: &Tx) -> HttpResponse {
        HttpResponse::Created().body(account.into_inner())
    }
}

pub(crate) mod reports {
    use super::{HttpResponse, post};

    #[utoipa::path(responses((status = 201, description = "reported")))]
    #[post("/reports")]
    pub(crate) async fn create() -> HttpResponse {
        HttpResponse::Created().finish()
    }
}

#[derive(Deserialize, ToSchema)]
pub(crate) struct Order {
    request_id: String,
}

#[utoipa::path(responses((status = 201, description = "placed")))]
#[post("/body")]
#[idempotent(scope = account, key = order.request_id)]
pub(crate) async fn with_key_in_the_body(
    account: web::ReqData<String>,
    order: web::Json<Order>,
    _tx: &Tx,
) -> HttpResponse {
    HttpResponse::Created().body(format!("{} {}", *account, order.request_id))
}

#[utoipa::path(responses((status = 201, description = "placed")))]
#[post("/optional")]
#[idempotent(scope = account, key = optional, header = "X-Request-Id")]
pub(crate) async fn with_an_optional_key(account: web::ReqData<String>, _tx: &Tx) -> HttpResponse {
    HttpResponse::Created().body(account.into_inner())
}

#[utoipa::path(responses((status = 201, description = "placed")))]
#[post("/everybody")]
#[idempotent(scope = global)]
pub(crate) async fn of_everybody(_tx: &Tx) -> HttpResponse {
    HttpResponse::Created().finish()
}

#[utoipa::path(operation_id = "orders.place", responses((status = 201, description = "placed")))]
#[post("/named")]
#[idempotent(scope = global, operation = "orders.place")]
pub(crate) async fn with_an_id_of_its_own(_tx: &Tx) -> HttpResponse {
    HttpResponse::Created().finish()
}

#[utoipa::path(post, path = "/generic", responses((status = 201, description = "placed")))]
#[idempotent(scope = global, ttl = "1h")]
pub(crate) async fn that_is_generic<E: FromRequest + 'static>(_extra: E, _tx: &Tx) -> HttpResponse {
    HttpResponse::Created().finish()
}

#[utoipa::path(responses((status = 201, description = "placed")))]
#[post("/unguarded")]
pub(crate) async fn that_is_not_guarded() -> HttpResponse {
    HttpResponse::Created().finish()
}

/// Has the name of a guarded handler, which stands in no document, and is none: it only reads.
#[utoipa::path(responses((status = 200, description = "shown")))]
#[get("/replace")]
pub(crate) async fn replace() -> HttpResponse {
    HttpResponse::Ok().finish()
}

/// The guarded one.
pub(crate) mod hidden {
    use super::{HttpResponse, Tx, idempotent};

    #[idempotent(scope = global)]
    pub(crate) async fn replace(_tx: &Tx) -> HttpResponse {
        HttpResponse::Ok().finish()
    }
}
