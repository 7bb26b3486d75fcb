//! Handlers that do something to their PostgreSQL transaction that they should not.

use idem_tests::service::script::{Script, Step, sql};
use reqwest::StatusCode;

use super::shared::{
    database,
    handlers::{
        assert_undone, assert_unharmed, committed_by, out_of_time, rolled_back_by, service,
    },
};

#[tokio::test]
async fn success_after_a_swallowed_sql_error_is_a_500_and_a_repeat_runs() {
    let database = database();
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
    let database = database();
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

/// A statement of the handler's own fails with the code that a second effect would have.
#[tokio::test]
async fn unique_violation_of_a_deferred_constraint_is_no_doubt_and_runs_once() {
    let database = database();
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
    let database = database();
    let service = service(&database).await;
    let role = format!("weak_{}", database.engine().name());
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
    let database = database();
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
    let database = database();
    let service = service(&database).await;
    let script = Script::of([sql("SET TRANSACTION READ ONLY")]);
    assert_undone(&service, &database, "k", &script).await;
    assert_unharmed(&service, &database).await;
}

#[tokio::test]
async fn handler_that_ends_its_transaction_in_a_way_of_postgres_is_a_500_too() {
    for ending in ["ROLLBACK AND CHAIN", "ABORT"] {
        rolled_back_by(ending).await;
    }
    committed_by("COMMIT AND CHAIN").await;
}

#[tokio::test]
async fn handler_that_runs_out_of_time_inside_a_statement_is_undone_and_its_connection_closed() {
    out_of_time(sql("SELECT pg_sleep(60)")).await;
}

#[tokio::test]
async fn without_a_key_a_swallowed_error_is_no_success() {
    let database = database();
    let service = service(&database).await;
    for step in ["INSERT INTO parents VALUES (1), (1)", "no SQL at all"] {
        let script = Script::of([Step::Try(step.to_owned())]);
        let reply = service
            .client
            .request("/optional")
            .script(&script)
            .send()
            .await;
        reply.assert_problem(500, "internal");
        assert_eq!(database.effects(), 0);
    }
}

#[tokio::test]
async fn row_stream_left_behind_neither_hangs_the_request_nor_harms_the_next() {
    let database = database();
    let service = service(&database).await;
    let script = Script::of([Step::LeakStream]);
    let reply = service.post("k", &script).await;
    let kept = usize::from(reply.status == 201);
    if kept == 0 {
        reply.assert_problem(503, "store-unavailable");
    }
    database.assert_clean(1).await;
    assert_eq!((database.effects(), database.records()), (kept, kept));
    assert_unharmed(&service, &database).await;
}
