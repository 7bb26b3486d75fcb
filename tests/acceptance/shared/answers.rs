//! What is stored of an answer, and what a repeat is sent: status, headers in order, body, and none of what belongs to one exchange.

use std::time::Duration;

use actix_web::{HttpResponse, http::header, middleware, web};
use idem_tests::service::{
    Reply,
    bare::post,
    script::{Script, Step},
};
use reqwest::StatusCode;

use super::{Service, Setup, database, routes, start};

/// Sends a script twice and checks that the second answer is the first one's replay.
async fn twice(service: &Service, key: &str, script: &Script) -> (Reply, Reply) {
    let status = StatusCode::from_u16(script.status).unwrap();
    let live = service.post(key, script).await;
    live.assert(status, false);
    let replay = service.post(key, script).await;
    replay.assert(status, true);
    assert_eq!(replay.body, live.body);
    (live, replay)
}

fn answering(status: u16, headers: &[(&str, &str)]) -> Script {
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Script {
        headers: headers.collect(),
        ..Script::answering(status)
    }
}

fn values(reply: &Reply, name: &str) -> Vec<String> {
    let values = reply.headers.get_all(name).iter();
    values
        .map(|value| value.to_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn status_and_location_are_replayed() {
    let (database, service) = start().await;
    for (number, status) in [200, 201, 202, 303, 308, 402, 404].into_iter().enumerate() {
        let script = answering(status, &[("Location", "/payments/7")]);
        let (live, replay) = twice(&service, &format!("k-{number}"), &script).await;
        assert_eq!(values(&live, "location"), ["/payments/7"]);
        assert_eq!(values(&replay, "location"), ["/payments/7"]);
        assert_eq!(
            values(&replay, "content-type"),
            values(&live, "content-type")
        );
    }
    assert_eq!((database.effects(), database.records()), (5, 7));
}

#[tokio::test]
async fn repeated_headers_are_kept_in_order_each_time() {
    let (_database, service) = start().await;
    let lines = [
        ("Link", "<a>; rel=next"),
        ("Vary", "Accept"),
        ("X-Empty", ""),
        ("Link", "<b>; rel=prev, <c>"),
        ("Vary", "Origin"),
        ("Link", "<a>; rel=next"),
        ("Cache-Control", "private"),
        ("ETag", "\"v\u{e9}rsion\""),
    ];
    let script = answering(201, &lines[..7]);
    let live = service.post("k", &script).await;
    let replays = [
        service.post("k", &script).await,
        service.post("k", &script).await,
    ];
    for reply in [&live, &replays[0], &replays[1]] {
        assert_eq!(
            values(reply, "link"),
            ["<a>; rel=next", "<b>; rel=prev, <c>", "<a>; rel=next"]
        );
        assert_eq!(values(reply, "vary"), ["Accept", "Origin"]);
        assert_eq!(values(reply, "x-empty"), [""]);
        assert_eq!(values(reply, "cache-control"), ["private"]);
    }
    let script = answering(201, &lines[7..]);
    let (live, replay) = twice(&service, "bytes", &script).await;
    assert_eq!(
        live.headers["etag"].as_bytes(),
        "\"v\u{e9}rsion\"".as_bytes()
    );
    assert_eq!(replay.headers["etag"], live.headers["etag"]);
}

#[tokio::test]
async fn credentials_and_hop_by_hop_headers_are_sent_once_and_not_stored() {
    let (database, service) = start().await;
    let once = [
        ("Set-Cookie", "session=secret; HttpOnly"),
        ("Set-Cookie", "theme=dark"),
        ("WWW-Authenticate", "Bearer"),
        ("Authentication-Info", "nextnonce=1"),
        ("Proxy-Authenticate", "Basic"),
        ("Date", "Thu, 01 Jan 1970 00:00:00 GMT"),
        ("Keep-Alive", "timeout=5"),
        ("X-Hop", "for this connection"),
        ("Connection", "X-Hop"),
    ];
    let (live, replay) = twice(&service, "k", &answering(201, &once)).await;
    assert_eq!(
        values(&live, "set-cookie"),
        ["session=secret; HttpOnly", "theme=dark"]
    );
    for (name, value) in once {
        if !["Connection", "Date"].contains(&name) {
            assert!(
                values(&live, name).contains(&value.to_owned()),
                "{name} in the live answer"
            );
        }
        assert!(
            !values(&replay, name).contains(&value.to_owned()),
            "{name} in the replay"
        );
    }
    assert!(replay.headers.contains_key("date"), "a date of its own");
    let stored = database.stored("headers");
    assert!(
        !stored.contains("secret") && !stored.contains("1970"),
        "{stored}"
    );
}

#[tokio::test]
async fn mark_of_a_replay_stands_there_once_whatever_the_handler_says() {
    let (_database, service) = start().await;
    let script = answering(200, &[("Idempotent-Replayed", "false")]);
    let live = service.post("k", &script).await;
    assert_eq!((live.status, live.is_replay()), (200, false));
    let replay = service.post("k", &script).await;
    assert_eq!(values(&replay, "idempotent-replayed"), ["true"]);
}

#[tokio::test]
async fn answers_without_a_body_have_none_the_second_time_either() {
    let (database, service) = start().await;
    for (key, status, length) in [("k", 204, None), ("l", 200, Some("0"))] {
        let lines = [
            &*format!("Idempotency-Key: {key}"),
            &*format!("X-Status: {status}"),
            "Content-Length: 0",
        ];
        for replayed in [false, true] {
            let mut connection = service.client.connect().await;
            connection.send(post("/silent", &lines, "")).await.unwrap();
            let answer = connection.receive().await.unwrap();
            assert_eq!(
                answer.header("content-length"),
                length,
                "{status} {replayed}"
            );
            assert_eq!(answer.header("transfer-encoding"), None);
            assert_eq!(answer.header("idempotent-replayed").is_some(), replayed);
            assert_eq!((answer.status, &*answer.body), (status, &[][..]));
            // Nothing is left on the connection that would pass for the next answer.
            connection
                .send(post("/nowhere", &["Content-Length: 0"], ""))
                .await
                .unwrap();
            assert_eq!(connection.receive().await.unwrap().status, 404);
        }
    }
    assert_eq!(database.records(), 2);
}

#[tokio::test]
async fn body_is_stored_as_bytes() {
    let (database, service) = start().await;
    let all: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
    for (key, body) in [("k", all), ("l", Vec::new()), ("m", b"\0".to_vec())] {
        for replayed in [false, true] {
            let request = service.client.request("/echo").key(key);
            let reply = request
                .body("application/octet-stream", body.clone())
                .send()
                .await;
            assert_eq!(*reply.assert(StatusCode::OK, replayed).body, *body);
            assert_eq!(values(&reply, "content-type"), ["application/octet-stream"]);
            assert_eq!(values(&reply, "content-length"), [body.len().to_string()]);
        }
    }
    assert_eq!((database.effects(), database.records()), (3, 3));
}

#[tokio::test]
async fn answer_may_be_as_long_as_its_limit_and_no_longer() {
    let (database, service) = start().await;
    let send = |key: &'static str, status: u16, length: usize| {
        let script = Script {
            length,
            ..Script::answering(status)
        };
        service
            .client
            .request("/small")
            .key(key)
            .script(&script)
            .send()
    };
    for replayed in [false, true] {
        let reply = send("limit", 201, 1024).await;
        assert_eq!(reply.assert(StatusCode::CREATED, replayed).body.len(), 1024);
    }
    assert_eq!((database.effects(), database.records()), (1, 1));
    for status in [201, 303, 402] {
        send("k", status, 1025)
            .await
            .assert_problem(500, "internal");
    }
    assert_eq!((database.effects(), database.records()), (1, 1));
    // What is not stored is not limited.
    assert_eq!(send("k", 500, 5000).await.body.len(), 5000);
    // The key is free.
    send("k", 201, 10).await.assert(StatusCode::CREATED, false);
    assert_eq!((service.executions.get(), database.effects()), (6, 2));
}

#[tokio::test]
async fn streamed_answer_is_collected_and_replayed() {
    let (database, service) = start().await;
    let send = |key: &'static str, body: String| {
        let request = service.client.request("/streamed").key(key);
        request.body("text/plain", body).send()
    };
    for replayed in [false, true] {
        let reply = send("k", "one two three".to_owned()).await;
        assert_eq!(reply.assert(StatusCode::OK, replayed).text(), "onetwothree");
        assert_eq!(values(&reply, "content-length"), ["11"]);
    }
    let words = |count: usize| vec!["x".repeat(128); count].join(" ");
    assert_eq!(
        send("limit", words(8))
            .await
            .assert(StatusCode::OK, false)
            .body
            .len(),
        1024
    );
    send("over", words(9)).await.assert_problem(500, "internal");
    send("broken", "one fail".to_owned())
        .await
        .assert_problem(500, "internal");
    assert_eq!((database.effects(), database.records()), (2, 2));
    send("over", "less".to_owned())
        .await
        .assert(StatusCode::OK, false);
}

fn compressed(app: &mut web::ServiceConfig) {
    app.service(
        web::scope("/compressed")
            .wrap(middleware::Compress::default())
            .route("/effects", web::post().to(routes::effects))
            .route("/echo", web::post().to(routes::echo)),
    );
}

#[tokio::test]
async fn answers_fit_each_client_behind_compression() {
    let database = database();
    let service = Service::with(
        &database.url(),
        Setup {
            routes: compressed,
            ..Setup::default()
        },
    )
    .await;
    let script = Script {
        length: 5000,
        ..answering(201, &[("Vary", "Origin")])
    };
    let script = serde_json::to_string(&script).unwrap();
    let length = format!("Content-Length: {}", script.len());
    let json = "Content-Type: application/json";
    // Whichever kind of client came first: all others get what they can read.
    for (key, clients) in [("k", [true, false, true]), ("l", [false, true, false])] {
        for (number, gzip) in clients.into_iter().enumerate() {
            let key = format!("Idempotency-Key: {key}");
            let accept = ["Accept-Encoding: identity", "Accept-Encoding: gzip"][usize::from(gzip)];
            let mut connection = service.client.connect().await;
            connection
                .send(post(
                    "/compressed/effects",
                    &[&key, json, &length, accept],
                    &script,
                ))
                .await
                .unwrap();
            let answer = connection.receive().await.unwrap();
            assert_eq!(answer.status, 201);
            assert_eq!(answer.header("idempotent-replayed").is_some(), number > 0);
            assert_eq!(answer.header("content-encoding"), gzip.then_some("gzip"));
            let body = if gzip {
                gunzip(&answer.body)
            } else {
                answer.body.clone()
            };
            assert_eq!(body, [b'x'; 5000], "{gzip}");
            if let Some(length) = answer.header("content-length") {
                assert_eq!(length, answer.body.len().to_string());
            }
            let vary: Vec<_> = answer.header_values("vary").collect();
            assert!(vary.contains(&"Origin"), "{vary:?}");
        }
    }
    assert_eq!((service.executions.get(), database.records()), (2, 2));
}

#[tokio::test]
async fn answer_that_the_handler_has_compressed_is_replayed_as_it_is() {
    let database = database();
    let service = Service::with(
        &database.url(),
        Setup {
            routes: compressed,
            ..Setup::default()
        },
    )
    .await;
    let script = answering(201, &[("Content-Encoding", "br"), ("ETag", "\"1\"")]);
    for replayed in [false, true] {
        let request = service.client.request("/compressed/effects").key("k");
        let reply = request
            .header("accept-encoding", "gzip, br")
            .script(&script)
            .send()
            .await;
        reply.assert(StatusCode::CREATED, replayed);
        assert_eq!(values(&reply, "content-encoding"), ["br"]);
        assert!(
            reply.text().starts_with('{'),
            "not compressed a second time"
        );
    }
}

#[tokio::test]
async fn answer_to_every_fault_of_the_frameworks_own_is_rendered_by_the_service() {
    let database = database();
    let setup = Setup {
        pool: 1,
        pool_wait: Duration::from_millis(300),
        configure: |builder| {
            builder
                .body_timeout(Duration::from_millis(400))
                .render(|problem, request| {
                    HttpResponse::build(problem.status())
                        .insert_header(("x-type", problem.type_uri()))
                        .insert_header(("x-path", request.path()))
                        .insert_header((header::CONTENT_TYPE, "text/plain"))
                        .body(format!("{}: {}", problem.title(), problem.detail()))
                })
        },
        ..Setup::default()
    };
    let service = Service::with(&database.url(), setup).await;
    let request = |path: &'static str, key: &'static str, script: &Script| {
        service.client.request(path).key(key).script(script).send()
    };
    let mut replies = vec![
        service.client.request("/effects").send().await,
        request("/effects", "a b", &Script::default()).await,
        request("/small", "k", &Script::default().note(&"x".repeat(2000))).await,
        request("/effects", "panic", &Script::of([Step::Panic])).await,
        request("/hurried", "hurried", &Script::sleeping(5000)).await,
        service
            .client
            .raw(post(
                "/effects",
                &["Idempotency-Key: k", "Content-Length: 9"],
                "",
            ))
            .await,
    ];
    let encoded = service
        .client
        .request("/effects")
        .key("k")
        .header("content-encoding", "lzma");
    replies.push(encoded.send().await);
    let corrupt = service
        .client
        .request("/effects")
        .key("k")
        .header("content-encoding", "gzip");
    replies.push(corrupt.body("application/json", "{}").send().await);
    request("/effects", "k", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);
    replies.push(request("/effects", "k", &Script::default().note("other")).await);
    let slow = Script::sleeping(2000);
    let (first, others) = tokio::join!(request("/effects", "slow", &slow), async {
        let before = service.executions.get();
        while service.executions.get() == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        [
            request("/effects", "slow", &slow).await,
            request("/effects", "busy", &slow).await,
        ]
    });
    first.assert(StatusCode::CREATED, false);
    replies.extend(others);

    let mut kinds: Vec<_> = replies
        .iter()
        .map(|reply| {
            assert_eq!(
                values(reply, "content-type"),
                ["text/plain"],
                "{}",
                reply.text()
            );
            assert_eq!(values(reply, "x-path").len(), 1);
            values(reply, "x-type")[0]
                .trim_start_matches("urn:problem-type:idempotency:")
                .to_owned()
        })
        .collect();
    kinds.sort_unstable();
    assert_eq!(
        kinds,
        [
            "body-incomplete",
            "body-timeout",
            "body-too-large",
            "encoding-unsupported",
            "handler-timeout",
            "in-progress",
            "internal",
            "key-invalid",
            "key-missing",
            "key-reused",
            "store-unavailable",
        ]
    );
}

fn gunzip(body: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(body), &mut decoded).unwrap();
    decoded
}
