//! Which answers are final, which are repeated, and what reaches the caller.

use idem_client::{Answer, Bypass};
use reqwest::{Method, StatusCode};

use crate::script::{Step, client, gave_up, in_progress, problem, retries, status};

const URL: &str = "http://pay.example/payments?token=hidden";

#[tokio::test(start_paused = true)]
async fn of_all_statuses_only_those_that_pass_are_repeated() {
    let mut repeated = Vec::new();
    for code in 200..600 {
        let (client, script) = client(retries(), [status(code), status(201)]);
        let answer = client.post(URL).send().await.unwrap();
        if script.requests() == 1 {
            assert_eq!(answer.status().as_u16(), code);
        } else {
            assert_eq!((answer.status().as_u16(), script.requests()), (201, 2));
            repeated.push(code);
        }
        assert_eq!(answer.attempts() as usize, script.requests());
    }
    assert_eq!(repeated, [429, 502, 503, 504]);
}

#[tokio::test(start_paused = true)]
async fn every_method_is_repeated() {
    for method in [
        "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "POST", "PATCH", "NEW",
    ] {
        let (client, script) = client(retries(), [status(503), status(503), status(200)]);
        let method: Method = method.parse().unwrap();
        let answer = client.request(method.clone(), URL).send().await.unwrap();
        assert_eq!(
            (answer.status(), script.requests()),
            (StatusCode::OK, 3),
            "{method}"
        );
    }
}

fn body_timeout() -> Step {
    let body = r#"{"type":"urn:problem-type:idempotency:body-timeout"}"#;
    problem(408, "application/problem+json", body)
}

#[tokio::test(start_paused = true)]
async fn a_body_that_came_too_slowly_is_sent_again() {
    let (client, script) = client(retries(), [body_timeout(), status(201)]);
    let answer = client.post(URL).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), script.requests()), (201, 2));
}

#[tokio::test(start_paused = true)]
async fn of_conflicts_only_the_request_in_progress_is_repeated() {
    let running = r#"{"type":"urn:problem-type:idempotency:in-progress"}"#;
    let json = "application/problem+json";
    for (conflict, requests) in [
        (in_progress(), 2),
        (
            problem(409, "Application/Problem+JSON; charset=utf-8", running),
            2,
        ),
        (problem(409, "application/json", running), 1),
        (
            problem(
                409,
                json,
                r#"{"type":"urn:problem-type:idempotency:key-reused"}"#,
            ),
            1,
        ),
        (
            problem(
                409,
                json,
                r#"{"title":"urn:problem-type:idempotency:in-progress"}"#,
            ),
            1,
        ),
        (problem(409, json, "in-progress"), 1),
        (problem(409, json, ""), 1),
        (problem(422, json, running), 1),
        (status(409), 1),
    ] {
        let (client, script) = client(retries(), [conflict.clone(), status(201)]);
        client.post(URL).send().await.unwrap();
        assert_eq!(script.requests(), requests, "{conflict:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_read_is_handed_on_whole() {
    let answer = Step::Answer {
        status: 402,
        headers: vec![
            ("location", "/payments/1".to_owned()),
            ("link", "</a>".to_owned()),
            ("link", "</b>".to_owned()),
            ("idempotent-replayed", "true".to_owned()),
        ],
        body: r#"{"id":1}"#.to_owned(),
    };
    let (client, _) = client(retries(), [status(503), answer]);
    let answer = client.post(URL).send().await.unwrap();
    assert_eq!(answer.status(), 402);
    assert_eq!(answer.headers()["location"], "/payments/1");
    let links: Vec<_> = answer.headers().get_all("link").iter().collect();
    assert_eq!(links, ["</a>", "</b>"]);
    assert!(answer.is_replay());
    assert_eq!(answer.attempts(), 2);
    assert_eq!(answer.content_length(), Some(8));
    assert_eq!(answer.text().await.unwrap(), r#"{"id":1}"#);
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_the_mark_is_no_replay() {
    let (client, _) = client(retries(), [status(201)]);
    let answer = client.post(URL).send().await.unwrap();
    assert!(!answer.is_replay());
    assert_eq!(answer.attempts(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_bypasses_the_layer_is_left_alone() {
    let (client, script) = client(retries(), [status(503), status(201)]);
    let answer = client
        .post(URL)
        .with_extension(Bypass)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 503);
    assert_eq!(script.requests(), 1);
    assert!(!script.seen()[0].contains_key("idempotency-key"));
}

#[tokio::test(start_paused = true)]
async fn the_outcome_is_unknown_once_any_attempt_may_have_run() {
    let gone = status(503);
    for (method, steps, unknown) in [
        (Method::POST, vec![gone.clone()], true),
        (Method::POST, vec![status(429)], false),
        (Method::POST, vec![body_timeout(), status(429)], false),
        (Method::POST, vec![status(504), gone.clone()], true),
        (Method::POST, vec![status(502), gone.clone()], true),
        (Method::POST, vec![in_progress(), gone.clone()], true),
        (Method::POST, vec![Step::Silence, gone.clone()], true),
        (Method::DELETE, vec![Step::Silence, gone.clone()], true),
        (Method::GET, vec![Step::Silence, gone.clone()], false),
    ] {
        let (client, _) = client(retries(), steps.clone());
        let error = client
            .request(method.clone(), URL)
            .send()
            .await
            .unwrap_err();
        let call = gave_up(&error);
        assert_eq!(call.outcome_is_unknown(), unknown, "{method} {steps:?}");
        assert_eq!(
            error.to_string().contains("may have been done"),
            unknown,
            "{error}"
        );
    }
}
