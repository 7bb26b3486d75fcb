//! SQLite has one writer: what a guarded handler holds up, for how long, and what it does not hold up.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use idem_runtime::StoreError;
use idem_tests::service::{Client, script::Script};
use reqwest::StatusCode;
use sqlx::{ConnectOptions, Connection, Executor, SqliteConnection, sqlite::SqliteConnectOptions};

use super::shared::{
    Database, Service, Setup, database, process,
    protocol::{small, until_running},
};

/// A service whose requests wait for half a second.
async fn impatient(database: &Database) -> Service {
    let setup = Setup {
        pool_wait: Duration::from_millis(500),
        ..Setup::default()
    };
    Service::with(&database.url(), setup).await
}

/// Somebody else's connection to the file.
async fn stranger(database: &Database) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(database.engine().path());
    options.connect().await.unwrap()
}

#[tokio::test]
async fn handlers_of_different_keys_run_one_after_the_other_in_their_order() {
    let database = database();
    let service = small(&database).await;
    let start = Instant::now();
    let posts = (0..5).map(async |number: u32| {
        tokio::time::sleep(Duration::from_millis(u64::from(number) * 40)).await;
        let script = Script::sleeping(200).note(&format!("n{number}"));
        service.post(&format!("k{number}"), &script).await
    });
    for reply in join_all(posts).await {
        reply.assert(StatusCode::CREATED, false);
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(1), "two at once: {took:?}");
    let order =
        database.run_sql("SELECT group_concat(note) FROM (SELECT note FROM effects ORDER BY id)");
    assert_eq!(order.unwrap(), "n0,n1,n2,n3,n4");
    database.assert_clean(2).await;
}

#[tokio::test]
async fn request_that_does_not_get_its_turn_in_time_is_a_503_and_runs_later() {
    let database = database();
    let service = impatient(&database).await;
    let slow = Script::sleeping(2_500);
    let (first, refused) = tokio::join!(service.post("slow", &slow), async {
        until_running(&service, 1).await;
        let start = Instant::now();
        let refused = service.post("k", &Script::default()).await;
        let waited = start.elapsed();
        assert!(waited >= Duration::from_millis(500), "{waited:?}");
        assert!(waited < Duration::from_secs(2), "{waited:?}");
        assert_eq!(database.effects(), 0, "the first was still at it");
        refused
    });
    first.assert(StatusCode::CREATED, false);
    refused.assert_problem(503, "store-unavailable");
    assert!(refused.headers.contains_key("retry-after"));
    let reply = service.post("k", &Script::default()).await;
    reply.assert(StatusCode::CREATED, false);
    assert_eq!((database.effects(), database.records()), (2, 2));
    database.assert_clean(4).await;
}

#[tokio::test]
async fn repeats_and_other_requests_under_a_used_key_do_not_wait_for_a_writer() {
    let database = database();
    let service = impatient(&database).await;
    let first = service.post("k", &Script::default()).await;
    let refused = service.post("r", &Script::answering(402)).await;
    let mut other = stranger(&database).await;
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    let start = Instant::now();
    for _ in 0..3 {
        let again = service.post("k", &Script::default()).await;
        assert_eq!(again.assert(StatusCode::CREATED, true).body, first.body);
        let again = service.post("r", &Script::answering(402)).await;
        assert_eq!(
            again.assert(StatusCode::PAYMENT_REQUIRED, true).body,
            refused.body
        );
        let reused = service.post("k", &Script::answering(200)).await;
        reused.assert_problem(422, "key-reused");
    }
    assert!(
        start.elapsed() < Duration::from_millis(500),
        "{:?}",
        start.elapsed()
    );
    other.close().await.unwrap();
    database.assert_clean(4).await;
}

#[tokio::test]
async fn writer_in_another_process_is_waited_for_and_then_it_is_a_503() {
    let database = database();
    let service = impatient(&database).await;
    let mut other = stranger(&database).await;
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    let start = Instant::now();
    let busy = service.post("k", &Script::default()).await;
    busy.assert_problem(503, "store-unavailable");
    assert!(busy.headers.contains_key("retry-after"));
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(400), "{waited:?}");
    assert!(waited < Duration::from_secs(3), "{waited:?}");
    let swept = service.idempotency.sweep().await;
    assert!(matches!(swept, Err(StoreError::Locked)), "{swept:?}");

    // One that ends in time is not noticed.
    let script = Script::default();
    let (reply, ()) = tokio::join!(service.post("k", &script), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        other.execute("ROLLBACK").await.unwrap();
    });
    reply.assert(StatusCode::CREATED, false);
    assert_eq!((service.executions.get(), database.effects()), (1, 1));
    drop(other);
    database.assert_clean(4).await;
}

#[tokio::test]
async fn reader_neither_waits_nor_holds_anybody_up() {
    let database = database();
    let service = impatient(&database).await;
    let mut reader = stranger(&database).await;
    let count = "SELECT count(*) FROM effects";
    reader.execute("BEGIN").await.unwrap();
    let seen: i64 = sqlx::query_scalar(count)
        .fetch_one(&mut reader)
        .await
        .unwrap();
    let reply = service.post("k", &Script::default()).await;
    reply.assert(StatusCode::CREATED, false);
    let still: i64 = sqlx::query_scalar(count)
        .fetch_one(&mut reader)
        .await
        .unwrap();
    assert_eq!((seen, still, database.effects()), (0, 0, 1));
}

#[tokio::test]
async fn duplicate_on_another_server_waits_for_the_first_and_gets_its_answer() {
    let database = database();
    let (one, two) = (
        Service::start(&database.url()).await,
        Service::start(&database.url()).await,
    );
    let script = Script::sleeping(1_000);
    let (first, second) = tokio::join!(one.post("k", &script), async {
        until_running(&one, 1).await;
        two.post("k", &script).await
    });
    first.assert(StatusCode::CREATED, false);
    assert_eq!(second.assert(StatusCode::CREATED, true).body, first.body);
    let other = two.post("k", &script.note("other")).await;
    other.assert_problem(422, "key-reused");
    assert_eq!((one.executions.get(), two.executions.get()), (1, 0));
    assert_eq!((database.effects(), database.records()), (1, 1));
}

/// A process that stands still stops the others until it goes on or dies: there is no lease that could run out, and so
/// no second effect.
#[tokio::test]
async fn paused_process_holds_the_others_up_and_has_its_effect_when_it_goes_on() {
    let database = database();
    let paused = process(&database);
    let other = impatient(&database).await;
    let script = Script::sleeping(500);
    let post = |client: &Client| client.request("/effects").key("k").script(&script).send();
    let sent = tokio::spawn(post(&paused.client));
    database.until_asleep_in_rust(1).await;
    paused.signal("STOP");
    for _ in 0..2 {
        post(&other.client)
            .await
            .assert_problem(503, "store-unavailable");
    }
    paused.signal("CONT");
    let reply = sent.await.unwrap();
    reply.assert(StatusCode::CREATED, false);
    let again = post(&other.client).await;
    assert_eq!(again.assert(StatusCode::CREATED, true).body, reply.body);
    assert_eq!((database.effects(), database.records()), (1, 1));
    assert_eq!(other.executions.get(), 0);
    database.assert_clean(8).await;
}
