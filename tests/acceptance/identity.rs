//! What makes two requests the same: key, scope, operation and fingerprint, and where the key may come from.

use std::io::Write;

use actix_web::{
    App, HttpResponse,
    body::BoxBody,
    dev::{Payload, ServiceRequest, ServiceResponse},
    guard,
    middleware::{self, Next},
    test as actix_test, web,
};
use flate2::{Compression, write::GzEncoder};
use idem_runtime::{Idempotency, postgres};
use idem_tests::{
    database::Database,
    service::{
        EFFECTS, Executions, Reply, Service, Setup,
        bare::post,
        handlers,
        script::{Script, Step, sql},
        unscripted,
    },
};
use reqwest::{Method, StatusCode};

const CREATED: StatusCode = StatusCode::CREATED;

async fn start() -> (Database, Service) {
    let database = EFFECTS.database();
    let service = Service::start(&database.url()).await;
    (database, service)
}

async fn send(service: &Service, path: &str, key: &str, media_type: &str, body: &str) -> Reply {
    let request = service.client.request(path).key(key);
    request.body(media_type, body.to_owned()).send().await
}

async fn json(service: &Service, path: &str, key: &str, body: &str) -> Reply {
    send(service, path, key, "application/json", body).await
}

// ---- the key ----

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

// ---- without a key ----

#[tokio::test]
async fn without_an_optional_key_each_request_is_executed_and_none_recorded() {
    let (database, service) = start().await;
    let request = || {
        service
            .client
            .request("/optional")
            .script(&Script::default())
    };
    request().send().await.assert(CREATED, false);
    request().send().await.assert(CREATED, false);
    assert_eq!((database.effects(), database.records()), (2, 0));
    request().key("k").send().await.assert(CREATED, false);
    request().key("k").send().await.assert(CREATED, true);
    assert_eq!((database.effects(), database.records()), (3, 1));
    // Optional does not mean that anything goes.
    request()
        .key("a b")
        .send()
        .await
        .assert_problem(400, "key-invalid");
    request()
        .key("")
        .send()
        .await
        .assert_problem(400, "key-invalid");
    assert_eq!(service.executions.get(), 3);
}

#[tokio::test]
async fn without_a_key_the_status_decides_over_the_writes_as_well() {
    let (database, service) = start().await;
    for status in [400, 402, 404, 429, 500, 503] {
        for error in [true, false] {
            let script = Script {
                error,
                ..Script::answering(status)
            };
            let reply = service
                .client
                .request("/optional")
                .script(&script)
                .send()
                .await;
            assert_eq!((reply.status, &*reply.problem()), (status, ""));
        }
    }
    assert_eq!((service.executions.get(), database.effects()), (12, 0));
    let panicking = Script::of([Step::Panic]);
    let reply = service
        .client
        .request("/optional")
        .script(&panicking)
        .send()
        .await;
    reply.assert_problem(500, "internal");
    assert_eq!((database.effects(), database.records()), (0, 0));
}

#[tokio::test]
async fn without_a_key_a_swallowed_error_is_no_success() {
    let (database, service) = start().await;
    for step in ["INSERT INTO parents VALUES (1), (1)", "no SQL at all"] {
        let script = Script::of([Step::Try(step.to_owned())]);
        let reply = service
            .client
            .request("/optional")
            .script(&script)
            .send()
            .await;
        reply.assert_problem(500, "internal");
        assert_eq!(database.effects(), 0);
    }
    // A deferred constraint fails at COMMIT.
    let script = Script::of([sql("INSERT INTO children VALUES (7)")]);
    let reply = service
        .client
        .request("/optional")
        .script(&script)
        .send()
        .await;
    reply.assert_problem(500, "internal");
    assert_eq!(database.effects(), 0);
}

#[tokio::test]
async fn without_a_key_a_handler_that_ends_the_transaction_is_no_success() {
    let (database, service) = start().await;
    for step in ["ROLLBACK", "ROLLBACK; BEGIN", "ROLLBACK AND CHAIN"] {
        let script = Script::of([sql(step)]);
        let reply = service
            .client
            .request("/optional")
            .script(&script)
            .send()
            .await;
        reply.assert_problem(500, "internal");
        assert_eq!(database.effects(), 0, "{step}");
    }
    // What the handler has committed by itself stays committed; only the answer can tell.
    for step in ["COMMIT", "COMMIT; BEGIN", "COMMIT AND CHAIN"] {
        let script = Script::of([sql(step)]);
        let reply = service
            .client
            .request("/optional")
            .script(&script)
            .send()
            .await;
        reply.assert_problem(500, "internal");
    }
    let clean = service
        .client
        .request("/optional")
        .script(&Script::default());
    clean.send().await.assert(CREATED, false);
}

// ---- scope and operation ----

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
        .assert_problem(500, "internal");
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
        ("/unnamed", web::post().to(handlers::effects)),
        ("/named", web::post().to(handlers::named)),
    ] {
        app.service(
            web::resource(path)
                .guard(version("1"))
                .route(web::post().to(handlers::effects)),
        )
        .service(web::resource(path).guard(version("2")).route(second));
    }
}

#[tokio::test]
async fn handlers_that_only_a_guard_tells_apart_need_a_named_operation() {
    let database = EFFECTS.database();
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
    app.route("/named/{id}", web::post().to(handlers::named))
        .route("/unnamed/{id}", web::post().to(handlers::effects));
}

fn after_the_rename(app: &mut web::ServiceConfig) {
    app.route("/named/{order}", web::post().to(handlers::named))
        .route("/{any}/named/{order}", web::post().to(handlers::named))
        .route("/unnamed/{order}", web::post().to(handlers::effects));
}

#[tokio::test]
async fn named_operation_keeps_its_keys_when_its_route_is_renamed() {
    let database = EFFECTS.database();
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

// ---- the fingerprint ----

#[tokio::test]
async fn other_path_parameter_or_query_is_another_request() {
    let (database, service) = start().await;
    json(&service, "/orders/1", "k", "{}")
        .await
        .assert(CREATED, false);
    for other in ["/orders/2", "/orders/1?", "/orders/1?dry_run=1"] {
        let reply = json(&service, other, "k", "{}").await;
        // A lone question mark is no query.
        if other == "/orders/1?" {
            reply.assert(CREATED, true);
        } else {
            reply.assert_problem(422, "key-reused");
        }
    }
    json(&service, "/orders/1?dry_run=1", "l", "{}")
        .await
        .assert(CREATED, false);
    for other in [
        "/orders/1",
        "/orders/1?dry_run=0",
        "/orders/1?dry_run=1&",
        "/orders/1?x=&dry_run=1",
    ] {
        json(&service, other, "l", "{}")
            .await
            .assert_problem(422, "key-reused");
    }
    assert_eq!((database.effects(), database.records()), (2, 2));
}

#[tokio::test]
async fn paths_are_compared_by_their_bytes() {
    let (database, service) = start().await;
    json(&service, "/orders/1%2f2", "k", "{}")
        .await
        .assert(CREATED, false);
    json(&service, "/orders/1%2F2", "k", "{}")
        .await
        .assert_problem(422, "key-reused");
    json(&service, "/orders/1", "l", "{}")
        .await
        .assert(CREATED, false);
    json(&service, "/orders/%31", "l", "{}")
        .await
        .assert_problem(422, "key-reused");
    // actix routes it elsewhere.
    assert_eq!(json(&service, "/orders/1/", "l", "{}").await.status, 404);
    assert_eq!((database.effects(), database.records()), (2, 2));
}

#[tokio::test]
async fn other_body_is_another_request_also_behind_a_middleware_that_reads_it() {
    let database = EFFECTS.database();
    let setup = Setup {
        routes: |app| {
            let reading = middleware::from_fn(read_and_put_back);
            app.configure(unscripted::routes).service(
                web::scope("/read")
                    .wrap(reading)
                    .route("/echo", web::post().to(unscripted::echo)),
            );
        },
        ..Setup::default()
    };
    let service = Service::with(&database.url(), setup).await;
    for path in ["/echo", "/read/echo"] {
        let first = send(&service, path, "k", "text/plain", "one").await;
        assert_eq!(first.assert(StatusCode::OK, false).text(), "one");
        send(&service, path, "k", "text/plain", "one")
            .await
            .assert(StatusCode::OK, true);
        for other in ["two", "one ", "", "One"] {
            send(&service, path, "k", "text/plain", other)
                .await
                .assert_problem(422, "key-reused");
        }
    }
    // In chunks there is no announced length to go by.
    let chunked = |key: &str, body: &str| {
        let lines = [
            &*format!("Idempotency-Key: {key}"),
            "Transfer-Encoding: chunked",
        ];
        service.client.raw(post("/read/echo", &lines, body))
    };
    chunked("c", "3\r\none\r\n0\r\n\r\n")
        .await
        .assert(StatusCode::OK, false);
    chunked("c", "1\r\no\r\n2\r\nne\r\n0\r\n\r\n")
        .await
        .assert(StatusCode::OK, true);
    chunked("c", "3\r\ntwo\r\n0\r\n\r\n")
        .await
        .assert_problem(422, "key-reused");
    chunked("c", "0\r\n\r\n")
        .await
        .assert_problem(422, "key-reused");
    assert_eq!(database.effects(), 3);
}

async fn read_and_put_back(
    mut request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    let body = request.extract::<web::Bytes>().await?;
    request.set_payload(Payload::from(body));
    next.call(request).await
}

#[tokio::test]
async fn json_is_compared_by_meaning() {
    let (database, service) = start().await;
    let first = json(
        &service,
        "/effects",
        "k",
        r#"{"note":"a","status":201,"steps":[]}"#,
    )
    .await;
    first.assert(CREATED, false);
    for same in [
        r#"{"status":201,"steps":[],"note":"a"}"#,
        "{\n  \"note\": \"a\",\n  \"status\": 201,\n  \"steps\": [ ]\n}\n",
        r#"{"note":"\u0061","status":201,"steps":[]}"#,
    ] {
        assert_eq!(
            json(&service, "/effects", "k", same)
                .await
                .assert(CREATED, true)
                .body,
            first.body
        );
    }
    let typed = |media_type: &'static str| {
        send(
            &service,
            "/effects",
            "k",
            media_type,
            r#"{"note":"a","status":201,"steps":[]}"#,
        )
    };
    typed("application/json; charset=utf-8")
        .await
        .assert(CREATED, true);
    typed("Application/JSON").await.assert(CREATED, true);
    typed("application/problem+json")
        .await
        .assert_problem(422, "key-reused");
    for other in [
        r#"{"note":"A","status":201,"steps":[]}"#,
        r#"{"note":"a","status":202,"steps":[]}"#,
        r#"{"note":"a","status":201}"#,
        r#"{"note":"a","status":201,"steps":[],"steps":[]}"#,
    ] {
        let reply = json(&service, "/effects", "k", other).await;
        // What the extractor does not take never comes to the key.
        assert!(
            reply.problem() == "key-reused" || reply.status == 400,
            "{other}: {}",
            reply.status
        );
        assert!(!reply.is_replay());
    }
    assert_eq!((database.effects(), database.records()), (1, 1));
}

#[tokio::test]
async fn large_integers_are_told_apart() {
    let (database, service) = start().await;
    let body = |number: &str| format!("{{\"amount\":{number}}}");
    for (key, one, other) in [
        ("k", "9007199254740992", "9007199254740993"),
        ("l", "18446744073709551616", "18446744073709551617"),
        ("m", "0.1", "0.10000000000000001"),
        ("n", "1e400", "1e401"),
    ] {
        json(&service, "/echo", key, &body(one))
            .await
            .assert(StatusCode::OK, false);
        json(&service, "/echo", key, &body(other))
            .await
            .assert_problem(422, "key-reused");
        json(&service, "/echo", key, &body(one))
            .await
            .assert(StatusCode::OK, true);
    }
    assert_eq!(database.effects(), 4);
}

#[tokio::test]
async fn duplicate_members_are_compared_by_their_bytes() {
    let (database, service) = start().await;
    json(&service, "/echo", "k", r#"{"a":1,"a":2}"#)
        .await
        .assert(StatusCode::OK, false);
    for other in [
        r#"{"a":2,"a":1}"#,
        r#"{"a":1}"#,
        r#"{"a":2}"#,
        r#"{ "a":1,"a":2}"#,
    ] {
        json(&service, "/echo", "k", other)
            .await
            .assert_problem(422, "key-reused");
    }
    assert_eq!(database.effects(), 1);
}

#[tokio::test]
async fn multipart_is_compared_by_its_parts() {
    let (database, service) = start().await;
    let upload = |boundary: &str, content: &str| {
        let body = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n{content}\r\n--{boundary}--\r\n"
        );
        let media_type = format!("multipart/form-data; boundary={boundary}");
        let request = service
            .client
            .request("/echo")
            .key("k")
            .body(&media_type, body);
        request.send()
    };
    let first = upload("----one", "content").await;
    first.assert(StatusCode::OK, false);
    assert_eq!(
        upload("----two", "content")
            .await
            .assert(StatusCode::OK, true)
            .body,
        first.body
    );
    upload("----two", "Content")
        .await
        .assert_problem(422, "key-reused");
    // A boundary in the content would mean another list of parts.
    upload("----two", "content\r\n------two\r\n\r\nmore")
        .await
        .assert_problem(422, "key-reused");
    assert_eq!(database.effects(), 1);
}

#[tokio::test]
async fn compression_is_no_part_of_the_meaning() {
    let (database, service) = start().await;
    let compressed = |level: u32| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
        encoder.write_all(br#"{"note":"a"}"#).unwrap();
        let request = service
            .client
            .request("/effects")
            .key("k")
            .header("content-encoding", "gzip");
        request
            .body("application/json", encoder.finish().unwrap())
            .send()
    };
    let first = compressed(9).await;
    first.assert(CREATED, false);
    assert!(
        first.text().contains(r#""note":"a""#),
        "the handler gets it decoded"
    );
    compressed(0).await.assert(CREATED, true);
    json(&service, "/effects", "k", r#"{"note":"a"}"#)
        .await
        .assert(CREATED, true);
    json(&service, "/effects", "k", r#"{"note":"b"}"#)
        .await
        .assert_problem(422, "key-reused");
    assert_eq!(database.effects(), 1);
}

#[tokio::test]
async fn raw_fingerprint_compares_bytes() {
    let (database, service) = start().await;
    json(&service, "/raw", "k", r#"{"note":"a","status":201}"#)
        .await
        .assert(CREATED, false);
    json(&service, "/raw", "k", r#"{"note":"a","status":201}"#)
        .await
        .assert(CREATED, true);
    for same_meaning in [
        r#"{"status":201,"note":"a"}"#,
        r#"{"note":"a", "status":201}"#,
    ] {
        json(&service, "/raw", "k", same_meaning)
            .await
            .assert_problem(422, "key-reused");
    }
    assert_eq!(database.effects(), 1);
}

#[tokio::test]
async fn own_fingerprint_compares_what_it_returns_and_nothing_else() {
    let (database, service) = start().await;
    json(&service, "/custom", "k", r#"{"note":"a"}"#)
        .await
        .assert(CREATED, false);
    json(&service, "/custom", "k", r#"{"note":"a","status":200}"#)
        .await
        .assert(CREATED, true);
    json(&service, "/custom?x=1", "k", r#"{"note":"a"}"#)
        .await
        .assert(CREATED, true);
    json(&service, "/custom", "k", r#"{"note":"b"}"#)
        .await
        .assert_problem(422, "key-reused");
    assert_eq!(database.effects(), 1);
}

// ---- who may ----

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
    let database = EFFECTS.database();
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

// ---- keys for other services ----

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

// ---- as the service's own tests see it ----

#[actix_web::test]
async fn guarded_handler_can_be_tested_through_actix_test_service() {
    let database = EFFECTS.database();
    let service = Service::start(&database.url()).await;
    let app = App::new()
        .app_data(web::Data::new(service.idempotency.clone()))
        .app_data(web::Data::new(service.executions.clone()))
        .wrap(middleware::NormalizePath::trim())
        .configure(unscripted::routes)
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
    let (one, two) = (EFFECTS.database(), EFFECTS.database());
    let runs = web::Data::new(Executions::default());
    let scope = |path, database: &Database| {
        let pool = postgres::pool(&database.url()).open().unwrap();
        web::scope(path)
            .app_data(web::Data::new(Idempotency::new(pool).unwrap()))
            .configure(unscripted::routes)
    };
    let nested = scope("", &one).service(scope("/nested", &two));
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
