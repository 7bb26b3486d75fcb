//! Two servers on one database, which know of each other through the database alone.

use std::collections::HashSet;
use std::time::Duration;

use idem_tests::{
    database::Database,
    service::{
        Client, EFFECTS, Reply, Service, ServiceProcess, Setup,
        script::{Script, sql},
    },
};
use reqwest::StatusCode;
use tokio::task::JoinSet;

const SERVICE: &str = env!("CARGO_BIN_EXE_service");

fn two_processes(database: &Database) -> [ServiceProcess; 2] {
    [(), ()].map(|()| ServiceProcess::start(SERVICE, &database.url()))
}

/// Sends the same request many times at once, to the servers in turn.
async fn at_once(
    servers: &[&Client],
    path: &str,
    key: &str,
    script: &Script,
    times: usize,
) -> Vec<Reply> {
    let mut sent = JoinSet::new();
    for client in servers.iter().cycle().take(times) {
        sent.spawn(client.request(path).key(key).script(script).send());
    }
    sent.join_all().await
}

/// Checks that all successes are one answer, at most one of them not a replay, and returns its body.
fn one_answer(replies: &[Reply]) -> bytes::Bytes {
    let successes = || replies.iter().filter(|reply| reply.status == 201);
    let bodies: HashSet<_> = successes().map(|reply| reply.body.clone()).collect();
    let executed = successes().filter(|reply| !reply.is_replay()).count();
    assert_eq!((bodies.len(), executed), (1, 1));
    bodies.into_iter().next().unwrap()
}

async fn assert_replayed_everywhere(
    servers: &[&Client],
    path: &str,
    body: &bytes::Bytes,
    script: &Script,
) {
    for client in servers {
        for _ in 0..3 {
            let again = client.request(path).key("k").script(script).send().await;
            assert_eq!(again.assert(StatusCode::CREATED, true).body, body);
        }
    }
}

#[tokio::test]
async fn two_hundred_equal_requests_have_one_effect_and_get_one_answer_or_are_told_to_come_again() {
    let database = EFFECTS.database();
    let processes = two_processes(&database);
    let servers = [&processes[0].client, &processes[1].client];
    let script = Script::sleeping(200);
    let replies = at_once(&servers, "/effects", "k", &script, 200).await;
    for reply in replies.iter().filter(|reply| reply.status != 201) {
        reply.assert_problem(409, "in-progress");
        assert!(reply.headers.contains_key("retry-after"));
    }
    let body = one_answer(&replies);
    assert_replayed_everywhere(&servers, "/effects", &body, &script).await;
    assert_eq!((database.effects(), database.records()), (1, 1));
    assert_eq!(database.begun(), 1);
    database.assert_clean(8).await;
}

#[tokio::test]
async fn two_hundred_equal_requests_that_wait_all_get_the_one_answer() {
    let database = EFFECTS.database();
    let processes = two_processes(&database);
    let servers = [&processes[0].client, &processes[1].client];
    let script = Script::sleeping(500);
    let replies = at_once(&servers, "/waiting", "k", &script, 200).await;
    assert!(replies.iter().all(|reply| reply.status == 201));
    let body = one_answer(&replies);
    assert_replayed_everywhere(&servers, "/waiting", &body, &script).await;
    assert_eq!((database.effects(), database.records()), (1, 1));
    assert_eq!(database.begun(), 1);
    database.assert_clean(8).await;
}

#[tokio::test]
async fn refusal_is_one_answer_too_however_many_ask_for_it_at_once() {
    let database = EFFECTS.database();
    let processes = two_processes(&database);
    let servers = [&processes[0].client, &processes[1].client];
    database
        .run_sql("INSERT INTO money VALUES ('a', 0)")
        .unwrap();
    let script = Script {
        headers: vec![("x-note".to_owned(), "n".to_owned())],
        status: 402,
        ..Script::sleeping(100)
    };
    let replies = at_once(&servers, "/waiting", "k", &script, 40).await;
    let bodies: HashSet<_> = replies.iter().map(|reply| &reply.body).collect();
    assert_eq!(bodies.len(), 1);
    for reply in &replies {
        assert_eq!(
            (reply.status, &reply.headers["x-note"]),
            (402, &"n".parse().unwrap())
        );
    }
    assert_eq!((database.effects(), database.records()), (0, 1));
    database.assert_clean(8).await;
}

#[tokio::test]
async fn second_request_is_refused_while_the_first_runs_on_another_server_and_replayed_afterwards()
{
    let database = EFFECTS.database();
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

/// The loser's first look may come between the winner's commit and the end of its lock, or before either.
#[tokio::test]
async fn two_at_once_are_executed_once_and_the_loser_is_never_told_that_the_service_is_down() {
    let database = EFFECTS.database();
    let (one, two) = (
        Service::start(&database.url()).await,
        Service::start(&database.url()).await,
    );
    let script = Script::default();
    for number in 0..60 {
        let key = format!("k{number}");
        let replies = at_once(&[&one.client, &two.client], "/effects", &key, &script, 2).await;
        assert!(
            replies
                .iter()
                .all(|reply| matches!(reply.status, 201 | 409)),
            "{replies:?}"
        );
        one_answer(&replies);
    }
    assert_eq!((database.effects(), database.records()), (60, 60));
    assert_eq!(one.executions.get() + two.executions.get(), 60);
}

/// There is no lease that could run out: every time limit of the framework is shorter than this handler.
#[tokio::test]
async fn handler_that_outlives_every_time_limit_of_the_database_still_runs_once() {
    let database = EFFECTS.database();
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
    let database = EFFECTS.database();
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
