//! Which key a request carries, and that nobody else gets to see it.

use http::{HeaderName, HeaderValue};
use idem_client::{Error, fresh_key};
use reqwest::{Body, Method, Response};

use crate::log::Log;
use crate::script::{Script, client, gave_up, retries, status};

const URL: &str = "http://user:password@pay.example:8443/payments?token=hidden";

fn keys(script: &Script, header: &str) -> Vec<String> {
    let key = |value: &HeaderValue| value.to_str().unwrap().to_owned();
    let requests = script.seen();
    let keys = requests.iter().flat_map(|seen| seen.get_all(header));
    keys.map(key).collect()
}

#[tokio::test(start_paused = true)]
async fn all_attempts_of_a_call_carry_one_key_and_the_next_call_another() {
    for method in [Method::POST, Method::PATCH] {
        let steps = [status(503), status(429), status(201)];
        let (client, script) = client(retries(), steps);
        client.request(method.clone(), URL).send().await.unwrap();
        client.request(method, URL).send().await.unwrap();
        let keys = keys(&script, "idempotency-key");
        assert_eq!(keys.len(), 4);
        assert!(keys[0] == keys[1] && keys[1] == keys[2] && keys[2] != keys[3]);
        let key: uuid::Uuid = keys[0].parse().unwrap();
        assert_eq!(key.get_version_num(), 7);
    }
}

#[tokio::test(start_paused = true)]
async fn the_callers_key_is_kept_as_it_stands() {
    for key in ["order-7", "\"order-7\""] {
        for method in [Method::POST, Method::PUT, Method::GET] {
            let (client, script) = client(retries().quoted(), [status(503), status(201)]);
            let request = client.request(method, URL).header("Idempotency-Key", key);
            request.send().await.unwrap();
            assert_eq!(keys(&script, "idempotency-key"), [key, key]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn methods_that_are_idempotent_by_themselves_get_no_key() {
    for method in ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"] {
        let (client, script) = client(retries(), [status(200)]);
        let method: Method = method.parse().unwrap();
        client.request(method, URL).send().await.unwrap();
        assert!(keys(&script, "idempotency-key").is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn the_header_can_have_another_name_and_quotes() {
    let retries = retries()
        .header(HeaderName::from_static("x-request-key"))
        .quoted();
    let (client, script) = client(retries, [status(201)]);
    client.post(URL).send().await.unwrap();
    client
        .post(URL)
        .header("X-Request-Key", "order-7")
        .send()
        .await
        .unwrap();
    let keys_sent = keys(&script, "x-request-key");
    let bare = keys_sent[0]
        .strip_prefix('"')
        .and_then(|key| key.strip_suffix('"'));
    assert!(bare.unwrap().parse::<uuid::Uuid>().is_ok());
    assert_eq!(keys_sent[1], "order-7");
    assert!(keys(&script, "idempotency-key").is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_repeated_is_refused_before_anything_is_sent() {
    let (client, script) = client(retries(), [status(201)]);
    let answer = Response::from(http::Response::new("any response is a stream"));
    let stream = client.post(URL).body(Body::from(answer)).send().await;
    assert!(matches!(
        Error::of(&stream.unwrap_err()),
        Some(Error::BodyStreams)
    ));

    let twice = client
        .post(URL)
        .header("Idempotency-Key", "a")
        .header("Idempotency-Key", "a");
    let twice = twice.send().await.unwrap_err();
    assert!(matches!(Error::of(&twice), Some(Error::KeyGivenTwice)));

    for malformed in ["", "schlüssel"] {
        let request = client.post(URL).header("Idempotency-Key", malformed);
        let error = request.send().await.unwrap_err();
        assert!(matches!(Error::of(&error), Some(Error::KeyMalformed)));
    }
    assert_eq!(script.requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_failed_gives_its_key_back() {
    let (client, script) = client(retries(), [status(503)]);
    let error = client.post(URL).send().await.unwrap_err();
    let key = gave_up(&error).key().unwrap().clone();
    client
        .post(URL)
        .header("Idempotency-Key", key)
        .send()
        .await
        .unwrap_err();
    let keys = keys(&script, "idempotency-key");
    assert!(keys.len() > 2);
    assert!(keys.iter().all(|key| *key == keys[0]));
}

#[tokio::test(start_paused = true)]
async fn neither_errors_nor_logs_show_key_body_query_or_credentials() {
    let log = Log::default();
    let _guard = log.collect();
    let (client, script) = client(retries(), [status(503)]);
    let request = client.post(URL).header("Idempotency-Key", "key-hidden");
    let error = request.body("body-hidden").send().await.unwrap_err();
    let log = log.text();
    assert!(log.contains("repeating a request"), "{log}");
    assert!(
        log.contains("POST http://pay.example:8443/payments"),
        "{log}"
    );
    let headers = format!("{:?}", script.seen());
    assert!(headers.contains("idempotency-key"), "{headers}");
    for text in [log, error.to_string(), format!("{error:?}"), headers] {
        assert!(!text.contains("hidden"), "{text}");
        assert!(!text.contains("password"), "{text}");
    }
}

#[test]
fn fresh_keys_differ_and_sort_by_time() {
    let keys: Vec<_> = (0..1000).map(|_| fresh_key()).collect();
    assert!(keys.is_sorted_by(|earlier, later| earlier < later));
}
