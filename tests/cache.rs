//! Effects kept in memory: which repeats are answered without the database, and which are not.

#![allow(
    clippy::unwrap_used,
    reason = "a test whose database cannot be changed has failed"
)]

use std::time::Duration;

use deadpool_postgres::{Manager, Pool, Runtime};
use idem_tests::{
    database::{Database, postgres::Postgres},
    kinds::{Deadpool, Kind as _},
    service::{Service, Setup, script::Script},
};
use reqwest::StatusCode;
use tokio::{
    sync::{Mutex, MutexGuard},
    time::sleep,
};
use tokio_postgres::NoTls;

/// Starts a service that keeps effects. A connection lost by any other in this process would make it forget them, so
/// these tests run one after the other.
async fn start(
    alone: &'static Mutex<()>,
) -> (
    MutexGuard<'static, ()>,
    Database<Postgres>,
    Service<Deadpool>,
) {
    let alone = alone.lock().await;
    let database = Deadpool::template().database();
    let setup = Setup {
        configure: |builder| builder.cache(1 << 20),
        ..Setup::default()
    };
    let service = Service::with(&database.url(), setup).await;
    (alone, database, service)
}

static ALONE: Mutex<()> = Mutex::const_new(());

/// Takes the records away, so that only memory can know of them.
fn forget(database: &Database<Postgres>) {
    database.run_sql("DELETE FROM idem.records").unwrap();
}

#[tokio::test]
async fn repeat_of_an_effect_comes_from_memory_and_the_caller_still_needs_the_right_to_it() {
    let (_alone, database, service) = start(&ALONE).await;
    let first = service.post("k", &Script::default()).await;
    first.assert(StatusCode::CREATED, false);
    forget(&database);
    let repeat = service.post("k", &Script::default()).await;
    repeat.assert(StatusCode::CREATED, true);
    assert_eq!(repeat.body, first.body);
    assert_eq!((service.executions.get(), database.effects()), (1, 1));

    // `once` may act but once, and `authorize` is asked each time.
    let once = || {
        let request = service.client.request("/authorized").account("once");
        request.key("k").script(&Script::default()).send()
    };
    let refused = once().await;
    assert_eq!(refused.status, 403);
}

#[tokio::test]
async fn replay_that_the_database_has_brought_is_kept_as_well() {
    let (_alone, database, service) = start(&ALONE).await;
    let other = Service::<Deadpool>::start(&database.url()).await;
    let first = other.post("k", &Script::default()).await;
    service.post("k", &Script::default()).await;
    forget(&database);
    let repeat = service.post("k", &Script::default()).await;
    repeat.assert(StatusCode::CREATED, true);
    assert_eq!(repeat.body, first.body);
}

#[tokio::test]
async fn another_request_and_a_refusal_are_decided_by_the_database() {
    let (_alone, database, service) = start(&ALONE).await;
    service.post("k", &Script::default()).await;
    let other = Script::default().note("other");
    service
        .post("k", &other)
        .await
        .assert_problem(422, "key-reused");
    forget(&database);
    let reply = service.post("k", &other).await;
    reply.assert(StatusCode::CREATED, false);

    let refusal = Script::answering(402);
    service.post("refused", &refusal).await;
    forget(&database);
    let reply = service.post("refused", &refusal).await;
    reply.assert(StatusCode::PAYMENT_REQUIRED, false);
}

#[tokio::test]
async fn effect_is_forgotten_at_the_end_of_its_lifetime() {
    let (_alone, database, service) = start(&ALONE).await;
    let post = || {
        let request = service.client.request("/brief").key("k");
        request.script(&Script::default()).send()
    };
    post().await.assert(StatusCode::CREATED, false);
    post().await.assert(StatusCode::CREATED, true);
    sleep(Duration::from_millis(2_100)).await;
    post().await.assert(StatusCode::CREATED, false);
    assert_eq!(database.effects(), 2);
}

#[tokio::test]
async fn everything_is_forgotten_when_a_connection_is_lost() {
    let (_alone, database, service) = start(&ALONE).await;
    service.post("k", &Script::default()).await;
    forget(&database);
    database.engine().end_sessions();
    // What the database had acknowledged may be lost with it: it has to be asked.
    let mut replays = 0;
    while service.post("k", &Script::default()).await.is_replay() {
        replays += 1;
        assert!(replays < 200, "the lost connections go unnoticed");
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(database.effects(), 2);
}

#[tokio::test]
async fn everything_is_forgotten_when_a_pool_of_the_services_own_has_replaced_a_connection() {
    let _alone = ALONE.lock().await;
    let database = Deadpool::template().database();
    let manager = Manager::new(database.url().parse().unwrap(), NoTls);
    let pool = Pool::builder(manager)
        .max_size(1)
        .wait_timeout(Some(Duration::from_secs(5)))
        .runtime(Runtime::Tokio1);
    let setup = Setup {
        configure: |builder| builder.cache(1 << 20),
        ..Setup::default()
    };
    let service = Service::<Deadpool>::over(pool.build().unwrap(), setup).await;
    service.post("k", &Script::default()).await;
    forget(&database);
    let repeat = service.post("k", &Script::default()).await;
    repeat.assert(StatusCode::CREATED, true);

    database.engine().end_sessions();
    // The pool notices by itself that the connection has ended, and opens another.
    sleep(Duration::from_millis(200)).await;
    let other = service.post("other", &Script::default()).await;
    other.assert(StatusCode::CREATED, false);
    let repeat = service.post("k", &Script::default()).await;
    repeat.assert(StatusCode::CREATED, false);
}
