//! Pools that are empty, connections that are dead or in a bad state, and databases that are down.

use std::time::{Duration, Instant};

use actix_web::{HttpResponse, web};
use deadpool_postgres::{Manager, Runtime, tokio_postgres::NoTls};
use idem_cluster::Cluster;
use idem_runtime::{Idempotency, SettingsError, StoreError};
use idem_tests::{
    relay::Relay,
    service::{
        EFFECTS, Pool, Service, Setup, TABLES,
        handlers::{self, Failure},
        script::{Script, Step, sql},
    },
    sessions::ASLEEP_IN_RUST,
};
use reqwest::StatusCode;
use tokio::task::JoinSet;

fn pool_of(pool: usize) -> Setup {
    Setup {
        pool,
        pool_wait: Duration::from_millis(500),
        ..Setup::default()
    }
}

#[tokio::test]
async fn second_connection_from_a_pool_of_one_is_the_handlers_own_failure_and_not_a_hang() {
    let database = EFFECTS.database();
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
    assert_eq!(service.pool.status().available, 1);
    database.assert_clean(1).await;
}

#[tokio::test]
async fn request_that_gets_no_connection_in_time_is_a_503_and_runs_later() {
    let database = EFFECTS.database();
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

/// A route that forgets to end its transaction.
async fn leaking(statements: String, pool: web::Data<Pool>) -> Result<HttpResponse, Failure> {
    let client = pool.get().await.unwrap();
    // The last one may fail.
    drop(client.batch_execute(&statements).await);
    Ok(HttpResponse::Ok().finish())
}

fn with_leaking_route(pool: usize) -> Setup {
    Setup {
        routes: |app| {
            app.route("/leaking", web::post().to(leaking))
                .configure(handlers::routes);
        },
        ..pool_of(pool)
    }
}

#[tokio::test]
async fn transaction_that_other_code_left_open_does_not_reach_a_guarded_request() {
    let database = EFFECTS.database();
    let service = Service::with(&database.url(), with_leaking_route(1)).await;
    for (number, leaked) in [
        "BEGIN; INSERT INTO parents VALUES (1)",
        "BEGIN; SELECT * FROM money FOR UPDATE",
        "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY; SELECT 1",
        "BEGIN",
        "BEGIN; INSERT INTO parents VALUES (2); SELECT 1 / 0",
        "BEGIN; SAVEPOINT s; INSERT INTO parents VALUES (3)",
    ]
    .iter()
    .enumerate()
    {
        let leak = || {
            service
                .client
                .request("/leaking")
                .body("text/plain", *leaked)
                .send()
        };
        assert_eq!(leak().await.status, 200);
        let key = format!("k{number}");
        let first = service.post(&key, &Script::default()).await;
        first.assert(StatusCode::CREATED, false);
        leak().await;
        let again = service.post(&key, &Script::default()).await;
        assert_eq!(again.assert(StatusCode::CREATED, true).body, first.body);
        leak().await;
        let unkeyed = service
            .client
            .request("/optional")
            .script(&Script::default())
            .send()
            .await;
        unkeyed.assert(StatusCode::CREATED, false);
        let done = (
            database.effects(),
            database.records(),
            database.count("parents"),
        );
        assert_eq!(done, (2 * number + 2, number + 1, 0), "{leaked}");
    }
    database.assert_clean(1).await;
}

#[tokio::test]
async fn transaction_that_other_code_left_open_does_not_reach_the_sweeper_either() {
    let database = EFFECTS.database();
    let service = Service::with(&database.url(), with_leaking_route(1)).await;
    service.post("k", &Script::default()).await;
    database
        .run_sql("UPDATE idem.records SET expires_at = now()")
        .unwrap();
    let leak = service.client.request("/leaking");
    leak.body("text/plain", "BEGIN; INSERT INTO parents VALUES (1)")
        .send()
        .await;
    assert_eq!(service.idempotency.sweep().await.unwrap(), 1);
    assert_eq!((database.records(), database.count("parents")), (0, 0));
    database.assert_clean(1).await;
}

#[tokio::test]
async fn connections_that_the_server_has_ended_are_replaced_unnoticed() {
    let database = EFFECTS.database();
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
    let end_all = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                   WHERE datname = current_database() AND pid <> pg_backend_pid()";
    database.run_sql(end_all).unwrap();
    service
        .post("k", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);

    // Under a handler: its COMMIT is in doubt, and it runs again.
    let script = Script::sleeping(1_000).note("slow");
    let request = service
        .client
        .request("/effects")
        .key("slow")
        .script(&script);
    let running = tokio::spawn(request.send());
    database.until_asleep_in_rust(1).await;
    database.run_sql(end_all).unwrap();
    running.await.unwrap().assert(StatusCode::CREATED, false);
    assert_eq!((database.effects(), database.records()), (6, 6));
    assert_eq!(service.executions.get(), 7);
    database.assert_clean(4).await;
}

#[tokio::test]
async fn nothing_that_is_set_for_a_request_stays_with_its_connection() {
    let database = EFFECTS.database();
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
        let client = service.pool.get().await.unwrap();
        let left: String = client.query_one(settings, &[]).await.unwrap().get(0);
        assert_eq!(left, "|0|0|read committed", "{path}");
    }
}

#[test]
fn pool_that_would_wait_for_ever_is_refused_with_what_to_write_instead() {
    let config = "postgres://localhost/shop".parse().unwrap();
    let pool = Pool::builder(Manager::new(config, NoTls)).build().unwrap();
    let error = Idempotency::new(pool).unwrap_err();
    assert!(matches!(error, SettingsError::NoWaitTimeout));
    let text = error.to_string();
    assert!(
        text.contains("wait_timeout(Some(Duration::from_secs(5))).runtime(Runtime::Tokio1)"),
        "{text}"
    );
    assert!(text.contains("idem_runtime::postgres::pool"), "{text}");
}

#[tokio::test]
async fn pool_of_the_services_own_without_further_limits_does_not_hang_when_packets_vanish() {
    let database = EFFECTS.database();
    let relay = Relay::start(database.port(), Duration::ZERO);
    let config = relay.url(database.name()).parse().unwrap();
    let pool = Pool::builder(Manager::new(config, NoTls))
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(Duration::from_millis(500)))
        .build()
        .unwrap();
    let setup = Setup {
        configure: |builder| builder.database_timeout(Duration::from_millis(500)),
        ..Setup::default()
    };
    let service = Service::over(pool, setup).await;
    relay.black_hole(true);
    let start = Instant::now();
    let reply = service.post("k", &Script::default()).await;
    reply.assert_problem(503, "store-unavailable");
    assert!(
        start.elapsed() < Duration::from_secs(8),
        "{:?}",
        start.elapsed()
    );
    relay.black_hole(false);
    service
        .post("k", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);
    assert_eq!((database.effects(), database.records()), (1, 1));
}

fn own_cluster() -> (Cluster, String) {
    let cluster = Cluster::start().unwrap();
    cluster.create_database("shop").unwrap();
    cluster.run_sql("shop", TABLES).unwrap();
    let url = cluster.url("shop");
    (cluster, url)
}

fn effects_and_records(cluster: &Cluster) -> String {
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
