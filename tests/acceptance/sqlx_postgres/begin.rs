//! A `begin` that does not come to its end: sqlx would hand its connection on, inside the transaction.

use std::time::Duration;

use idem_tests::{kinds::Kind as _, relay::Relay, service::script::Script};
use reqwest::StatusCode;
use tokio::time::sleep;

use super::{
    Kind,
    shared::{
        Database, Service, Setup, assert_whole, database,
        faults::{connected, one_sided},
    },
};

/// A service with two connections, which are there already, behind a relay.
async fn relayed() -> (Database, Relay, Service) {
    let database = database();
    let relay = Relay::start(database.engine().port(), Duration::ZERO);
    let setup = Setup {
        pool: 2,
        configure: |builder| builder.database_timeout(Duration::from_millis(500)),
        ..Setup::default()
    };
    let service = Service::with(&relay.url(database.engine().name()), setup).await;
    let script = Script::sleeping(100);
    let warm = |key| {
        let request = service.client.request("/effects").key(key);
        request.script(&script).send()
    };
    tokio::join!(warm("warm"), warm("warm-2"));
    (database, relay, service)
}

/// Checks that no connection of the pool is inside a transaction.
async fn assert_alone(database: &Database, service: &Service) {
    assert_whole(&service.pool).await;
    database.assert_clean(2).await;
    // Both connections are asked at the same time, and refuse it outside of a transaction.
    let savepoint = "SELECT pg_sleep(0.1); SAVEPOINT probe";
    let asked = [savepoint; 2].map(|savepoint| Kind::run(&service.pool, savepoint));
    for answer in futures_util::future::join_all(asked).await {
        assert_eq!(answer.unwrap_err().code.as_deref(), Some("25P01"));
    }
}

#[tokio::test]
async fn hang_ups_at_any_moment_leave_no_transaction_in_the_pool() {
    let (database, relay, service) = relayed().await;
    // Each of the five round trips takes long enough to hang up in the middle of it.
    relay.set_latency(Duration::from_millis(15));
    let script = |number| Script::default().note(&format!("k{number}"));
    for number in 0..50 {
        let connection = connected(&service.client, &format!("k{number}"), &script(number)).await;
        sleep(Duration::from_millis(number * 3)).await;
        connection.reset().unwrap();
    }
    relay.set_latency(Duration::ZERO);
    service.idempotency.drain().await;
    assert_alone(&database, &service).await;
    assert_eq!(one_sided(&database), "0");
    for number in 0..50 {
        let reply = service.post(&format!("k{number}"), &script(number)).await;
        assert_eq!(reply.status, 201);
    }
    assert_eq!((database.effects(), database.records()), (52, 52));
}

#[tokio::test]
async fn begin_that_takes_too_long_leaves_no_transaction_in_the_pool() {
    let (database, relay, service) = relayed().await;
    for milliseconds in [450, 480, 520, 700] {
        // The ping of the pool comes through in time, the answer to BEGIN or the claim does not.
        relay.set_latency(Duration::from_millis(milliseconds));
        let reply = service.post("k", &Script::default()).await;
        reply.assert_problem(503, "store-unavailable");
        relay.set_latency(Duration::ZERO);
        assert_alone(&database, &service).await;
    }
    let reply = service.post("k", &Script::default()).await;
    reply.assert(StatusCode::CREATED, false);
    assert_eq!((database.effects(), database.records()), (3, 3));
}
