//! Handlers that do to SQLite's transaction what PostgreSQL's has no word for.

use idem_tests::service::script::{Script, Step};
use reqwest::StatusCode;

use super::shared::{
    database,
    handlers::{assert_unharmed, committed_by, service},
};

#[tokio::test]
async fn handler_that_begins_anew_in_a_way_of_sqlite_is_a_500_too() {
    for ending in [
        "COMMIT; SAVEPOINT other",
        "END; BEGIN EXCLUSIVE",
        "COMMIT; BEGIN; SAVEPOINT idem",
    ] {
        committed_by(ending).await;
    }
}

/// Unlike in PostgreSQL, a statement that fails undoes itself alone.
#[tokio::test]
async fn sql_error_that_a_handler_passes_over_does_no_harm() {
    let database = database();
    let service = service(&database).await;
    let script = Script::of([
        Step::Try("INSERT INTO missing VALUES (1)".to_owned()),
        Step::Try("INSERT INTO parents VALUES (1), (1)".to_owned()),
    ]);
    for replayed in [false, true] {
        let reply = service.post("k", &script).await;
        reply.assert(StatusCode::CREATED, replayed);
    }
    assert_eq!((database.effects(), database.count("parents")), (1, 0));
    assert_unharmed(&service, &database).await;
}

/// Where a constraint says so, SQLite undoes the whole transaction, and what comes after it would stand alone.
#[tokio::test]
async fn constraint_that_rolls_everything_back_is_no_success_and_nothing_behind_it_stays() {
    let rolled_back = "INSERT OR ROLLBACK INTO parents VALUES (1), (1)";
    for behind in [
        "SELECT 1",
        "INSERT INTO parents VALUES (2)",
        "SAVEPOINT part; INSERT INTO parents VALUES (2); RELEASE part",
        "BEGIN; INSERT INTO parents VALUES (2); COMMIT",
    ] {
        let database = database();
        let service = service(&database).await;
        let steps = [rolled_back, behind].map(|sql| Step::Try(sql.to_owned()));
        let script = Script::of(steps);
        for _ in 0..2 {
            let reply = service.post("k", &script).await;
            reply.assert_problem(500, "internal");
            let request = service.client.request("/optional").script(&script);
            request.send().await.assert_problem(500, "internal");
        }
        assert_eq!((database.effects(), database.records()), (0, 0), "{behind}");
        assert_eq!(database.count("parents"), 0, "{behind}");
        assert_unharmed(&service, &database).await;
    }
}
