//! Who may send a request, and through which app: extractors, `authorize`, app data, actix's test service.

use actix_web::{App, HttpResponse, middleware, test as actix_test, web};
use idem_tests::service::{Executions, script::Script};
use reqwest::StatusCode;

use super::{CREATED, Database, Service, database, guard, json, routes, send, start};

#[tokio::test]
async fn extractors_answer_for_themselves_and_leave_the_key_alone() {
    let (database, service) = start().await;
    let malformed = json(&service, "/effects", "k", "{").await;
    assert_eq!((malformed.status, &*malformed.problem()), (400, ""));
    let wrong_type = send(&service, "/effects", "k", "text/plain", "{}").await;
    assert_eq!((wrong_type.status, &*wrong_type.problem()), (400, ""));
    let forbidden = service
        .client
        .request("/effects")
        .account("revoked")
        .key("k");
    let forbidden = forbidden.script(&Script::default()).send().await;
    assert_eq!(
        (forbidden.status, forbidden.text()),
        (403, "failure 403 Forbidden None")
    );
    let anonymous =
        "POST /effects HTTP/1.1\r\nHost: t\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}";
    assert_eq!(service.client.raw(anonymous).await.status, 401);
    assert_eq!((service.executions.get(), database.records()), (0, 0));
    // The key is as good as new, also for another request.
    json(&service, "/effects", "k", "{}")
        .await
        .assert(CREATED, false);
}

#[tokio::test]
async fn key_and_body_are_looked_at_before_the_extractors() {
    let (_database, service) = start().await;
    // Who may not act learns no more than that the request is malformed.
    let request = || service.client.request("/small").account("revoked");
    let body = Script::default().note(&"x".repeat(2000));
    request()
        .script(&Script::default())
        .send()
        .await
        .assert_problem(400, "key-missing");
    request()
        .key("k")
        .script(&body)
        .send()
        .await
        .assert_problem(413, "body-too-large");
}

#[tokio::test]
async fn no_answer_is_replayed_to_a_caller_whose_right_was_revoked() {
    let database = database();
    for (path, account) in [("/effects", "leaver"), ("/authorized", "once")] {
        // Who has acted once in an instance may not do so again there.
        let service = Service::start(&database.url()).await;
        let other = Service::start(&database.url()).await;
        let send = |service: &Service| {
            let request = service.client.request(path).account(account).key("k");
            request.script(&Script::default()).send()
        };
        send(&service).await.assert(CREATED, false);
        for _ in 0..2 {
            let refused = send(&service).await;
            assert_eq!(
                (refused.status, &*refused.problem(), refused.is_replay()),
                (403, "", false)
            );
        }
        // The record is still there for those who may.
        send(&other).await.assert(CREATED, true);
        assert_eq!((service.executions.get(), other.executions.get()), (1, 0));
    }
    assert_eq!((database.effects(), database.records()), (2, 2));
}

#[actix_web::test]
async fn guarded_handler_can_be_tested_through_actix_test_service() {
    let database = database();
    let service = Service::start(&database.url()).await;
    let app = App::new()
        .app_data(web::Data::new(service.idempotency.clone()))
        .app_data(web::Data::new(service.executions.clone()))
        .wrap(middleware::NormalizePath::trim())
        .configure(routes::configure)
        .default_service(web::to(HttpResponse::NotFound));
    let app = actix_test::init_service(app).await;
    for (path, replayed) in [("/echo", false), ("/echo/", true), ("//echo", true)] {
        let request = actix_test::TestRequest::post()
            .uri(path)
            .insert_header(("x-account", "a"))
            .insert_header(("idempotency-key", "k"))
            .set_payload("one");
        let response = actix_test::call_service(&app, request.to_request()).await;
        assert_eq!(response.status(), StatusCode::OK.as_u16(), "{path}");
        let mark = response.headers().contains_key("idempotent-replayed");
        assert_eq!(mark, replayed, "{path}");
        assert_eq!(actix_test::read_body(response).await, "one");
    }
    assert_eq!(database.effects(), 1);
}

#[actix_web::test]
async fn nearest_idempotency_guards_so_that_a_service_can_have_several_databases() {
    let (one, two) = (database(), database());
    let runs = web::Data::new(Executions::default());
    let scope = async |path, database: &Database| {
        web::scope(path)
            .app_data(web::Data::new(guard(&database.url()).await))
            .configure(routes::configure)
    };
    let nested = scope("", &one).await.service(scope("/nested", &two).await);
    let app = actix_test::init_service(App::new().app_data(runs).service(nested)).await;
    for replayed in [false, true] {
        for path in ["/echo", "/nested/echo"] {
            let request = actix_test::TestRequest::post()
                .uri(path)
                .insert_header(("x-account", "a"))
                .insert_header(("idempotency-key", "k"));
            let response = actix_test::call_service(&app, request.to_request()).await;
            assert_eq!(response.status(), StatusCode::OK.as_u16(), "{path}");
            let mark = response.headers().contains_key("idempotent-replayed");
            assert_eq!(mark, replayed, "{path}");
        }
    }
    for database in [one, two] {
        assert_eq!((database.effects(), database.records()), (1, 1));
    }
}
