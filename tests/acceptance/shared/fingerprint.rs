//! What makes two requests under one key the same request.

use std::io::Write;

use actix_web::{
    body::BoxBody,
    dev::{Payload, ServiceRequest, ServiceResponse},
    middleware::{self, Next},
    web,
};
use flate2::{Compression, write::GzEncoder};
use idem_tests::service::bare::post;
use reqwest::StatusCode;

use super::{CREATED, Service, Setup, database, json, routes, send, start};

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
    let database = database();
    let setup = Setup {
        routes: |app| {
            let reading = middleware::from_fn(read_and_put_back);
            app.configure(routes::configure).service(
                web::scope("/read")
                    .wrap(reading)
                    .route("/echo", web::post().to(routes::echo)),
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
