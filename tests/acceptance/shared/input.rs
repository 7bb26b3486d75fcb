//! Requests that are malformed, too large or too slow: each is refused with its own problem, and nothing is executed or written.

use std::{io::Write, time::Duration};

use actix_web::{
    body::BoxBody,
    dev::ServiceRequest,
    middleware::{self, Next},
    web,
};
use flate2::{Compression, write::GzEncoder};
use idem_tests::service::{Reply, bare::post, script::Script};
use reqwest::StatusCode;

use super::{Database, Service, Setup, database, routes, start};

const JSON: &str = "Content-Type: application/json";
const KEY: &str = "Idempotency-Key: k";
/// What `/small` takes.
const LIMIT: usize = 1024;

#[tokio::test]
async fn request_without_a_key_is_refused() {
    let (database, service) = start().await;
    let refused = service
        .client
        .request("/effects")
        .script(&Script::default());
    refused.send().await.assert_problem(400, "key-missing");
    assert_untouched(&database, &service).await;
}

#[tokio::test]
async fn owner_that_is_too_long_or_nobody_is_refused() {
    let (database, service) = start().await;
    let request = |account: &str| service.client.request("/effects").account(account).key("k");
    let too_long = request(&"a".repeat(513)).script(&Script::default());
    too_long.send().await.assert_problem(400, "scope-invalid");
    let nobody = request("").script(&Script::default());
    nobody.send().await.assert_problem(400, "scope-invalid");
    assert_untouched(&database, &service).await;
    let longest = request(&"a".repeat(512)).script(&Script::default());
    longest.send().await.assert(StatusCode::CREATED, false);
}

#[tokio::test]
async fn malformed_key_is_refused() {
    let (database, service) = start().await;
    let too_long = "k".repeat(256);
    let values: [&[u8]; 15] = [
        b"",
        b"   ",
        b"\t",
        b"\"\"",
        b"\"  \"",
        b"a b",
        b"\"unbalanced",
        b"unbalanced\"",
        b"\"a\", \"b\"",
        b"\"a\";v=1",
        b"\"a\\n\"",
        too_long.as_bytes(),
        b"schl\xfcssel",
        "schlüssel".as_bytes(),
        b"a\xa0",
    ];
    for value in values {
        let head = b"POST /effects HTTP/1.1\r\nHost: t\r\nX-Account: a\r\nContent-Length: 0\r\nIdempotency-Key: ";
        let reply = service
            .client
            .raw([head, value, b"\r\n\r\n"].concat())
            .await;
        let value = String::from_utf8_lossy(value);
        assert_eq!(
            (reply.status, &*reply.problem()),
            (400, "key-invalid"),
            "{value:?}"
        );
        let repeated = value.len() > 2 && reply.text().contains(&*value);
        assert!(!repeated, "the refusal repeats {value:?}");
    }
    assert_untouched(&database, &service).await;
}

#[tokio::test]
async fn control_characters_in_a_key_do_not_reach_the_handler() {
    let (database, service) = start().await;
    for value in ["a\0b", "a\x7f", "a\x01", "a\rb"] {
        let request = post(
            "/effects",
            &[&format!("Idempotency-Key: {value}"), "Content-Length: 0"],
            "",
        );
        assert_eq!(service.client.raw(request).await.status, 400, "{value:?}");
    }
    assert_untouched(&database, &service).await;
}

#[tokio::test]
async fn two_key_lines_are_refused_even_if_they_are_equal() {
    let (database, service) = start().await;
    for second in ["Idempotency-Key: other", KEY, "idempotency-key: \"k\""] {
        let request = post("/effects", &[KEY, second, JSON, "Content-Length: 2"], "{}");
        service
            .client
            .raw(request)
            .await
            .assert_problem(400, "key-invalid");
    }
    assert_untouched(&database, &service).await;
}

#[tokio::test]
async fn key_is_data_to_the_database() {
    let (database, service) = start().await;
    for key in [
        "');DROP/**/TABLE/**/effects;--",
        "%s\\'$1;",
        "\\N",
        "{}[]<>|&^~`",
    ] {
        let first = service.post(key, &Script::default()).await;
        first.assert(StatusCode::CREATED, false);
        let again = service.post(key, &Script::default()).await;
        assert_eq!(again.assert(StatusCode::CREATED, true).body, first.body);
    }
    assert_eq!((database.effects(), database.records()), (4, 4));
}

#[tokio::test]
async fn body_over_the_limit_is_refused_before_it_is_sent() {
    let (database, service) = start().await;
    for length in ["1025", "99999999999", "18446744073709551615"] {
        let request = post(
            "/small",
            &[KEY, JSON, &format!("Content-Length: {length}")],
            "",
        );
        let mut connection = service.client.connect().await;
        connection.send(request).await.unwrap();
        connection
            .reply()
            .await
            .assert_problem(413, "body-too-large");
        // Nobody reads the rest, so the connection cannot be used again.
        assert!(connection.receive().await.is_err());
    }
    assert_untouched(&database, &service).await;
}

#[tokio::test]
async fn body_in_chunks_over_the_limit_is_refused_where_it_exceeds_it() {
    let (database, service) = start().await;
    let mut connection = service.client.connect().await;
    let head = post("/small", &[KEY, JSON, "Transfer-Encoding: chunked"], "");
    connection.send(head).await.unwrap();
    for _ in 0..LIMIT {
        connection.send("1\r\n \r\n").await.unwrap();
    }
    connection.send("1\r\n \r\n").await.unwrap();
    // The last chunk never comes.
    connection
        .reply()
        .await
        .assert_problem(413, "body-too-large");
    assert_untouched(&database, &service).await;
}

#[tokio::test]
async fn body_of_exactly_the_limit_is_taken_in_both_framings() {
    let (database, service) = start().await;
    for (key, length) in [("below", LIMIT - 1), ("limit", LIMIT)] {
        let body = padded(length);
        let announced = service.client.request("/small").key(key);
        announced
            .body("application/json", body.clone())
            .send()
            .await
            .assert(StatusCode::CREATED, false);
        // The framing is no part of the request's meaning.
        let chunked = format!("{length:x}\r\n{body}\r\n0\r\n\r\n");
        let lines = [
            &format!("Idempotency-Key: {key}"),
            JSON,
            "Transfer-Encoding: chunked",
        ];
        let repeat = service.client.raw(post("/small", &lines, chunked)).await;
        repeat.assert(StatusCode::CREATED, true);
    }
    let over = service.client.request("/small").key("over");
    over.body("application/json", padded(LIMIT + 1))
        .send()
        .await
        .assert_problem(413, "body-too-large");
    assert_eq!((database.effects(), database.records()), (2, 2));
}

#[tokio::test]
async fn body_that_ends_early_is_not_taken_for_complete() {
    let (database, service) = start().await;
    let begun = format!("{{}}{}", " ".repeat(38));
    for request in [
        post("/effects", &[KEY, JSON, "Content-Length: 100"], &begun),
        post(
            "/effects",
            &[KEY, JSON, "Transfer-Encoding: chunked"],
            format!("28\r\n{begun}\r\n"),
        ),
        post(
            "/effects",
            &[KEY, JSON, "Transfer-Encoding: chunked"],
            format!("64\r\n{begun}"),
        ),
    ] {
        let mut connection = service.client.connect().await;
        connection.send(request).await.unwrap();
        connection.fin().await.unwrap();
        // An answer is a courtesy here: the client may be gone.
        if let Ok(answer) = connection.receive().await {
            Reply::from(answer).assert_problem(400, "body-incomplete");
        }
    }
    assert_untouched(&database, &service).await;
}

#[tokio::test]
async fn body_with_broken_chunks_is_refused() {
    let (database, service) = start().await;
    let request = post(
        "/effects",
        &[KEY, JSON, "Transfer-Encoding: chunked"],
        "2\r\n{}\r\nZZ\r\n",
    );
    assert_eq!(service.client.raw(request).await.status, 400);
    assert_untouched(&database, &service).await;
}

#[tokio::test]
async fn body_that_comes_too_slowly_is_refused_in_time() {
    let (database, service) = with_body_timeout().await;
    let mut silent = service.client.connect().await;
    let head = post("/effects", &[KEY, JSON, "Content-Length: 100"], "{}");
    silent.send(&head).await.unwrap();
    silent.reply().await.assert_problem(408, "body-timeout");
    assert!(silent.receive().await.is_err(), "the connection is closed");

    // A byte now and then does not prolong it.
    let mut dripping = service.client.connect().await;
    dripping.send(&head).await.unwrap();
    let drip = async {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let _ = dripping.send(" ").await;
            if let Ok(answer) =
                tokio::time::timeout(Duration::from_millis(1), dripping.receive()).await
            {
                break answer;
            }
        }
    };
    let answer = tokio::time::timeout(Duration::from_secs(10), drip).await;
    if let Ok(answer) = answer.expect("an end before the body's") {
        Reply::from(answer).assert_problem(408, "body-timeout");
    }
    assert_untouched(&database, &service).await;
}

fn swallowing(app: &mut web::ServiceConfig) {
    let swallow = middleware::from_fn(async |mut request: ServiceRequest, next: Next<BoxBody>| {
        request.extract::<web::Bytes>().await?;
        next.call(request).await
    });
    app.configure(routes::configure).service(
        web::scope("/swallowing")
            .wrap(swallow)
            .route("/echo", web::post().to(routes::echo)),
    );
}

#[tokio::test]
async fn body_that_a_middleware_has_swallowed_is_missed_in_both_framings() {
    let database = database();
    let setup = Setup {
        routes: swallowing,
        ..Setup::default()
    };
    let service = Service::with(&database.url(), setup).await;
    for (framing, body) in [
        ("Content-Length: 3", "one"),
        ("Transfer-Encoding: chunked", "3\r\none\r\n0\r\n\r\n"),
    ] {
        let request = post("/swallowing/echo", &[KEY, framing], body);
        let reply = service.client.raw(request).await;
        assert_eq!(
            (reply.status, &*reply.problem()),
            (500, "internal"),
            "{framing}"
        );
    }
    assert_untouched(&database, &service).await;
    // Where there was none to swallow, none is missed.
    let request = post(
        "/swallowing/echo",
        &["Idempotency-Key: none", "Content-Length: 0"],
        "",
    );
    service
        .client
        .raw(request)
        .await
        .assert(StatusCode::OK, false);
}

#[tokio::test]
async fn unknown_content_encoding_is_refused() {
    let (database, service) = start().await;
    for encoding in ["lzma", "gzip, gzip", "compress", "", "*", "gzip;q=1"] {
        let encoding = format!("Content-Encoding: {encoding}");
        let request = post(
            "/effects",
            &[KEY, JSON, &encoding, "Content-Length: 2"],
            "{}",
        );
        let reply = service.client.raw(request).await;
        assert_eq!(
            (reply.status, &*reply.problem()),
            (415, "encoding-unsupported"),
            "{encoding}"
        );
    }
    let twice = ["Content-Encoding: gzip", "Content-Encoding: identity"];
    let request = post(
        "/effects",
        &[KEY, JSON, twice[0], twice[1], "Content-Length: 2"],
        "{}",
    );
    service
        .client
        .raw(request)
        .await
        .assert_problem(415, "encoding-unsupported");
    assert_untouched(&database, &service).await;
}

#[tokio::test]
async fn compressed_body_is_limited_by_what_it_decodes_to() {
    let (database, service) = start().await;
    send_gzip(&service, "bomb", gzip(&" ".repeat(10 << 20)))
        .await
        .assert_problem(413, "body-too-large");
    send_gzip(&service, "k", gzip(&padded(LIMIT + 1)))
        .await
        .assert_problem(413, "body-too-large");
    assert_untouched(&database, &service).await;
    send_gzip(&service, "limit", gzip(&padded(LIMIT)))
        .await
        .assert(StatusCode::CREATED, false);
}

#[tokio::test]
async fn corrupt_compressed_body_is_refused() {
    let (database, service) = start().await;
    let whole = gzip(&padded(LIMIT));
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    for body in [
        b"{}".to_vec(),
        whole[..whole.len() / 2].to_vec(),
        whole[..whole.len() - 1].to_vec(),
        damaged,
        Vec::new(),
    ] {
        send_gzip(&service, "k", body)
            .await
            .assert_problem(400, "body-incomplete");
    }
    assert_untouched(&database, &service).await;
}

#[tokio::test]
async fn compressed_body_with_something_behind_it_is_not_executed() {
    let (database, service) = start().await;
    for rest in [gzip("{}"), b"trailing".to_vec()] {
        let reply = send_gzip(&service, "k", [gzip("{}"), rest].concat()).await;
        reply.assert_problem(400, "body-incomplete");
    }
    assert_untouched(&database, &service).await;
}

#[tokio::test]
async fn empty_body_is_the_extractors_affair_and_the_key_stays_free() {
    let (database, service) = start().await;
    let empty = service
        .client
        .request("/effects")
        .key("k")
        .body("application/json", "");
    let reply = empty.send().await;
    assert_eq!(
        (reply.status, &*reply.problem()),
        (400, ""),
        "{}",
        reply.text()
    );
    assert_untouched(&database, &service).await;
}

#[tokio::test]
async fn request_with_both_length_headers_is_refused() {
    let (database, service) = start().await;
    let lines = [
        KEY,
        JSON,
        "Content-Length: 12",
        "Transfer-Encoding: chunked",
    ];
    let request = post("/effects", &lines, "2\r\n{}\r\n0\r\n\r\n");
    assert_eq!(service.client.raw(request).await.status, 400);
    for twice in [
        ["Content-Length: 2", "Content-Length: 3"],
        ["Content-Length: +2", "X: y"],
    ] {
        let request = post("/effects", &[KEY, JSON, twice[0], twice[1]], "{}");
        assert_eq!(service.client.raw(request).await.status, 400);
    }
    assert_untouched(&database, &service).await;
}

#[tokio::test]
async fn slow_and_oversized_bodies_hold_no_connection_of_the_pool() {
    let database = database();
    let setup = Setup {
        pool: 1,
        ..Setup::default()
    };
    let service = Service::with(&database.url(), setup).await;
    let mut slow = Vec::new();
    for n in 0..20 {
        let key = format!("Idempotency-Key: slow-{n}");
        let mut connection = service.client.connect().await;
        let framing = ["Content-Length: 100", "Transfer-Encoding: chunked"][n % 2];
        let begun = ["{", "400\r\n{"][n % 2];
        connection
            .send(post("/small", &[&key, JSON, framing], begun))
            .await
            .unwrap();
        slow.push(connection);
    }
    let reply = service.post("k", &Script::default()).await;
    reply.assert(StatusCode::CREATED, false);
    assert_eq!(service.executions.get(), 1);
    drop(slow);
}

#[tokio::test]
async fn body_of_a_refused_request_is_never_read_as_the_next_request() {
    let (database, service) = start().await;
    let smuggled = post(
        "/effects",
        &["Idempotency-Key: smuggled", JSON, "Content-Length: 2"],
        "{}",
    );
    let length = format!("Content-Length: {}", smuggled.len());
    let long = format!("Content-Length: {}", smuggled.len() + LIMIT);
    for lines in [
        vec![JSON, &length],
        vec!["Idempotency-Key: a b", JSON, &length],
        vec![KEY, JSON, "Content-Encoding: lzma", &length],
        vec![KEY, JSON, &long],
    ] {
        let mut connection = service.client.connect().await;
        connection
            .send(post("/small", &lines, &smuggled))
            .await
            .unwrap();
        let refused = connection.reply().await;
        assert!((400..500).contains(&refused.status), "{}", refused.text());
        // The connection is closed, or the next answer belongs to the next request.
        let _ = connection
            .send("GET /nowhere HTTP/1.1\r\nHost: t\r\n\r\n")
            .await;
        if let Ok(answer) = connection.receive().await {
            assert_eq!(answer.status, 404, "{lines:?}");
        }
    }
    assert_untouched(&database, &service).await;
}

async fn with_body_timeout() -> (Database, Service) {
    let database = database();
    let setup = Setup {
        configure: |builder| builder.body_timeout(Duration::from_millis(400)),
        ..Setup::default()
    };
    let service = Service::with(&database.url(), setup).await;
    (database, service)
}

/// Checks that nothing was executed or written, and that the key `k` is still good for a request.
async fn assert_untouched(database: &Database, service: &Service) {
    assert_eq!(service.executions.get(), 0);
    assert_eq!((database.effects(), database.records()), (0, 0));
    let reply = service.post("k", &Script::default()).await;
    reply.assert(StatusCode::CREATED, false);
}

async fn send_gzip(service: &Service, key: &str, body: Vec<u8>) -> Reply {
    let request = service.client.request("/small").key(key);
    let request = request.header("content-encoding", "gzip");
    request.body("application/json", body).send().await
}

/// An empty script of this length.
fn padded(length: usize) -> String {
    format!("{{}}{}", " ".repeat(length - 2))
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}
