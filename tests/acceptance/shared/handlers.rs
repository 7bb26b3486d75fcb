//! Handlers that do something to their transaction that they should not.

use idem_tests::{
    kinds::Kind as _,
    service::script::{Script, Step, sql},
};
use reqwest::StatusCode;

use super::{Database, Kind, Service, Setup, assert_whole, database};

pub(crate) async fn service(database: &Database) -> Service {
    service_with(database, Setup::default()).await
}

/// Starts a service with one connection: what one request leaves behind, the next one meets.
pub(crate) async fn service_with(database: &Database, setup: Setup) -> Service {
    let setup = Setup { pool: 1, ..setup };
    Service::with(&database.url(), setup).await
}

/// Checks that the service goes on, and that nothing is left over.
pub(crate) async fn assert_unharmed(service: &Service, database: &Database) {
    let effects = database.effects();
    let reply = service.post("afterwards", &Script::default()).await;
    reply.assert(StatusCode::CREATED, false);
    assert_eq!(database.effects(), effects + 1);
    assert_whole(&service.pool).await;
    database.assert_clean(1).await;
}

/// Sends the request twice: each time it is a 500 that keeps nothing.
pub(crate) async fn assert_undone(
    service: &Service,
    database: &Database,
    key: &str,
    script: &Script,
) {
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
async fn sql_error_below_a_savepoint_does_no_harm() {
    let database = database();
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
    for ending in [
        "ROLLBACK",
        "ROLLBACK; BEGIN",
        "ROLLBACK; BEGIN; INSERT INTO parents VALUES (1)",
    ] {
        rolled_back_by(ending).await;
    }
}

/// Lets a handler end its transaction in this way, with its key and without.
pub(crate) async fn rolled_back_by(ending: &str) {
    let database = database();
    let service = service(&database).await;
    let script = Script::of([sql(ending)]);
    assert_undone(&service, &database, "k", &script).await;
    let request = service.client.request("/optional").script(&script);
    request.send().await.assert_problem(500, "internal");
    assert_eq!(
        (database.effects(), database.count("parents")),
        (0, 0),
        "{ending}"
    );
    assert_unharmed(&service, &database).await;
}

#[tokio::test]
async fn handler_that_commits_by_itself_is_a_500_and_records_nothing() {
    for ending in [
        "COMMIT",
        "COMMIT; BEGIN",
        "COMMIT; BEGIN; INSERT INTO parents VALUES (1)",
    ] {
        committed_by(ending).await;
    }
}

#[tokio::test]
async fn refusal_of_a_handler_that_commits_by_itself_is_a_500_and_not_recorded() {
    for ending in ["COMMIT", "COMMIT; BEGIN"] {
        let database = database();
        let service = service(&database).await;
        let script = Script {
            status: 402,
            ..Script::of([sql(ending)])
        };
        let reply = service.post("k", &script).await;
        assert_eq!((reply.status, reply.is_replay()), (500, false), "{ending}");
        assert_eq!(service.executions.get(), 1, "{ending}");
        let stays = usize::from(!Kind::REFUSES_COMMITS);
        assert_eq!(
            (database.effects(), database.records()),
            (stays, 0),
            "{ending}"
        );
        assert_unharmed(&service, &database).await;
    }
}

/// Lets a handler end its transaction in this way, and pass over the error if that is refused. What a server has
/// committed for it stays, since nobody can undo it; but no record claims that all was well.
pub(crate) async fn committed_by(ending: &str) {
    let database = database();
    let service = service(&database).await;
    let script = Script::of([Step::Try(ending.to_owned())]);
    let reply = service.post("k", &script).await;
    reply.assert_problem(500, "internal");
    let stays = usize::from(!Kind::REFUSES_COMMITS);
    assert_eq!(
        (database.effects(), database.records()),
        (stays, 0),
        "{ending}"
    );
    let request = service.client.request("/optional").script(&script);
    request.send().await.assert_problem(500, "internal");
    assert_eq!(
        (database.effects(), database.count("parents")),
        (2 * stays, 0),
        "{ending}"
    );
    assert_unharmed(&service, &database).await;
}

#[tokio::test]
async fn deferred_constraint_that_fails_at_commit_is_a_500_and_keeps_nothing() {
    let database = database();
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

#[tokio::test]
async fn transient_failure_frees_the_key_and_the_repeat_runs() {
    let database = database();
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
async fn handler_that_runs_out_of_time_is_undone_and_its_connection_closed() {
    out_of_time(Step::Sleep(60_000)).await;
}

/// Lets a handler take longer than it may.
pub(crate) async fn out_of_time(step: Step) {
    let database = database();
    let service = service(&database).await;
    let request = service.client.request("/hurried").key("k");
    let reply = request.script(&Script::of([step])).send().await;
    reply.assert_problem(503, "handler-timeout");
    assert!(reply.headers.contains_key("retry-after"));
    database.assert_clean(1).await;
    assert_eq!((database.effects(), database.records()), (0, 0));
    assert_unharmed(&service, &database).await;
}
