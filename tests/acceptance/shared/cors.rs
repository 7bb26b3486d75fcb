//! What a page of another origin may send and see.

use actix_cors::Cors;
use actix_web::web;
use idem_tests::{
    kinds::Kind as _,
    service::{Reply, script::Script},
};
use reqwest::{Method, StatusCode};

use super::{Kind, Service, Setup, database};

const SHOP: &str = "https://shop.example";
const OTHER: &str = "https://other.example";

/// As the documentation shows it, for two origins.
fn routes(app: &mut web::ServiceConfig) {
    let cors = Cors::default()
        .allowed_origin(SHOP)
        .allowed_origin(OTHER)
        .allowed_methods(["GET", "POST"])
        .allowed_headers(["content-type", "x-account", "idempotency-key"])
        .expose_headers(["idempotent-replayed", "idempotency-lifetime", "retry-after"])
        .max_age(3600);
    app.service(web::scope("").wrap(cors).configure(Kind::routes));
}

async fn start() -> (super::Database, Service) {
    let database = database();
    let setup = Setup {
        routes,
        ..Setup::default()
    };
    let service = Service::with(&database.url(), setup).await;
    (database, service)
}

fn exposed(reply: &Reply) -> Vec<String> {
    let exposed = reply.headers["access-control-expose-headers"]
        .to_str()
        .unwrap();
    let names = exposed.split(',').map(|name| name.trim().to_lowercase());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn page_of_another_origin_may_send_the_key() {
    let (_database, service) = start().await;
    let preflight = async |headers: &str| {
        let request = service.client.method(Method::OPTIONS, "/effects");
        let request = request
            .header("origin", SHOP)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", headers);
        request.send().await
    };
    let allowed = preflight("idempotency-key, content-type").await;
    assert_eq!(allowed.status, 200);
    let names = allowed.headers["access-control-allow-headers"]
        .to_str()
        .unwrap();
    assert!(names.to_lowercase().contains("idempotency-key"), "{names}");
    assert_eq!(preflight("x-other-key").await.status, 400);
    assert_eq!(service.executions.get(), 0);
}

#[tokio::test]
async fn page_sees_that_an_answer_is_a_repeat_and_each_origin_gets_its_own_headers() {
    let (_database, service) = start().await;
    let post = async |origin: &str, note: &str| {
        let request = service.client.request("/effects").key("k");
        let request = request.header("origin", origin);
        request.script(&Script::default().note(note)).send().await
    };
    let first = post(SHOP, "").await;
    first.assert(StatusCode::CREATED, false);
    let again = post(OTHER, "").await;
    again.assert(StatusCode::CREATED, true);
    for (reply, origin) in [
        (&first, SHOP),
        (&again, OTHER),
        (&post(OTHER, "x").await, OTHER),
    ] {
        let origins = reply.headers.get_all("access-control-allow-origin");
        assert_eq!(origins.iter().collect::<Vec<_>>(), [origin]);
        let expected = ["idempotency-lifetime", "idempotent-replayed", "retry-after"];
        assert_eq!(exposed(reply), expected);
    }
}
