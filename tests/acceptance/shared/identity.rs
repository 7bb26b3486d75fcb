//! Whose request it is and for what: key, scope and operation, and the keys for other services that are derived from them.

use actix_web::{guard, web};
use idem_tests::service::{bare::post, script::Script};
use reqwest::{Method, StatusCode};

use super::{CREATED, Service, Setup, database, json, routes, send, start};

#[tokio::test]
async fn quoted_and_bare_key_are_the_same_key() {
    let (database, service) = start().await;
    let longest = "k".repeat(255);
    for (bare, quoted) in [
        ("abc", "\"abc\""),
        ("a\\b", "\"a\\\\b\""),
        (&*longest, &*format!("\"{longest}\"")),
    ] {
        let first = service.post(quoted, &Script::default()).await;
        first.assert(CREATED, false);
        let again = service.post(bare, &Script::default()).await;
        assert_eq!(again.assert(CREATED, true).body, first.body);
        let spaced = service
            .post(&format!("  {bare}\t"), &Script::default())
            .await;
        spaced.assert(CREATED, true);
    }
    assert_eq!((database.effects(), database.records()), (3, 3));
}

#[tokio::test]
async fn keys_are_compared_by_case_and_as_a_whole() {
    let (database, service) = start().await;
    for key in ["abc", "ABC", "abc.", "ab", "a,b", "a"] {
        service
            .post(key, &Script::default())
            .await
            .assert(CREATED, false);
    }
    assert_eq!(database.effects(), 6);
}

#[tokio::test]
async fn key_is_read_from_the_header_that_the_endpoint_names() {
    let (database, service) = start().await;
    let renamed = |header: &'static str| {
        let request = service
            .client
            .request("/renamed")
            .script(&Script::default());
        request.header(header, "k").send()
    };
    let missing = renamed("Idempotency-Key").await;
    missing.assert_problem(400, "key-missing");
    assert!(
        missing.text().to_lowercase().contains("`x-request-id`"),
        "{}",
        missing.text()
    );
    assert_eq!(service.executions.get(), 0);
    renamed("X-Request-Id").await.assert(CREATED, false);
    renamed("x-request-id").await.assert(CREATED, true);
    assert_eq!(database.effects(), 1);
}

#[tokio::test]
async fn key_in_a_form_field_works_as_in_the_header() {
    let (database, service) = start().await;
    let form = |body: &str| {
        let request = service.client.request("/form");
        request
            .body("application/x-www-form-urlencoded", body.to_owned())
            .send()
    };
    form("note=1").await.assert_problem(400, "key-missing");
    for malformed in ["", "a+b", "%C3%BC", "%00", &"k".repeat(256)] {
        let reply = form(&format!("note=1&idempotency_key={malformed}")).await;
        reply.assert_problem(400, "key-invalid");
    }
    assert_eq!((service.executions.get(), database.records()), (0, 0));

    let first = form("note=1&idempotency_key=k").await;
    first.assert(CREATED, false);
    assert_eq!(
        form("note=1&idempotency_key=k")
            .await
            .assert(CREATED, true)
            .body,
        first.body
    );
    form("note=2&idempotency_key=k")
        .await
        .assert_problem(422, "key-reused");
    form("note=2&idempotency_key=l")
        .await
        .assert(CREATED, false);
    // Quotes belong to the header's grammar, not to a field's.
    form("note=1&idempotency_key=%22k%22")
        .await
        .assert(CREATED, false);
    // The header says nothing here.
    let both = service.client.request("/form").key("other");
    let both = both.body(
        "application/x-www-form-urlencoded",
        "note=1&idempotency_key=k",
    );
    both.send().await.assert(CREATED, true);
    assert_eq!((database.effects(), database.records()), (3, 3));
}

#[tokio::test]
async fn key_in_a_json_body_works_as_in_the_header() {
    let (database, service) = start().await;
    let keyed = |script: Script| service.client.request("/keyed").script(&script).send();
    keyed(Script::default().note(""))
        .await
        .assert_problem(400, "key-invalid");
    keyed(Script::default().note("a b"))
        .await
        .assert_problem(400, "key-invalid");
    assert_eq!(service.executions.get(), 0);
    keyed(Script::default().note("k"))
        .await
        .assert(CREATED, false);
    keyed(Script::default().note("k"))
        .await
        .assert(CREATED, true);
    keyed(Script::answering(200).note("k"))
        .await
        .assert_problem(422, "key-reused");
    assert_eq!(database.effects(), 1);
}

#[tokio::test]
async fn same_key_in_two_scopes_is_two_keys() {
    let (database, service) = start().await;
    let request = |account: &str| {
        let request = service.client.request("/effects").account(account);
        request.key("k").script(&Script::default()).send()
    };
    let first = request("a").await;
    first.assert(CREATED, false);
    let second = request("b").await;
    second.assert(CREATED, false);
    assert_ne!(first.body, second.body);
    assert_eq!(request("a").await.assert(CREATED, true).body, first.body);
    assert_eq!(request("b").await.assert(CREATED, true).body, second.body);
    // Nor do case and padding make scopes equal, and nothing tells that a stranger's key is taken.
    for account in ["A", "a/", "/a", "a\\", "%61"] {
        request(account).await.assert(CREATED, false);
    }
    assert_eq!((database.effects(), database.records()), (7, 7));
}

#[tokio::test]
async fn parts_of_a_scope_cannot_be_shifted_into_each_other() {
    let (database, service) = start().await;
    // Each would be `a/b/c` if the parts were joined by a plain slash; a NUL has no place in a text column.
    for path in [
        "/tenants/a%2Fb/c",
        "/tenants/a/b%2Fc",
        "/tenants/a%5C/b",
        "/tenants/a/%5Cb",
        "/tenants/%00/b",
    ] {
        send(&service, path, "k", "text/plain", "")
            .await
            .assert(CREATED, false);
        send(&service, path, "k", "text/plain", "")
            .await
            .assert(CREATED, true);
    }
    assert_eq!((database.effects(), database.records()), (5, 5));
}

#[tokio::test]
async fn request_without_an_owner_is_not_executed() {
    let (database, service) = start().await;
    let request = service.client.request("/effects").account("").key("k");
    request
        .script(&Script::default())
        .send()
        .await
        .assert_problem(400, "scope-invalid");
    assert_eq!((service.executions.get(), database.records()), (0, 0));
}

#[tokio::test]
async fn global_scope_is_shared_by_all_callers() {
    let (database, service) = start().await;
    let request = |account: &str| {
        let request = service.client.request("/global").account(account);
        request.key("k").script(&Script::default()).send()
    };
    let first = request("a").await;
    first.assert(CREATED, false);
    assert_eq!(request("b").await.assert(CREATED, true).body, first.body);
    assert_eq!((service.executions.get(), database.records()), (1, 1));
}

#[tokio::test]
async fn same_key_on_two_operations_is_two_keys() {
    let (database, service) = start().await;
    for path in ["/effects", "/orders/1", "/named/old", "/global"] {
        json(&service, path, "k", "{}").await.assert(CREATED, false);
        json(&service, path, "k", "{}").await.assert(CREATED, true);
    }
    // The method is part of the operation.
    let patch = || {
        let request = service.client.method(Method::PATCH, "/effects").key("k");
        request.body("application/json", "{}").send()
    };
    patch().await.assert(CREATED, false);
    patch().await.assert(CREATED, true);
    assert_eq!((database.effects(), database.records()), (5, 5));
}

fn guarded(app: &mut web::ServiceConfig) {
    let version = |version| guard::Header("x-version", version);
    for (path, second) in [
        ("/unnamed", web::post().to(routes::effects)),
        ("/named", web::post().to(routes::named)),
    ] {
        app.service(
            web::resource(path)
                .guard(version("1"))
                .route(web::post().to(routes::effects)),
        )
        .service(web::resource(path).guard(version("2")).route(second));
    }
}

#[tokio::test]
async fn handlers_that_only_a_guard_tells_apart_need_a_named_operation() {
    let database = database();
    let service = Service::with(
        &database.url(),
        Setup {
            routes: guarded,
            ..Setup::default()
        },
    )
    .await;
    let send = |path: &'static str, version: &'static str| {
        let request = service
            .client
            .request(path)
            .key("k")
            .header("x-version", version);
        request.body("application/json", "{}").send()
    };
    // Method, pattern, path and body are the same, and headers are no part of a request's identity.
    send("/unnamed", "1").await.assert(CREATED, false);
    send("/unnamed", "2").await.assert(CREATED, true);
    send("/named", "1").await.assert(CREATED, false);
    send("/named", "2").await.assert(CREATED, false);
    assert_eq!(database.effects(), 3);
}

fn before_the_rename(app: &mut web::ServiceConfig) {
    app.route("/named/{id}", web::post().to(routes::named))
        .route("/unnamed/{id}", web::post().to(routes::effects));
}

fn after_the_rename(app: &mut web::ServiceConfig) {
    app.route("/named/{order}", web::post().to(routes::named))
        .route("/{any}/named/{order}", web::post().to(routes::named))
        .route("/unnamed/{order}", web::post().to(routes::effects));
}

#[tokio::test]
async fn named_operation_keeps_its_keys_when_its_route_is_renamed() {
    let database = database();
    let release = |routes| {
        let url = database.url();
        async move {
            Service::with(
                &url,
                Setup {
                    routes,
                    ..Setup::default()
                },
            )
            .await
        }
    };
    let before = release(before_the_rename).await;
    let first = json(&before, "/named/1", "k", "{}").await;
    first.assert(CREATED, false);
    json(&before, "/unnamed/1", "k", "{}")
        .await
        .assert(CREATED, false);
    drop(before);

    let after = release(after_the_rename).await;
    assert_eq!(
        json(&after, "/named/1", "k", "{}")
            .await
            .assert(CREATED, true)
            .body,
        first.body
    );
    // The path that the client has asked for is part of the request: another one is another request, and the key
    // still knows its effect.
    json(&after, "/v2/named/1", "k", "{}")
        .await
        .assert_problem(422, "key-reused");
    assert_eq!((after.executions.get(), database.effects()), (0, 2));
    // Named after its route, the operation is another one now.
    json(&after, "/unnamed/1", "k", "{}")
        .await
        .assert(CREATED, false);
}

#[tokio::test]
async fn derived_key_is_stable_over_repeats_and_rollbacks() {
    let (_database, service) = start().await;
    let derive = |account: &str, key: &str, status: &str| {
        let request = service
            .client
            .request("/deriving")
            .account(account)
            .key(key);
        request.header("x-status", status).send()
    };
    // Rolled back, then executed, then replayed.
    let failed = derive("a", "k", "503").await;
    failed.assert(StatusCode::SERVICE_UNAVAILABLE, false);
    let executed = derive("a", "k", "200").await;
    executed.assert(StatusCode::OK, false);
    let replayed = derive("a", "\"k\"", "200").await;
    replayed.assert(StatusCode::OK, true);
    assert_eq!(
        (failed.text(), replayed.text()),
        (executed.text(), executed.text())
    );
    let [key, charge, refund] = *executed.text().split(' ').collect::<Vec<_>>() else {
        panic!("{}", executed.text());
    };
    assert_eq!((key, charge.len()), ("k", 36));
    assert_ne!(charge, refund, "labels are told apart");

    let stranger = derive("b", "k", "200").await;
    let other = derive("a", "l", "200").await;
    for reply in [&stranger, &other] {
        assert!(!reply.text().contains(charge) && !reply.text().contains(refund));
    }
    let operation = service
        .client
        .request("/perhaps-deriving")
        .key("k")
        .send()
        .await;
    operation.assert(StatusCode::OK, false);
    assert!(!operation.text().contains(charge));
}

#[tokio::test]
async fn optional_key_is_none_where_there_is_none() {
    let (_database, service) = start().await;
    let without = service.client.request("/perhaps-deriving").send().await;
    assert_eq!(without.assert(StatusCode::OK, false).text(), "none");
}

#[tokio::test]
async fn key_outside_a_guarded_handler_is_an_error_also_after_a_guarded_one() {
    let (_database, service) = start().await;
    // On one connection, since actix uses a request's storage again for the next one.
    let mut connection = service.client.connect().await;
    let lines = ["Idempotency-Key: k", "Content-Length: 0"];
    for (path, status) in [("/unguarded", 500), ("/deriving", 200), ("/unguarded", 500)] {
        connection.send(post(path, &lines, "")).await.unwrap();
        assert_eq!(connection.reply().await.status, status, "{path}");
    }
    connection
        .send(post("/perhaps-deriving", &["Content-Length: 0"], ""))
        .await
        .unwrap();
    assert_eq!(connection.reply().await.text(), "none");
}
