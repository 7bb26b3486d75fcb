//! Handlers that do something to their PostgreSQL transaction that they should not.

use std::time::Duration;

use idem_tests::{
    database::Database,
    service::{
        EFFECTS, Service, Setup,
        script::{Script, Step, sql},
    },
};
use reqwest::StatusCode;

/// A service with one connection: what one request leaves behind, the next one meets.
async fn service(database: &Database) -> Service {
    let setup = Setup {
        pool: 1,
        configure: |builder| builder.database_timeout(Duration::from_secs(1)),
        ..Setup::default()
    };
    Service::with(&database.url(), setup).await
}

/// Checks that the service goes on, and that nothing is left over.
async fn assert_unharmed(service: &Service, database: &Database) {
    let effects = database.effects();
    let reply = service.post("afterwards", &Script::default()).await;
    reply.assert(StatusCode::CREATED, false);
    assert_eq!(database.effects(), effects + 1);
    assert_eq!(service.pool.status().size, 1);
    database.assert_clean(1).await;
}

/// Sends the request twice: each time it is a 500 that keeps nothing.
async fn assert_undone(service: &Service, database: &Database, key: &str, script: &Script) {
    let (effects, records) = (database.effects(), database.records());
    for _ in 0..2 {
        let executions = service.executions.get();
        let reply = service.post(key, script).await;
        reply.assert_problem(500, "internal");
        assert_eq!(service.executions.get(), executions + 1);
        let kept = (database.effects(), database.records());
        assert_eq!(kept, (effects, records), "{script:?}");
    }
}

#[tokio::test]
async fn success_after_a_swallowed_sql_error_is_a_500_and_a_repeat_runs() {
    let database = EFFECTS.database();
    let service = service(&database).await;
    let script = Script::of([Step::Try("INSERT INTO missing VALUES (1)".to_owned())]);
    assert_undone(&service, &database, "k", &script).await;
    database.run_sql("CREATE TABLE missing (id int)").unwrap();
    let reply = service.post("k", &script).await;
    reply.assert(StatusCode::CREATED, false);
    assert_unharmed(&service, &database).await;
}

#[tokio::test]
async fn refusal_after_a_swallowed_sql_error_is_stored() {
    let database = EFFECTS.database();
    let service = service(&database).await;
    let steps = [Step::Try("INSERT INTO missing VALUES (1)".to_owned())];
    let script = Script {
        status: 402,
        ..Script::of(steps)
    };
    let first = service.post("k", &script).await;
    first.assert(StatusCode::PAYMENT_REQUIRED, false);
    let again = service.post("k", &script).await;
    assert_eq!(
        again.assert(StatusCode::PAYMENT_REQUIRED, true).body,
        first.body
    );
    assert_eq!((database.effects(), database.records()), (0, 1));
    assert_unharmed(&service, &database).await;
}

#[tokio::test]
async fn sql_error_below_a_savepoint_does_no_harm() {
    let database = EFFECTS.database();
    let service = service(&database).await;
    let script = Script::of([Step::Savepoint("INSERT INTO missing VALUES (1)".to_owned())]);
    service
        .post("k", &script)
        .await
        .assert(StatusCode::CREATED, false);
    service
        .post("k", &script)
        .await
        .assert(StatusCode::CREATED, true);
    assert_eq!((database.effects(), database.records()), (1, 1));
    assert_unharmed(&service, &database).await;
}

#[tokio::test]
async fn handler_that_rolls_back_by_itself_is_a_500_and_records_nothing() {
    let database = EFFECTS.database();
    let service = service(&database).await;
    for (number, ending) in ["ROLLBACK", "ROLLBACK; BEGIN", "ROLLBACK AND CHAIN", "ABORT"]
        .iter()
        .enumerate()
    {
        let script = Script::of([sql(ending)]);
        assert_undone(&service, &database, &format!("k{number}"), &script).await;
    }
    assert_unharmed(&service, &database).await;
}

/// What it has committed by itself stays, since nobody can undo it; but no record claims that all was well.
#[tokio::test]
async fn handler_that_commits_by_itself_is_a_500_and_records_nothing() {
    let database = EFFECTS.database();
    let service = service(&database).await;
    let endings = [
        "COMMIT",
        "COMMIT; BEGIN",
        "COMMIT AND CHAIN",
        "COMMIT; BEGIN; INSERT INTO parents VALUES (1)",
    ];
    for (number, ending) in endings.iter().enumerate() {
        let script = Script::of([sql(ending)]);
        let reply = service.post(&format!("k{number}"), &script).await;
        reply.assert_problem(500, "internal");
        assert_eq!(
            (database.effects(), database.records()),
            (number + 1, 0),
            "{ending}"
        );
    }
    assert_eq!(database.count("parents"), 0);
    assert_unharmed(&service, &database).await;
}

#[tokio::test]
async fn request_without_key_whose_handler_ends_the_transaction_is_a_500_too() {
    let database = EFFECTS.database();
    let service = service(&database).await;
    let swallowed = Step::Try("INSERT INTO missing VALUES (1)".to_owned());
    for step in [sql("ROLLBACK"), sql("ROLLBACK; BEGIN"), swallowed] {
        let request = service.client.request("/optional");
        let reply = request.script(&Script::of([step])).send().await;
        reply.assert_problem(500, "internal");
        assert_eq!((database.effects(), database.records()), (0, 0));
    }
    assert_unharmed(&service, &database).await;
}

#[tokio::test]
async fn deferred_constraint_that_fails_at_commit_is_a_500_and_keeps_nothing() {
    let database = EFFECTS.database();
    let service = service(&database).await;
    let script = Script::of([sql("INSERT INTO children VALUES (7)")]);
    assert_undone(&service, &database, "k", &script).await;
    let request = service.client.request("/optional").script(&script);
    request.send().await.assert_problem(500, "internal");
    assert_eq!((database.effects(), database.count("children")), (0, 0));

    database.run_sql("INSERT INTO parents VALUES (7)").unwrap();
    let reply = service.post("k", &script).await;
    reply.assert(StatusCode::CREATED, false);
    assert_eq!((database.effects(), database.records()), (1, 1));
    assert_unharmed(&service, &database).await;
}

/// A statement of the handler's own fails with the code that a second effect would have.
#[tokio::test]
async fn unique_violation_of_a_deferred_constraint_is_no_doubt_and_runs_once() {
    let database = EFFECTS.database();
    database
        .run_sql("CREATE TABLE once (id int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO once VALUES (1)")
        .unwrap();
    let service = service(&database).await;
    let script = Script::of([sql("INSERT INTO once VALUES (1)")]);
    assert_undone(&service, &database, "k", &script).await;
    assert_unharmed(&service, &database).await;
}

#[tokio::test]
async fn role_set_by_the_handler_that_may_not_write_the_record_is_a_500_and_undone() {
    let database = EFFECTS.database();
    let service = service(&database).await;
    let role = format!("weak_{}", database.name());
    database
        .run_sql(&format!(
            "CREATE ROLE {role}; GRANT ALL ON effects TO {role}"
        ))
        .unwrap();
    let script = Script::of([sql(&format!("SET LOCAL ROLE {role}"))]);
    assert_undone(&service, &database, "k", &script).await;
    assert_unharmed(&service, &database).await;

    database
        .run_sql(&format!("GRANT USAGE ON SCHEMA idem TO {role}; GRANT SELECT, INSERT, DELETE ON idem.records TO {role}"))
        .unwrap();
    service
        .post("k", &script)
        .await
        .assert(StatusCode::CREATED, false);
    service
        .post("k", &script)
        .await
        .assert(StatusCode::CREATED, true);
}

#[tokio::test]
async fn search_path_set_by_the_handler_does_not_reach_the_record() {
    let database = EFFECTS.database();
    let decoy = "CREATE SCHEMA decoy; CREATE TABLE decoy.records (id int); \
                 CREATE FUNCTION decoy.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''epoch''::timestamptz'; \
                 CREATE FUNCTION decoy.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''epoch''::timestamptz'";
    database.run_sql(decoy).unwrap();
    let service = service(&database).await;
    for (number, path) in ["", "decoy", "decoy, pg_catalog"].iter().enumerate() {
        let key = format!("k{number}");
        let script = Script::of([sql(&format!(
            "SET LOCAL search_path = {}",
            if path.is_empty() { "''" } else { path }
        ))]);
        service
            .post(&key, &script)
            .await
            .assert(StatusCode::CREATED, false);
        service
            .post(&key, &script)
            .await
            .assert(StatusCode::CREATED, true);
    }
    assert_eq!((database.effects(), database.records()), (3, 3));
    assert_unharmed(&service, &database).await;
}

#[tokio::test]
async fn read_only_transaction_set_by_the_handler_is_a_500_and_undone() {
    let database = EFFECTS.database();
    let service = service(&database).await;
    let script = Script::of([sql("SET TRANSACTION READ ONLY")]);
    assert_undone(&service, &database, "k", &script).await;
    assert_unharmed(&service, &database).await;
}

#[tokio::test]
async fn row_stream_left_behind_neither_hangs_the_request_nor_harms_the_next() {
    let database = EFFECTS.database();
    let service = service(&database).await;
    let script = Script::of([Step::LeakStream]);
    let reply = service.post("k", &script).await;
    reply.assert_problem(503, "store-unavailable");
    database.assert_clean(1).await;
    assert_eq!((database.effects(), database.records()), (0, 0));
    assert_unharmed(&service, &database).await;
}

#[tokio::test]
async fn transient_failure_frees_the_key_and_the_repeat_runs() {
    let database = EFFECTS.database();
    database
        .run_sql("INSERT INTO money VALUES ('a', 0)")
        .unwrap();
    let service = service(&database).await;
    let script = Script::of([Step::Need("a".to_owned(), 503)]);
    let first = service.post("k", &script).await;
    first.assert(StatusCode::SERVICE_UNAVAILABLE, false);
    assert_eq!((database.effects(), database.records()), (0, 0));
    database.run_sql("UPDATE money SET amount = 1").unwrap();
    service
        .post("k", &script)
        .await
        .assert(StatusCode::CREATED, false);
    service
        .post("k", &script)
        .await
        .assert(StatusCode::CREATED, true);
    assert_eq!((service.executions.get(), database.effects()), (2, 1));
    assert_unharmed(&service, &database).await;
}

#[tokio::test]
async fn handler_that_runs_out_of_time_in_rust_or_in_sql_is_undone_and_its_connection_closed() {
    let database = EFFECTS.database();
    let service = service(&database).await;
    let steps = [Step::Sleep(60_000), sql("SELECT pg_sleep(60)")];
    for (number, step) in steps.into_iter().enumerate() {
        let request = service
            .client
            .request("/hurried")
            .key(&format!("k{number}"));
        let reply = request.script(&Script::of([step])).send().await;
        reply.assert_problem(503, "handler-timeout");
        assert!(reply.headers.contains_key("retry-after"));
        database.assert_clean(1).await;
        assert_eq!((database.effects(), database.records()), (0, 0));
    }
    assert_unharmed(&service, &database).await;
}
