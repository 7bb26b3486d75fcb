//! One handler, bare and guarded, over the backend that costs nothing.

use std::future::{Ready, ready};

use actix_http::Request;
use actix_web::{
    App, Error, FromRequest, HttpRequest, HttpResponse,
    body::to_bytes,
    dev::{Payload, Service, ServiceResponse},
    error::ErrorUnauthorized,
    http::{StatusCode, header::ContentType},
    post,
    test::{TestRequest, init_service},
    web::{self, Bytes},
};
use idem_runtime::{
    __bench::{Instant, Tx},
    Idempotency, ScopeKey, SettingsError, idempotent,
};
use serde::{Deserialize, Serialize};

/// The paths of the two.
pub(crate) const BARE: &str = "/bare";
pub(crate) const GUARDED: &str = "/guarded";

/// The caller, as a header names it.
#[derive(ScopeKey)]
struct Caller(String);

impl FromRequest for Caller {
    type Error = Error;
    type Future = Ready<Result<Self, Error>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let caller = request.headers().get("x-caller");
        let caller = caller.and_then(|value| value.to_str().ok());
        ready(
            caller
                .map(|caller| Self(caller.to_owned()))
                .ok_or_else(|| ErrorUnauthorized("nobody")),
        )
    }
}

#[derive(Deserialize, Serialize)]
struct Order {
    currency: String,
    items: Vec<Item>,
}

#[derive(Deserialize, Serialize)]
struct Item {
    article: String,
    quantity: u32,
    price: f64,
}

#[derive(Serialize)]
struct Receipt {
    caller: String,
    currency: String,
    items: usize,
}

fn accept(caller: Caller, order: Order) -> HttpResponse {
    HttpResponse::Created().json(Receipt {
        caller: caller.0,
        currency: order.currency,
        items: order.items.len(),
    })
}

#[post("/bare")]
async fn bare(caller: Caller, order: web::Json<Order>) -> HttpResponse {
    accept(caller, order.into_inner())
}

#[post("/guarded")]
#[allow(clippy::unused_async, reason = "handlers are async")]
#[idempotent(scope = caller)]
async fn guarded(caller: Caller, order: web::Json<Order>, _tx: &Tx) -> HttpResponse {
    accept(caller, order.into_inner())
}

/// Makes a service that has both.
pub(crate) async fn service()
-> Result<impl Service<Request, Response = ServiceResponse, Error = Error>, SettingsError> {
    let idempotency = Idempotency::new(Instant)?;
    let app = App::new()
        .app_data(web::Data::new(idempotency))
        .service(bare)
        .service(guarded);
    Ok(init_service(app).await)
}

/// Makes an order of about 1 KB.
pub(crate) fn order() -> Result<Bytes, serde_json::Error> {
    let item = |number| Item {
        article: format!("article-{number:06}"),
        quantity: number,
        price: 9.99,
    };
    let order = Order {
        currency: "EUR".to_owned(),
        items: (1..=18).map(item).collect(),
    };
    Ok(serde_json::to_vec(&order)?.into())
}

/// Makes requests with that order, each under a key of its own.
pub(crate) fn requests(path: &str, order: &Bytes, count: usize) -> Vec<Request> {
    let request = |number: usize| {
        TestRequest::post()
            .uri(path)
            .insert_header(("idempotency-key", format!("{number:036}")))
            .insert_header(("x-caller", "caller-1"))
            .insert_header(ContentType::json())
            .set_payload(order.clone())
            .to_request()
    };
    (0..count).map(request).collect()
}

/// Sends the requests one after the other and reads every answer.
///
/// # Errors
///
/// When one of them is not accepted.
pub(crate) async fn send(
    service: &impl Service<Request, Response = ServiceResponse, Error = Error>,
    requests: Vec<Request>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    for request in requests {
        let answer = service.call(request).await;
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status() != StatusCode::CREATED {
            return Err(format!("answered {}", answer.status()).into());
        }
        let body = to_bytes(answer.into_body()).await;
        body.map_err(|error| error.to_string())?;
    }
    Ok(())
}
