//! Asking before sending: what is asked, what each answer leads to, and that the key in the question's path stays hidden.

use std::time::Duration;

use http::StatusCode;
use idem_client::{Answer, AskFirst, Budget, Cause, Error, Limit, Retries};
use reqwest::Url;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, RequestBuilder};
use tokio::time::Instant;

use crate::log::Log;
use crate::script::{Step, client, gave_up, problem, retries, retry_after, status};

const URL: &str = "http://pay.example/payments";
const QUESTION: &str = "GET http://pay.example/idempotency/payments.create/key-hidden?answer=true";
const REQUEST: &str = "POST http://pay.example/payments";

fn ask() -> AskFirst {
    let resource = Url::parse("http://pay.example/idempotency/").unwrap();
    AskFirst::at(resource, "payments.create")
}

fn payment(client: &ClientWithMiddleware) -> RequestBuilder {
    let request = client.post(URL).header("Idempotency-Key", "key-hidden");
    request.body("payment").with_extension(ask())
}

fn unknown() -> Step {
    let body = r#"{"type":"urn:problem-type:idempotency:key-unknown","status":404}"#;
    problem(404, "application/problem+json", body)
}

fn running() -> Step {
    let Step::Answer { headers, .. } = retry_after(200, "7") else {
        unreachable!()
    };
    Step::Answer {
        status: 200,
        headers,
        body: r#"{"state":"running"}"#.to_owned(),
    }
}

fn stored(status: u16, body: &str) -> Step {
    Step::Answer {
        status,
        headers: vec![("idempotent-replayed", "true".to_owned())],
        body: body.to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_stored_answer_is_returned_and_nothing_is_sent() {
    // Even one that looks like something the resource itself says.
    let unknown = r#"{"type":"urn:problem-type:idempotency:key-unknown"}"#;
    for (code, body) in [
        (201, "paid"),
        (402, "refused"),
        (200, r#"{"state":"running"}"#),
        (404, unknown),
    ] {
        let (client, script) = client(retries(), [stored(code, body)]);
        let answer = payment(&client).send().await.unwrap();
        assert_eq!(script.lines(), [QUESTION]);
        assert_eq!((answer.status().as_u16(), answer.attempts()), (code, 1));
        assert!(answer.is_replay());
        assert_eq!(answer.url().as_str(), URL);
        assert_eq!(answer.text().await.unwrap(), body);
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_service_knows_nothing_of_is_sent_with_its_key_and_repeated_like_anything() {
    let steps = [unknown(), status(503), status(201)];
    let (client, script) = client(retries(), steps);
    let answer = payment(&client).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::CREATED);
    assert_eq!(script.lines(), [QUESTION, REQUEST, REQUEST]);
    assert_eq!(answer.attempts(), 3);
    for sent in &script.seen()[1..] {
        assert_eq!(sent["idempotency-key"], "key-hidden");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_runs_is_waited_for_as_long_as_the_service_asks() {
    let steps = [running(), status(503), running(), stored(201, "paid")];
    let (client, script) = client(retries(), steps);
    let started = Instant::now();
    let answer = payment(&client).send().await.unwrap();
    assert!(started.elapsed() >= Duration::from_secs(14));
    assert_eq!(answer.status(), StatusCode::CREATED);
    assert_eq!(script.lines(), [QUESTION; 4]);
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_at_the_deadline_and_at_the_budget_and_the_outcome_stays_unknown() {
    let deadline = Duration::from_secs(20);
    for (budget, limit, questions) in [
        (Budget::default(), Limit::Deadline(deadline), 3),
        (Budget::new(0, 0), Limit::Budget, 1),
    ] {
        let retries = Retries::within(deadline).budget(budget);
        let (client, script) = client(retries, [running()]);
        let error = payment(&client).send().await.unwrap_err();
        let call = gave_up(&error);
        assert_eq!(call.limit(), limit);
        assert!(matches!(call.cause(), Cause::Running));
        assert_eq!(call.retry_after(), Some(Duration::from_secs(7)));
        assert_eq!(script.lines(), vec![QUESTION; questions]);
        assert!(call.outcome_is_unknown());
        assert_eq!(call.key().unwrap(), "key-hidden");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_tell_sends_nothing() {
    let json = r#"{"state":"executed","status":201}"#;
    let other = r#"{"type":"urn:problem-type:idempotency:query-invalid"}"#;
    let unknown = r#"{"type":"urn:problem-type:idempotency:key-unknown"}"#;
    for (code, answer) in [
        (200, status(200)),
        (200, problem(200, "application/json", json)),
        (204, status(204)),
        (401, status(401)),
        (404, status(404)),
        (404, problem(404, "application/problem+json", other)),
        (404, problem(404, "text/html", unknown)),
        (400, problem(400, "application/problem+json", unknown)),
        (409, status(409)),
        (500, status(500)),
    ] {
        let (client, script) = client(retries(), [answer, status(201)]);
        let error = payment(&client).send().await.unwrap_err();
        assert_eq!(script.lines(), [QUESTION]);
        match Error::of(&error) {
            Some(Error::Unclear { status, .. }) => assert_eq!(status.as_u16(), code),
            _ => panic!("{error:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_question_carries_who_asks_and_not_what_belongs_to_the_body() {
    let (client, script) = client(retries(), [unknown(), status(201)]);
    let request = payment(&client)
        .bearer_auth("token")
        .header("X-Tenant", "7")
        .header("Content-Type", "application/json")
        .header("Content-Length", "7")
        .header("Expect", "100-continue");
    request.send().await.unwrap();
    let seen = script.seen();
    let mut names: Vec<_> = seen[0].keys().map(http::HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["authorization", "x-tenant"]);
    assert_eq!(seen[1].len(), 6);
}

#[tokio::test(start_paused = true)]
async fn operation_and_key_are_one_segment_each_whatever_is_in_them() {
    let (client, script) = client(retries(), [stored(201, "")]);
    let resource = Url::parse("http://pay.example/a/idempotency?answer=false").unwrap();
    let request = client
        .post(URL)
        .header("Idempotency-Key", r#""a/b?\"%41""#)
        .with_extension(AskFirst::at(resource, "POST /payments/{id}"));
    request.send().await.unwrap();
    let path = "a/idempotency/POST%20%2Fpayments%2F%7Bid%7D/a%2Fb%3F%22%2541";
    let expected = format!("GET http://pay.example/{path}?answer=true");
    assert_eq!(script.lines(), [expected]);
}

#[tokio::test(start_paused = true)]
async fn without_a_key_or_with_a_body_that_streams_nothing_is_asked() {
    let (client, script) = client(retries(), [unknown(), status(201)]);
    let error = client.post(URL).with_extension(ask()).send().await;
    assert!(matches!(
        Error::of(&error.unwrap_err()),
        Some(Error::KeyMissing)
    ));
    let answer = reqwest::Response::from(http::Response::new("any response is a stream"));
    let stream = payment(&client).body(reqwest::Body::from(answer));
    assert!(matches!(
        Error::of(&stream.send().await.unwrap_err()),
        Some(Error::BodyStreams)
    ));
    let unbalanced = client.post(URL).header("Idempotency-Key", "\"a");
    let error = unbalanced.with_extension(ask()).send().await.unwrap_err();
    assert!(matches!(Error::of(&error), Some(Error::KeyMalformed)));
    assert_eq!(script.requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn neither_errors_nor_logs_nor_answers_show_the_key_in_the_questions_path() {
    let log = Log::default();
    let _guard = log.collect();
    let mut shown = Vec::new();
    for steps in [
        vec![status(503)],
        vec![running()],
        vec![status(401)],
        vec![unknown(), status(503)],
    ] {
        let (client, _) = client(retries(), steps);
        let error = payment(&client).send().await.unwrap_err();
        shown.extend([error.to_string(), format!("{error:?}")]);
    }
    let (client, _) = client(retries(), [running(), stored(402, "")]);
    let answer = payment(&client).send().await.unwrap();
    shown.push(format!("{answer:?}"));
    shown.push(answer.error_for_status().unwrap_err().to_string());
    let log = log.text();
    let question = "GET http://pay.example/idempotency/payments.create/<key>";
    assert!(log.contains(question), "{log}");
    assert!(shown[0].contains(question), "{}", shown[0]);
    shown.push(log);
    for text in shown {
        assert!(!text.contains("hidden"), "{text}");
    }
}

#[tokio::test]
async fn a_question_that_cannot_be_sent_does_not_show_the_key_either() {
    let client = ClientBuilder::new(reqwest::Client::new())
        .with(retries())
        .build();
    let resource = Url::parse("ftp://pay.example/idempotency").unwrap();
    let request = client.post(URL).header("Idempotency-Key", "key-hidden");
    let request = request.with_extension(AskFirst::at(resource, "payments.create"));
    let error = request.send().await.unwrap_err();
    assert!(Error::of(&error).is_none(), "{error:?}");
    for text in [error.to_string(), format!("{error:?}")] {
        assert!(!text.contains("hidden"), "{text}");
    }
}
