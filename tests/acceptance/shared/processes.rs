//! Two servers on one database, which know of each other through the database alone.

use std::{collections::HashSet, time::Duration};

use idem_tests::service::{
    Client, Reply, ServiceProcess,
    script::{Script, Step, once},
};
use reqwest::StatusCode;
use tokio::task::JoinSet;

use super::{Database, Service, database, process};

pub(crate) fn two_processes(database: &Database) -> [ServiceProcess; 2] {
    [(), ()].map(|()| process(database))
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
    let database = database();
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
    let database = database();
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
    let database = database();
    let processes = two_processes(&database);
    let servers = [&processes[0].client, &processes[1].client];
    let script = Script {
        headers: vec![("x-note".to_owned(), "n".to_owned())],
        status: 402,
        ..Script::sleeping(100)
    };
    let replies = at_once(&servers, "/waiting", "k", &script, 40).await;
    for reply in &replies {
        assert_eq!(reply.status, 402, "{}", reply.text());
        assert_eq!(reply.headers["x-note"], "n");
    }
    let bodies: HashSet<_> = replies.iter().map(|reply| &reply.body).collect();
    assert_eq!(bodies.len(), 1);
    assert_eq!((database.effects(), database.records()), (0, 1));
    database.assert_clean(8).await;
}

/// The loser's first look may come between the winner's commit and the end of its lock, or before either; what it then
/// does in vain is undone.
#[tokio::test]
async fn two_at_once_are_executed_once_and_the_loser_is_never_told_that_the_service_is_down() {
    let database = database();
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
}

#[tokio::test]
async fn waiting_request_runs_itself_when_the_other_server_is_killed() {
    let database = database();
    let [mut first, second] = two_processes(&database);
    let script = Script::of([once(database.file("slept"), Step::Sleep(60_000))]);
    let waiting = |client: &Client| client.request("/waiting").key("k").script(&script);
    tokio::spawn(waiting(&first.client).try_send());
    database.until_asleep_in_rust(1).await;
    let reply = tokio::spawn(waiting(&second.client).send());
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!reply.is_finished());
    first.kill();
    reply.await.unwrap().assert(StatusCode::CREATED, false);
    assert_eq!((database.effects(), database.records()), (1, 1));
    assert_eq!(database.begun(), 2);
    database.assert_clean(4).await;
}
