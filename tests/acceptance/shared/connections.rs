//! Pools that are empty, and connections that other code has left in a bad state.

use std::time::{Duration, Instant};

use idem_tests::{
    database::Engine as _,
    kinds::leaking_route,
    service::script::{Script, Step},
};
use reqwest::StatusCode;

use super::{Engine, Kind, Service, Setup, assert_whole, database, routes};

pub(crate) fn pool_of(pool: usize) -> Setup {
    Setup {
        pool,
        pool_wait: Duration::from_millis(500),
        ..Setup::default()
    }
}

#[tokio::test]
async fn second_connection_from_a_pool_of_one_is_the_handlers_own_failure_and_not_a_hang() {
    let database = database();
    let service = Service::with(&database.url(), pool_of(1)).await;
    let start = Instant::now();
    let reply = service
        .post("k", &Script::of([Step::SecondConnection]))
        .await;
    // The pool's 500 ms, on a slow machine; the handler's own deadline is 30 s.
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!((reply.status, reply.problem().as_str()), (503, ""));
    assert_eq!((database.effects(), database.records()), (0, 0));
    service
        .post("k", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);
    assert_whole(&service.pool).await;
    database.assert_clean(1).await;
}

#[tokio::test]
async fn request_that_gets_no_connection_in_time_is_a_503_and_runs_later() {
    let database = database();
    let service = Service::with(&database.url(), pool_of(1)).await;
    let slow = Script::sleeping(3_000);
    let request = service.client.request("/effects").key("slow").script(&slow);
    let first = tokio::spawn(request.send());
    database.until_asleep_in_rust(1).await;
    let refused = service.post("k", &Script::default()).await;
    refused.assert_problem(503, "store-unavailable");
    assert!(refused.headers.contains_key("retry-after"));
    // The one with the connection was still at it.
    assert!(!first.is_finished());
    first.await.unwrap().assert(StatusCode::CREATED, false);
    service
        .post("k", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);
    assert_eq!((database.effects(), database.records()), (2, 2));
    database.assert_clean(1).await;
}

fn with_leaking_route() -> Setup {
    Setup {
        routes: |app| {
            leaking_route::<Kind>(app);
            routes::configure(app);
        },
        ..pool_of(1)
    }
}

#[tokio::test]
async fn transaction_that_other_code_left_open_does_not_reach_a_guarded_request() {
    for leaked in [
        "BEGIN",
        "BEGIN; INSERT INTO parents VALUES (1)",
        "BEGIN; INSERT INTO parents VALUES (2); no SQL",
        "BEGIN; SAVEPOINT s; INSERT INTO parents VALUES (3)",
    ] {
        unreached_by(leaked).await;
    }
}

/// Checks that what other code leaves behind on the one connection reaches no guarded request.
pub(crate) async fn unreached_by(leaked: &str) {
    let database = database();
    let service = Service::with(&database.url(), with_leaking_route()).await;
    let leak = async || {
        let request = service.client.request("/leaking");
        let leaked = request.body("text/plain", leaked.to_owned()).send().await;
        assert_eq!(leaked.status, 200);
    };
    leak().await;
    let first = service.post("k", &Script::default()).await;
    first.assert(StatusCode::CREATED, false);
    leak().await;
    let again = service.post("k", &Script::default()).await;
    assert_eq!(again.assert(StatusCode::CREATED, true).body, first.body);
    leak().await;
    let unkeyed = service
        .client
        .request("/optional")
        .script(&Script::default());
    unkeyed.send().await.assert(StatusCode::CREATED, false);
    let done = (
        database.effects(),
        database.records(),
        database.count("parents"),
    );
    assert_eq!(done, (2, 1, 0), "{leaked}");
    database.assert_clean(1).await;
}

#[tokio::test]
async fn transaction_that_other_code_left_open_does_not_reach_the_sweeper_either() {
    let database = database();
    let service = Service::with(&database.url(), with_leaking_route()).await;
    service.post("k", &Script::default()).await;
    database.run_sql(Engine::EXPIRE).unwrap();
    let leak = service.client.request("/leaking");
    leak.body("text/plain", "BEGIN; INSERT INTO parents VALUES (1)")
        .send()
        .await;
    assert_eq!(service.idempotency.sweep().await.unwrap(), 1);
    assert_eq!((database.records(), database.count("parents")), (0, 0));
    database.assert_clean(1).await;
}
