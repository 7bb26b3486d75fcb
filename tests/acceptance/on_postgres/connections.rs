//! Pools that are empty, connections that are dead or in a bad state, and databases that are down.

use std::time::Duration;

use idem_cluster::Cluster;
use idem_runtime::StoreError;
use idem_tests::{
    database::{Engine as _, postgres::ASLEEP_IN_RUST},
    kinds::Kind as _,
    service::script::{Script, sql},
};
use reqwest::StatusCode;
use tokio::task::JoinSet;

use super::{
    Kind,
    shared::{
        Engine, Service, Setup,
        connections::{pool_of, unreached_by},
        database,
    },
};

#[tokio::test]
async fn connections_that_the_server_has_ended_are_replaced_unnoticed() {
    let database = database();
    let service = Service::with(&database.url(), pool_of(4)).await;
    let mut warm = JoinSet::new();
    for number in 0..4 {
        let request = service
            .client
            .request("/effects")
            .key(&format!("w{number}"));
        warm.spawn(request.script(&Script::sleeping(300)).send());
    }
    warm.join_all().await;
    database.engine().end_sessions();
    service
        .post("k", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);

    // Under a handler: it runs again.
    let script = Script::sleeping(1_000).note("slow");
    let request = service
        .client
        .request("/effects")
        .key("slow")
        .script(&script);
    let running = tokio::spawn(request.send());
    database.until_asleep_in_rust(1).await;
    database.engine().end_sessions();
    running.await.unwrap().assert(StatusCode::CREATED, false);
    assert_eq!((database.effects(), database.records()), (6, 6));
    assert_eq!(service.executions.get(), 7);
    database.assert_clean(4).await;
}

#[tokio::test]
async fn nothing_that_is_set_for_a_request_stays_with_its_connection() {
    let database = database();
    let setup = Setup {
        configure: |builder| {
            builder.transaction_settings(|_| vec![("app.tenant".to_owned(), "a".to_owned())])
        },
        ..pool_of(1)
    };
    let service = Service::with(&database.url(), setup).await;
    let settings = "SELECT concat_ws('|', current_setting('app.tenant', true), \
                    current_setting('idle_in_transaction_session_timeout'), \
                    current_setting('client_connection_check_interval'), \
                    current_setting('transaction_isolation'))";
    let check = "SELECT 1 / (current_setting('app.tenant') = 'a')::int";
    for path in ["/effects", "/serializable", "/optional"] {
        let request = service.client.request(path).key("k");
        let script = Script::of([sql(check)]);
        request
            .script(&script)
            .send()
            .await
            .assert(StatusCode::CREATED, false);
        let left = Kind::ask(&service.pool, settings).await.unwrap();
        assert_eq!(left.unwrap(), "|0|0|read committed", "{path}");
    }
}

pub(super) fn own_cluster() -> (Cluster, String) {
    let cluster = Cluster::start().unwrap();
    cluster.create_database("shop").unwrap();
    cluster.run_sql("shop", Engine::TABLES).unwrap();
    let url = cluster.url("shop");
    (cluster, url)
}

pub(super) fn effects_and_records(cluster: &Cluster) -> String {
    let count = "SELECT (SELECT count(*) FROM effects), (SELECT count(*) FROM idem.records)";
    cluster.run_sql("shop", count).unwrap()
}

#[tokio::test]
async fn service_that_starts_before_its_database_answers_503_and_works_once_it_is_up() {
    let (cluster, url) = own_cluster();
    cluster.stop_server().unwrap();
    let service = Service::with(&url, pool_of(2)).await;
    let error = service.idempotency.migrate().await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable(_)), "{error}");
    for _ in 0..2 {
        let reply = service.post("k", &Script::default()).await;
        reply.assert_problem(503, "store-unavailable");
        assert!(reply.headers.contains_key("retry-after"));
    }
    cluster.start_server().unwrap();
    service.idempotency.migrate().await.unwrap();
    service
        .post("k", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);

    // It goes down while the service runs, and comes up again.
    cluster.stop_server().unwrap();
    let reply = service.post("k", &Script::default()).await;
    reply.assert_problem(503, "store-unavailable");
    cluster.start_server().unwrap();
    service
        .post("k", &Script::default())
        .await
        .assert(StatusCode::CREATED, true);
    assert_eq!(service.executions.get(), 1);
    assert_eq!(effects_and_records(&cluster), "1|1");
}

#[tokio::test]
async fn database_that_restarts_under_a_running_handler_costs_it_a_second_run_and_nothing_else() {
    let (cluster, url) = own_cluster();
    let service = Service::with(&url, pool_of(2)).await;
    service.idempotency.migrate().await.unwrap();
    for (number, key) in ["stop", "crash"].into_iter().enumerate() {
        let script = Script::sleeping(1_500);
        let request = service.client.request("/effects").key(key).script(&script);
        let running = tokio::spawn(request.send());
        while cluster.run_sql("shop", ASLEEP_IN_RUST).unwrap() != "1" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let down = match key {
            "stop" => cluster.stop_server(),
            _ => cluster.crash_server(),
        };
        down.unwrap();
        cluster.start_server().unwrap();
        let reply = running.await.unwrap();
        reply.assert(StatusCode::CREATED, false);
        let again = service.post(key, &script).await;
        assert_eq!(again.assert(StatusCode::CREATED, true).body, reply.body);
        assert_eq!(service.executions.get(), 2 * (number + 1));
        assert_eq!(
            effects_and_records(&cluster),
            format!("{0}|{0}", number + 1)
        );
    }
}

#[tokio::test]
async fn transaction_left_open_in_a_way_of_postgres_does_not_reach_a_guarded_request() {
    for leaked in [
        "BEGIN; SELECT * FROM money FOR UPDATE",
        "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY; SELECT 1",
        "BEGIN; INSERT INTO parents VALUES (2); SELECT 1 / 0",
    ] {
        unreached_by(leaked).await;
    }
}
