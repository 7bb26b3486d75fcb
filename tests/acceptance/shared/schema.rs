//! The record table: how it comes about, and what is said where it is missing.

use std::{fs::File, time::Duration};

use idem_runtime::{Idempotency, StoreError};
use idem_tests::{
    database::Engine as _,
    kinds::Kind as _,
    service::{ServiceProcess, script::Script},
};
use reqwest::StatusCode;
use tokio::task::JoinSet;

use super::{Database, Engine, Kind, PROGRAM, assert_whole, database, guard};

#[tokio::test]
async fn migrations_can_be_applied_twice_and_by_many_at_once() {
    let database = Database::empty();
    let mut instances = JoinSet::new();
    for _ in 0..8 {
        let idempotency = guard(&database.url()).await;
        instances.spawn(async move { idempotency.migrate().await });
    }
    for migrated in instances.join_all().await {
        migrated.unwrap();
    }
    let idempotency = guard(&database.url()).await;
    idempotency.migrate().await.unwrap();
    idempotency.verify_schema().await.unwrap();
    assert_eq!(database.records(), 0);
}

#[tokio::test]
async fn missing_table_is_a_503_whose_log_says_what_to_do_and_is_mended_without_a_restart() {
    let database = database();
    database.run_sql(Engine::DROP).unwrap();
    let path = database.file("log");
    let log = File::create(&path).unwrap();
    let process =
        ServiceProcess::with::<Kind>(PROGRAM, &database, &database.url(), "warn", log.into());
    let send = || {
        process
            .client
            .request("/effects")
            .key("k")
            .script(&Script::default())
            .send()
    };
    let reply = send().await;
    reply.assert_problem(503, "store-unavailable");
    assert!(!reply.text().contains("idem."), "{}", reply.text());
    let log = std::fs::read_to_string(&path).unwrap();
    assert!(
        log.contains("run `Idempotency::migrate()` at start"),
        "{log}"
    );
    assert_eq!((database.effects(), database.begun()), (0, 0));

    // As the log says.
    guard(&database.url()).await.migrate().await.unwrap();
    send().await.assert(StatusCode::CREATED, false);
    send().await.assert(StatusCode::CREATED, true);

    // The table goes while its statements are prepared.
    database.run_sql(Engine::DROP).unwrap();
    send().await.assert_problem(503, "store-unavailable");
    assert_eq!(database.effects(), 1);
    database.assert_clean(4).await;
}

/// The check compares two connections where there are two, and must not wait for a third.
#[tokio::test]
async fn check_at_start_needs_no_more_connections_than_the_pool_has() {
    let database = database();
    for size in [1, 2] {
        let pool = Kind::pool(&database.url(), size, Duration::from_secs(60)).await;
        let idempotency = Idempotency::new(pool.clone()).unwrap();
        let checked = tokio::time::timeout(Duration::from_secs(20), idempotency.verify_schema());
        checked.await.expect("no wait for a connection").unwrap();
        assert_whole(&pool).await;
    }
}

#[tokio::test]
async fn check_at_start_says_that_the_table_is_missing_and_what_to_do() {
    let database = Database::empty();
    let error = guard(&database.url())
        .await
        .verify_schema()
        .await
        .unwrap_err();
    assert!(
        matches!(error, StoreError::Schema(_)) && error.to_string().contains("migrate()"),
        "{error}"
    );
}
