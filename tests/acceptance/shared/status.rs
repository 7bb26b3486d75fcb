//! What a client is told that asks for the status of a key.

use std::time::{Duration, Instant};

use idem_tests::service::{Client, Reply, script::Script};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::sleep};

use super::start;

/// The operation of the usual handler, as it stands in a path.
pub(crate) const EFFECTS: &str = "/idempotency/POST%20%2Feffects";

pub(crate) async fn ask(client: &Client, path: &str) -> Reply {
    let reply = client.method(Method::GET, path).send().await;
    assert_eq!(reply.headers["cache-control"], "no-store", "{path}");
    reply
}

/// Asks for the document and checks that it is one.
pub(crate) async fn document(client: &Client, path: &str) -> Value {
    let reply = ask(client, path).await;
    reply.assert(StatusCode::OK, false);
    assert_eq!(reply.headers["content-type"], "application/json");
    serde_json::from_slice(&reply.body).unwrap()
}

#[tokio::test]
async fn key_is_unknown_before_its_request_and_executed_afterwards() {
    let (database, service) = start().await;
    let path = format!("{EFFECTS}/k");
    ask(&service.client, &path)
        .await
        .assert_problem(404, "key-unknown");

    service
        .post("k", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);
    let document = document(&service.client, &path).await;
    assert_eq!(
        (&document["state"], &document["status"]),
        (&json!("executed"), &json!(201))
    );
    let lifetime = document["lifetime"].as_i64().unwrap();
    assert!((86_390..=86_400).contains(&lifetime), "{document}");
    let time = |member: &str| {
        let time = document[member].as_str().unwrap().to_owned();
        assert!(
            time.len() == 24 && time.ends_with('Z') && &time[10..11] == "T",
            "{time}"
        );
        time
    };
    assert!(time("created") < time("expires"));
    // One day, to the millisecond.
    assert_eq!(time("created")[10..], time("expires")[10..]);
    assert_eq!((database.effects(), database.records()), (1, 1));
    assert_eq!(service.executions.get(), 1);
}

#[tokio::test]
async fn stored_answer_is_given_to_whoever_asks_for_it() {
    let (_database, service) = start().await;
    let script = Script {
        headers: vec![
            ("x-one".to_owned(), "1".to_owned()),
            ("cache-control".to_owned(), "public, max-age=60".to_owned()),
        ],
        ..Script::default()
    };
    let first = service.post("k", &script).await;
    let asked = ask(&service.client, &format!("{EFFECTS}/k?answer=true")).await;
    asked.assert(StatusCode::CREATED, true);
    assert_eq!(
        (&asked.body, &asked.headers["x-one"]),
        (&first.body, &first.headers["x-one"])
    );
    // A cache would give it to strangers.
    assert_eq!(asked.headers.get_all("cache-control").iter().count(), 1);
    let plain = document(&service.client, &format!("{EFFECTS}/k?answer=false")).await;
    assert_eq!(plain["state"], "executed");
}

#[tokio::test]
async fn key_of_another_account_cannot_be_told_from_one_that_was_never_used() {
    let (_database, service) = start().await;
    service
        .post("theirs", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);
    for query in ["", "?answer=true"] {
        let as_stranger = async |key: &str| {
            let path = format!("{EFFECTS}/{key}{query}");
            let request = service.client.method(Method::GET, &path).account("b");
            let reply = request.send().await;
            reply.assert_problem(404, "key-unknown");
            let mut headers = reply.headers;
            headers.remove("date");
            (reply.body, headers)
        };
        assert_eq!(as_stranger("theirs").await, as_stranger("never").await);
    }
    let nobody = service
        .client
        .method(Method::GET, &format!("{EFFECTS}/theirs"));
    assert_eq!(nobody.account("revoked").send().await.status, 403);
}

#[tokio::test]
async fn refused_request_is_told_until_a_corrected_one_has_its_effect() {
    let (_database, service) = start().await;
    let path = format!("{EFFECTS}/k");
    service.post("k", &Script::answering(402).note("one")).await;
    service.post("k", &Script::answering(404).note("two")).await;
    let refused = document(&service.client, &path).await;
    assert_eq!(
        (&refused["state"], &refused["status"]),
        (&json!("refused"), &json!(404))
    );
    let answer = ask(&service.client, &format!("{path}?answer=true")).await;
    answer.assert(StatusCode::NOT_FOUND, true);

    service
        .post("k", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);
    let executed = document(&service.client, &path).await;
    assert_eq!(
        (&executed["state"], &executed["status"]),
        (&json!("executed"), &json!(201))
    );
}

#[tokio::test]
async fn key_that_was_set_free_or_has_ended_is_unknown() {
    let (_database, service) = start().await;
    service.post("k", &Script::answering(503)).await;
    ask(&service.client, &format!("{EFFECTS}/k"))
        .await
        .assert_problem(404, "key-unknown");

    let request = service.client.request("/brief").key("k");
    request
        .script(&Script::default())
        .send()
        .await
        .assert(StatusCode::CREATED, false);
    let brief = "/idempotency/POST%20%2Fbrief/k";
    assert_eq!(document(&service.client, brief).await["state"], "executed");
    sleep(Duration::from_millis(2_100)).await;
    ask(&service.client, brief)
        .await
        .assert_problem(404, "key-unknown");
}

#[tokio::test]
async fn key_at_work_is_running_and_asking_does_not_wait_for_it() {
    let (_database, service) = start().await;
    let script = Script::sleeping(1_500);
    let first = service.client.request("/effects").key("k").script(&script);
    let first = tokio::spawn(first.send());
    let path = format!("{EFFECTS}/k");
    let begun = Instant::now();
    let running = loop {
        let reply = ask(&service.client, &path).await;
        if reply.status == 200 {
            break reply;
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "it never ran");
        sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(running.text(), r#"{"state":"running"}"#);
    assert_eq!(running.headers["retry-after"], "1");
    let asked = Instant::now();
    let answer = ask(&service.client, &format!("{path}?answer=true")).await;
    assert_eq!(answer.text(), running.text());
    assert!(
        asked.elapsed() < Duration::from_millis(750),
        "asking waited"
    );
    assert!(!first.is_finished());
    first.await.unwrap().assert(StatusCode::CREATED, false);
    assert_eq!(document(&service.client, &path).await["state"], "executed");
}

#[tokio::test]
async fn whoever_asks_is_never_in_the_way_of_a_request() {
    let (database, service) = start().await;
    for key in 0..20 {
        let key = format!("k{key}");
        let mut asking = JoinSet::new();
        for _ in 0..6 {
            let (client, path) = (service.client.clone(), format!("{EFFECTS}/{key}"));
            asking.spawn(async move { ask(&client, &path).await.status });
        }
        let posted = service.post(&key, &Script::default()).await;
        posted.assert(StatusCode::CREATED, false);
        for status in asking.join_all().await {
            assert!(status == 200 || status == 404, "{status}");
        }
    }
    assert_eq!((database.effects(), database.records()), (20, 20));
}

#[tokio::test]
async fn operation_and_key_are_what_they_decode_to() {
    let (_database, service) = start().await;
    let post = |path: &str, key: &str| {
        let request = service.client.request(path).key(key);
        request.script(&Script::default()).send()
    };
    post("/effects", "a/b%2F+c?")
        .await
        .assert(StatusCode::CREATED, false);
    let encoded = format!("{EFFECTS}/a%2Fb%252F+c%3F");
    assert_eq!(
        document(&service.client, &encoded).await["state"],
        "executed"
    );
    post("/named/old", "k")
        .await
        .assert(StatusCode::CREATED, false);
    let named = document(&service.client, "/idempotency/effects.named/k").await;
    assert_eq!(named["state"], "executed");
    post("/orders/7", "k")
        .await
        .assert(StatusCode::CREATED, false);
    let pattern = "/idempotency/POST%20%2Forders%2F%7Bid%7D/k";
    assert_eq!(
        document(&service.client, pattern).await["state"],
        "executed"
    );

    post("/global", "k")
        .await
        .assert(StatusCode::CREATED, false);
    let global = "POST%20%2Fglobal/k";
    let everybody = format!("/idempotency-of-everybody/{global}");
    assert_eq!(
        document(&service.client, &everybody).await["state"],
        "executed"
    );
    let own = ask(&service.client, &format!("/idempotency/{global}")).await;
    own.assert_problem(404, "key-unknown");
}

#[tokio::test]
async fn question_that_is_not_understood_is_told_so() {
    let (_database, service) = start().await;
    let long = "k".repeat(256);
    for (path, kind) in [
        ("", "query-invalid"),
        ("k", "query-invalid"),
        ("op/k/", "query-invalid"),
        ("op/k/more", "query-invalid"),
        ("op/%zz", "query-invalid"),
        ("op%f/k", "query-invalid"),
        ("%ff/k", "query-invalid"),
        ("op/k?answer", "query-invalid"),
        ("op/k?answer=1", "query-invalid"),
        ("op/k?answers=true", "query-invalid"),
        ("op/k?answer=true&answer=true", "query-invalid"),
        ("op/", "key-invalid"),
        ("op/a%20b", "key-invalid"),
        ("op/%C3%B6", "key-invalid"),
        (&format!("op/{long}"), "key-invalid"),
    ] {
        let reply = ask(&service.client, &format!("/idempotency/{path}")).await;
        reply.assert_problem(400, kind);
    }
    let long = service.client.method(Method::GET, &format!("{EFFECTS}/k"));
    let long = long.account(&"a".repeat(513)).send().await;
    long.assert_problem(400, "scope-invalid");
    let empty = service.client.method(Method::GET, &format!("{EFFECTS}/k"));
    let empty = empty.account("").send().await;
    empty.assert_problem(400, "scope-invalid");
}
