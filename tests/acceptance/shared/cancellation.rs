//! Executions that are dropped wherever they wait, as when a worker is stopped by force.

use std::{future::poll_fn, pin::pin, task::Poll};

use actix_web::{
    App,
    test::{TestRequest, call_service, init_service},
    web,
};
use idem_runtime::Idempotency;
use idem_tests::{
    kinds::Kind as _,
    service::{
        Executions,
        script::{Script, Step},
    },
};
use tokio::task::LocalSet;

use super::{Database, Kind, Service, assert_whole, database, faults::settled, routes};

/// Serves a request in this thread and drops everything after so many polls; brings the answer's status if it came
/// before.
async fn polled(
    times: usize,
    idempotency: &Idempotency<<Kind as idem_tests::kinds::Kind>::Backend>,
    pool: &<Kind as idem_tests::kinds::Kind>::Pool,
    key: &str,
    script: &Script,
) -> Option<u16> {
    let app = App::new()
        .app_data(web::Data::new(idempotency.clone()))
        .app_data(web::Data::new(Executions::default()))
        .app_data(web::Data::new(pool.clone()))
        .configure(routes::configure);
    let app = init_service(app).await;
    let request = TestRequest::post()
        .uri("/effects")
        .insert_header(("x-account", "a"))
        .insert_header(("idempotency-key", key.to_owned()))
        .set_json(script);
    // What is spawned runs in here, and ends with it.
    let worker = LocalSet::new();
    let served = async {
        call_service(&app, request.to_request())
            .await
            .status()
            .as_u16()
    };
    let mut served = pin!(worker.run_until(served));
    let mut left = times;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        served.as_mut().poll(context).map(Some)
    })
    .await
}

/// Drops executions after one poll, two, three and so on, until one comes to its end. Each is repeated elsewhere.
async fn swept(script: &Script, status: u16) -> (Database, usize) {
    let database = database();
    let elsewhere = Service::start(&database.url()).await;
    let pool = Kind::pool(&database.url(), 2, std::time::Duration::from_secs(5)).await;
    let idempotency = Idempotency::new(pool.clone()).unwrap();
    let (mut ran, mut replayed) = (0, 0);
    for times in 1.. {
        let key = format!("after-{times}");
        let ended = polled(times, &idempotency, &pool, &key, script).await;
        let repeat = settled(&elsewhere.client, &key, script).await;
        assert_eq!(repeat.status, status, "after {times} polls");
        if repeat.headers.contains_key("idempotent-replayed") {
            replayed += 1;
        } else {
            ran += 1;
        }
        if let Some(ended) = ended {
            assert_eq!(ended, status);
            break;
        }
    }
    // Some were dropped early, others when all was stored; else nothing was swept.
    assert!(ran >= 3 && replayed >= 1, "{ran} ran, {replayed} replayed");
    assert_whole(&pool).await;
    let connections = 2 + 4;
    database.assert_clean(connections).await;
    (database, ran + replayed)
}

/// A handler that takes several polls, also where the database is quicker than this thread.
fn naps(status: u16) -> Script {
    Script {
        steps: vec![Step::Sleep(1); 4],
        ..Script::answering(status)
    }
}

#[tokio::test]
async fn effect_that_is_dropped_after_any_number_of_polls_is_whole_or_not_there() {
    let (database, keys) = swept(&naps(201), 201).await;
    assert_eq!((database.effects(), database.records()), (keys, keys));
}

#[tokio::test]
async fn refusal_that_is_dropped_after_any_number_of_polls_leaves_no_effect() {
    let (database, keys) = swept(&naps(402), 402).await;
    assert_eq!((database.effects(), database.records()), (0, keys));
}
