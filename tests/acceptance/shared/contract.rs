//! What a service can publish on its answers: how long they are kept, and where its problems are explained.

use std::time::Duration;

use idem_tests::service::script::Script;
use reqwest::StatusCode;
use tokio::time::sleep;

use super::{Service, Setup, database, start};

async fn publishing() -> (super::Database, Service) {
    let database = database();
    let setup = Setup {
        configure: |builder| {
            builder
                .advertise_lifetime()
                .problem_docs("https://docs.example/problems")
        },
        ..Setup::default()
    };
    let service = Service::with(&database.url(), setup).await;
    (database, service)
}

#[tokio::test]
async fn stored_answer_and_its_repeats_tell_how_long_it_is_kept() {
    let (_database, service) = publishing().await;
    let post = async |path: &str, key: Option<&str>, script: Script| {
        let request = service.client.request(path).script(&script);
        let request = match key {
            Some(key) => request.key(key),
            None => request,
        };
        let reply = request.send().await;
        let lifetime = reply.headers.get("idempotency-lifetime");
        let lifetime = lifetime.map(|value| value.to_str().unwrap().parse::<u64>().unwrap());
        (reply.status, reply.is_replay(), lifetime)
    };
    let first = post("/effects", Some("k"), Script::default()).await;
    assert_eq!(first, (201, false, Some(86_400)));
    sleep(Duration::from_millis(1_100)).await;
    let (status, replay, lifetime) = post("/effects", Some("k"), Script::default()).await;
    assert_eq!((status, replay), (201, true));
    assert!(
        (86_390..=86_398).contains(&lifetime.unwrap()),
        "{lifetime:?}"
    );

    let refused = post("/effects", Some("r"), Script::answering(402)).await;
    assert_eq!(refused, (402, false, Some(86_400)));
    // What is not stored is not kept.
    let released = post("/effects", Some("s"), Script::answering(503)).await;
    assert_eq!(released, (503, false, None));
    let unkeyed = post("/optional", None, Script::default()).await;
    assert_eq!(unkeyed, (201, false, None));
    let mismatch = post("/effects", Some("k"), Script::answering(204)).await;
    assert_eq!(mismatch, (422, false, None));
}

#[tokio::test]
async fn problem_leads_to_its_explanation() {
    let (_database, service) = publishing().await;
    service
        .post("k", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);
    let reused = service.post("k", &Script::answering(204)).await;
    reused.assert_problem(422, "key-reused");
    let link = "<https://docs.example/problems#key-reused>; rel=\"describedby\"";
    assert_eq!(reused.headers["link"], link);
}

#[tokio::test]
async fn service_that_publishes_nothing_adds_nothing() {
    let (_database, service) = start().await;
    let first = service.post("k", &Script::default()).await;
    assert!(!first.headers.contains_key("idempotency-lifetime"));
    let reused = service.post("k", &Script::answering(204)).await;
    assert!(
        !reused
            .assert_problem(422, "key-reused")
            .headers
            .contains_key("link")
    );
}

#[tokio::test]
async fn repeat_from_memory_tells_what_is_left_and_not_what_was() {
    let database = database();
    let setup = Setup {
        configure: |builder| builder.advertise_lifetime().cache(1 << 20),
        ..Setup::default()
    };
    let service = Service::with(&database.url(), setup).await;
    let first = service.post("k", &Script::default()).await;
    assert_eq!(first.headers["idempotency-lifetime"], "86400");
    sleep(Duration::from_millis(1_100)).await;
    let again = service.post("k", &Script::default()).await;
    again.assert(StatusCode::CREATED, true);
    let left: u64 = again.headers["idempotency-lifetime"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((86_390..=86_398).contains(&left), "{left}");
}
