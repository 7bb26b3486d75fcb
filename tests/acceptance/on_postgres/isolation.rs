//! Stricter isolation levels, and errors that mean "run again".

use std::time::Duration;

use idem_tests::{
    relay::Relay,
    service::{
        Reply,
        handlers::Failure,
        script::{Script, sql},
    },
};
use reqwest::StatusCode;
use tokio::{task::JoinSet, time::Instant};
use tokio_postgres::NoTls;

use super::shared::{Database, Service, Setup, database};

async fn service(database: &Database) -> Service {
    Service::start(&database.url()).await
}

/// Runs handlers again whose error says that it was a serialisation failure.
async fn retrying(database: &Database) -> Service {
    let setup = Setup {
        configure: |builder| {
            builder.retryable(|error| {
                let failure = error.as_error::<Failure>();
                failure.is_some_and(|failure| failure.code.as_deref() == Some("40001"))
            })
        },
        ..Setup::default()
    };
    Service::with(&database.url(), setup).await
}

async fn send(service: &Service, path: &str, key: &str, script: &Script) -> Reply {
    service
        .client
        .request(path)
        .key(key)
        .script(script)
        .send()
        .await
}

/// Fails as a serialisation failure, this many times.
fn failing(times: u32) -> Script {
    Script::of([sql(&format!(
        "DO $$ BEGIN IF nextval('tries') <= {times} THEN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END IF; END $$"
    ))])
}

fn with_tries() -> Database {
    let database = database();
    database.run_sql("CREATE SEQUENCE tries").unwrap();
    database
}

#[tokio::test]
async fn endpoint_runs_at_the_level_that_it_names_whatever_the_database_says() {
    let database = database();
    database
        .run_sql(&format!(
            "ALTER DATABASE {0} SET default_transaction_isolation = 'repeatable read'; \
             ALTER DATABASE {0} SET default_transaction_read_only = on",
            database.engine().name()
        ))
        .unwrap();
    let service = service(&database).await;
    for (path, level) in [
        ("/effects", "read committed"),
        ("/optional", "read committed"),
        ("/repeatable", "repeatable read"),
        ("/serializable", "serializable"),
    ] {
        // Fails where the level is another.
        let check =
            format!("SELECT 1 / (current_setting('transaction_isolation') = '{level}')::int");
        let reply = send(&service, path, "k", &Script::of([sql(&check)])).await;
        reply.assert(StatusCode::CREATED, false);
    }
    assert_eq!((database.effects(), database.records()), (4, 4));
}

#[tokio::test]
async fn equal_requests_at_once_have_one_effect_at_every_level() {
    let database = database();
    let (one, two) = (service(&database).await, service(&database).await);
    for path in ["/repeatable", "/serializable"] {
        for round in 0..15 {
            let key = format!("k{round}");
            let mut sent = JoinSet::new();
            for service in [&one, &two, &one, &two] {
                let request = service.client.request(path).key(&key);
                sent.spawn(request.script(&Script::default()).send());
            }
            let replies = sent.join_all().await;
            let successes: Vec<_> = replies.iter().filter(|reply| reply.status == 201).collect();
            assert!(
                replies
                    .iter()
                    .all(|reply| matches!(reply.status, 201 | 409)),
                "{replies:?}"
            );
            assert!(
                successes
                    .iter()
                    .all(|reply| reply.body == successes[0].body)
            );
            let executed = successes.iter().filter(|reply| !reply.is_replay());
            assert_eq!(executed.count(), 1, "{replies:?}");
        }
    }
    assert_eq!((database.effects(), database.records()), (30, 30));
    database.assert_clean(8).await;
}

/// What a snapshot from before the lock would miss, put there by hand.
#[tokio::test]
async fn record_that_the_claim_could_not_see_is_the_answer_and_the_handler_ran_in_vain() {
    let database = database();
    let service = service(&database).await;
    let script = Script::sleeping(1_000);
    for (number, path) in ["/effects", "/repeatable", "/serializable"]
        .iter()
        .enumerate()
    {
        let stored = send(&service, path, "stored", &script).await;
        let request = service.client.request(path).key("k");
        let running = tokio::spawn(request.script(&script).send());
        database.until_asleep_in_rust(1).await;
        let copied = format!(
            "INSERT INTO idem.records SELECT scope, operation, 'k', request, fingerprint, status, headers, body, \
             created_at, expires_at FROM idem.records WHERE operation = 'POST {path}' AND key = 'stored'"
        );
        database.run_sql(&copied).unwrap();
        let reply = running.await.unwrap();
        assert_eq!(reply.assert(StatusCode::CREATED, true).body, stored.body);
        assert_eq!(
            (database.effects(), database.records()),
            (number + 1, 2 * (number + 1))
        );
    }
    assert_eq!(service.executions.get(), 6);
    database.assert_clean(4).await;
}

#[tokio::test]
async fn refusal_that_the_claim_could_not_see_does_not_become_an_effect() {
    let database = database();
    let service = service(&database).await;
    let script = Script::sleeping(1_000);
    for path in ["/effects", "/repeatable", "/serializable"] {
        let stored = send(&service, path, "stored", &script).await;
        stored.assert(StatusCode::CREATED, false);
        let effects = database.effects();
        let request = service.client.request(path).key("k");
        let running = tokio::spawn(request.script(&script).send());
        database.until_asleep_in_rust(1).await;
        // The refusal of this very request, committed after the claim's snapshot.
        let refusal = format!(
            "INSERT INTO idem.records SELECT scope, operation, 'k', fingerprint, fingerprint, 402, headers, 'no', \
             created_at, expires_at FROM idem.records WHERE operation = 'POST {path}' AND key = 'stored'"
        );
        database.run_sql(&refusal).unwrap();
        let reply = running.await.unwrap();
        reply.assert(StatusCode::PAYMENT_REQUIRED, true);
        assert_eq!(reply.text(), "no");
        assert_eq!(database.effects(), effects);
    }
    database.assert_clean(4).await;
}

#[tokio::test]
async fn effect_that_the_second_claim_could_not_see_is_the_answer_and_not_the_refusal() {
    let database = database();
    let relay = Relay::start(database.engine().port(), Duration::ZERO);
    let service = Service::start(&relay.url(database.engine().name())).await;
    let script = Script {
        status: 402,
        ..Script::sleeping(500)
    };
    service.post("stored", &script).await;
    let request = service.client.request("/effects").key("k");
    let running = tokio::spawn(request.script(&script).send());
    database.until_asleep_in_rust(1).await;
    // From now on there is time between an answer and what the service sends next.
    relay.set_latency(Duration::from_millis(1_500));
    let claimed_again = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' \
                         AND query LIKE '%pg_try_advisory_xact_lock%'";
    let limit = Instant::now() + Duration::from_secs(20);
    while database.run_sql(claimed_again).unwrap() == "0" {
        assert!(Instant::now() < limit, "nobody claims the key again");
    }
    // The effect of this very request, committed after the second claim's snapshot.
    database
        .run_sql(
            "INSERT INTO idem.records SELECT scope, operation, 'k', '', fingerprint, 201, headers, 'paid', \
             created_at, expires_at FROM idem.records WHERE key = 'stored'",
        )
        .unwrap();
    let reply = running.await.unwrap();
    reply.assert(StatusCode::CREATED, true);
    assert_eq!(reply.text(), "paid");
    let refusals = "SELECT count(*) FROM idem.records WHERE key = 'k' AND request <> ''";
    assert_eq!(database.run_sql(refusals).unwrap(), "0");
}

#[tokio::test]
async fn effect_that_comes_after_the_second_claim_was_lost_is_the_answer_and_not_the_refusal() {
    let database = database();
    let relay = Relay::start(database.engine().port(), Duration::ZERO);
    let service = Service::start(&relay.url(database.engine().name())).await;
    let script = Script {
        status: 402,
        ..Script::sleeping(1_000)
    };
    send(&service, "/repeatable", "stored", &script).await;
    let request = service.client.request("/repeatable").key("k");
    let running = tokio::spawn(request.script(&script).send());
    database.until_asleep_in_rust(1).await;
    relay.set_latency(Duration::from_millis(300));
    database
        .run_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE state = 'idle in transaction' AND datname = current_database()",
        )
        .unwrap();
    let claimed_anew = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' \
                        AND query LIKE '%pg_try_advisory_xact_lock%'";
    let limit = Instant::now() + Duration::from_secs(20);
    while database.run_sql(claimed_anew).unwrap() == "0" {
        assert!(Instant::now() < limit, "nobody claims the key anew");
    }
    // The effect of this very request, committed after the new claim's snapshot.
    database
        .run_sql(
            "INSERT INTO idem.records SELECT scope, operation, 'k', '', fingerprint, 201, headers, 'paid', \
             created_at, expires_at FROM idem.records WHERE key = 'stored'",
        )
        .unwrap();
    let reply = running.await.unwrap();
    reply.assert(StatusCode::CREATED, true);
    assert_eq!(reply.text(), "paid");
    let refusals = "SELECT count(*) FROM idem.records WHERE key = 'k' AND request <> ''";
    assert_eq!(database.run_sql(refusals).unwrap(), "0");
}

#[tokio::test]
async fn other_request_that_the_claim_could_not_see_is_a_mismatch_and_not_a_second_effect() {
    let database = database();
    let service = service(&database).await;
    service.post("stored", &Script::default()).await;
    let script = Script::sleeping(1_000);
    let request = service.client.request("/effects").key("k");
    let running = tokio::spawn(request.script(&script).send());
    database.until_asleep_in_rust(1).await;
    database
        .run_sql(
            "INSERT INTO idem.records SELECT scope, operation, 'k', request, fingerprint, status, headers, body, \
             created_at, expires_at FROM idem.records",
        )
        .unwrap();
    running.await.unwrap().assert_problem(422, "key-reused");
    assert_eq!((database.effects(), database.records()), (1, 2));
    database.assert_clean(4).await;
}

#[tokio::test]
async fn serialisation_failure_at_commit_runs_the_handler_again_without_being_asked() {
    let database = database();
    database
        .run_sql("INSERT INTO money VALUES ('a', 1), ('b', 1)")
        .unwrap();
    let service = service(&database).await;
    let (door, connection) = tokio_postgres::connect(&database.url(), NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    door.batch_execute("SELECT pg_advisory_lock(1)")
        .await
        .unwrap();
    // Each reads what the other writes, and neither can commit before both have done so.
    let skewed = |mine: &str, other: &str| {
        Script::of([
            sql(&format!("SELECT amount FROM money WHERE id = '{other}'")),
            sql(&format!(
                "UPDATE money SET amount = amount - 1 WHERE id = '{mine}'"
            )),
            sql("SELECT pg_advisory_xact_lock_shared(1)"),
        ])
    };
    let mut sent = JoinSet::new();
    for (key, script) in [("k1", skewed("a", "b")), ("k2", skewed("b", "a"))] {
        let [request, repeat] = [(); 2].map(|()| {
            let request = service.client.request("/serializable");
            request.key(key).script(&script)
        });
        sent.spawn(async move { (request.send().await, repeat) });
    }
    let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    database.until(waiting, "2").await;
    door.batch_execute("SELECT pg_advisory_unlock(1)")
        .await
        .unwrap();
    let mut executions = 3;
    for (mut reply, repeat) in sent.join_all().await {
        // The second run can begin before the other transaction's COMMIT shows. Then it is refused
        // within a statement, which is the handler's error, and nobody was asked to retry those.
        if reply.text() == "failure 500 Internal Server Error Some(\"40001\")" {
            executions += 1;
            reply = repeat.send().await;
        }
        reply.assert(StatusCode::CREATED, false);
    }
    assert_eq!(
        database.run_sql("SELECT sum(amount) FROM money").unwrap(),
        "0"
    );
    assert_eq!((database.effects(), database.records()), (2, 2));
    assert_eq!(service.executions.get(), executions);
    drop(door);
    database.assert_clean(4).await;
}

#[tokio::test]
async fn retryable_error_runs_the_handler_again_and_has_one_effect() {
    let database = with_tries();
    let service = retrying(&database).await;
    for (number, times) in [1, 2].into_iter().enumerate() {
        database.run_sql("ALTER SEQUENCE tries RESTART").unwrap();
        let key = format!("k{times}");
        let reply = service.post(&key, &failing(times)).await;
        reply.assert(StatusCode::CREATED, false);
        let again = service.post(&key, &failing(times)).await;
        assert_eq!(again.assert(StatusCode::CREATED, true).body, reply.body);
        assert_eq!(
            (database.effects(), database.records()),
            (number + 1, number + 1)
        );
    }
    assert_eq!(service.executions.get(), 2 + 3);
    database.assert_clean(4).await;
}

#[tokio::test]
async fn retryable_error_that_does_not_go_away_is_answered_after_three_runs_and_frees_the_key() {
    let database = with_tries();
    let service = retrying(&database).await;
    let reply = service.post("k", &failing(4)).await;
    assert_eq!((reply.status, reply.problem().as_str()), (500, ""));
    assert_eq!(service.executions.get(), 3);
    assert_eq!((database.effects(), database.records()), (0, 0));
    let reply = service.post("k", &failing(4)).await;
    reply.assert(StatusCode::CREATED, false);
    assert_eq!(service.executions.get(), 5);
    database.assert_clean(4).await;
}

#[tokio::test]
async fn error_is_not_retried_where_nobody_said_that_it_may_be() {
    let database = with_tries();
    let service = service(&database).await;
    let reply = service.post("k", &failing(1)).await;
    assert_eq!((reply.status, service.executions.get()), (500, 1));
    assert_eq!((database.effects(), database.records()), (0, 0));
    database.assert_clean(4).await;
}
