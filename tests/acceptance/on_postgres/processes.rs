//! Two servers on one database that runs both of their transactions, so that the second learns at once of the first.

use std::time::Duration;

use idem_tests::service::{
    Client,
    script::{Script, sql},
};
use reqwest::StatusCode;

use super::shared::{Service, Setup, database, processes::two_processes};

#[tokio::test]
async fn second_request_is_refused_while_the_first_runs_on_another_server_and_replayed_afterwards()
{
    let database = database();
    let (one, two) = (
        Service::start(&database.url()).await,
        Service::start(&database.url()).await,
    );
    let script = Script::sleeping(1_000);
    let request = one.client.request("/effects").key("k").script(&script);
    let first = tokio::spawn(request.send());
    database.until_asleep_in_rust(1).await;
    let second = two.post("k", &script).await;
    second.assert_problem(409, "in-progress");
    let other = two.post("k", &script.clone().note("other")).await;
    other.assert_problem(409, "in-progress");

    let first = first.await.unwrap();
    first.assert(StatusCode::CREATED, false);
    let second = two.post("k", &script).await;
    assert_eq!(second.assert(StatusCode::CREATED, true).body, first.body);
    let other = two.post("k", &script.note("other")).await;
    other.assert_problem(422, "key-reused");
    assert_eq!((one.executions.get(), two.executions.get()), (1, 0));
    assert_eq!((database.effects(), database.records()), (1, 1));
}

/// There is no lease that could run out: every time limit of the framework is shorter than this handler.
#[tokio::test]
async fn handler_that_outlives_every_time_limit_of_the_database_still_runs_once() {
    let database = database();
    let setup = || Setup {
        pool_wait: Duration::from_millis(500),
        configure: |builder| builder.database_timeout(Duration::from_millis(500)),
        ..Setup::default()
    };
    let (one, two) = (
        Service::with(&database.url(), setup()).await,
        Service::with(&database.url(), setup()).await,
    );
    let script = Script::of([sql("SELECT pg_sleep(2)")]);
    let request = one.client.request("/effects").key("k").script(&script);
    let first = tokio::spawn(request.send());
    database.until_asleep_in_sql(1).await;
    let mut refused = 0;
    while !first.is_finished() {
        let second = two.post("k", &script).await;
        match second.status {
            409 => refused += 1,
            _ => drop(second.assert(StatusCode::CREATED, true)),
        }
    }
    let first = first.await.unwrap();
    first.assert(StatusCode::CREATED, false);
    assert!(refused > 0);
    let again = two.post("k", &script).await;
    assert_eq!(again.assert(StatusCode::CREATED, true).body, first.body);
    assert_eq!((one.executions.get(), two.executions.get()), (1, 0));
    assert_eq!((database.effects(), database.records()), (1, 1));
}

#[tokio::test]
async fn waiting_request_runs_itself_when_the_other_server_is_killed() {
    let database = database();
    let [mut first, second] = two_processes(&database);
    database.run_sql("CREATE SEQUENCE tries").unwrap();
    let script = Script::of([sql(
        "SELECT CASE WHEN nextval('tries') = 1 THEN pg_sleep(60) END",
    )]);
    let waiting = |client: &Client| client.request("/waiting").key("k").script(&script);
    tokio::spawn(waiting(&first.client).try_send());
    database.until_asleep_in_sql(1).await;
    let reply = tokio::spawn(waiting(&second.client).send());
    // It claims again and again.
    let tries = "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() \
                 AND pid <> pg_backend_pid() AND wait_event IS DISTINCT FROM 'PgSleep' AND backend_type = 'client backend'";
    database.until(tries, "t").await;
    first.kill();
    reply.await.unwrap().assert(StatusCode::CREATED, false);
    assert_eq!((database.effects(), database.records()), (1, 1));
    assert_eq!(database.begun(), 2);
    database.assert_clean(4).await;
}
