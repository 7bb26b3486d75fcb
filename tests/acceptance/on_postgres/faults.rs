//! Crashes inside a statement, and processes that only pause: the server notices, and lets the key go.

use idem_tests::service::{
    Client,
    script::{Script, once, sql},
};
use reqwest::StatusCode;

use super::shared::{
    database,
    faults::{killed_and_retried_on_another, stopped_while_asleep},
    process,
};

#[tokio::test]
async fn request_of_a_process_killed_inside_a_statement_runs_at_once_on_another() {
    let database = database();
    let sleep = sql("SELECT pg_sleep(60)");
    let script = Script::of([once(database.file("slept"), sleep)]);
    killed_and_retried_on_another(&database, &script, async || {
        database.until_asleep_in_sql(1).await;
    })
    .await;
}

/// The classic lease problem: a holder that was only paused wakes up when another has long done its work.
#[tokio::test]
async fn paused_process_loses_the_key_in_time_and_cannot_write_a_second_effect_when_it_wakes_up() {
    let database = database();
    let (first, second) = (process(&database), process(&database));
    let script = Script::sleeping(1_000);
    let limited = |client: &Client| client.request("/limited").key("k").script(&script);
    let sent = tokio::spawn(limited(&first.client).try_send());
    database.until_asleep_in_rust(1).await;
    first.signal("STOP");
    limited(&second.client)
        .send()
        .await
        .assert_problem(409, "in-progress");

    // The handler's 2 s and two flights of 5 s.
    database.until_asleep_in_rust(0).await;
    let reply = limited(&second.client).send().await;
    reply.assert(StatusCode::CREATED, false);
    first.signal("CONT");
    let late = sent.await.unwrap().unwrap();
    assert!(matches!(late.status, 201 | 503), "{late:?}");
    if late.status == 201 {
        assert_eq!(late.body, reply.body);
    }
    assert_eq!((database.effects(), database.records()), (1, 1));
    let again = limited(&first.client).send().await;
    assert_eq!(again.assert(StatusCode::CREATED, true).body, reply.body);
    database.assert_clean(8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_answers_all_requests_that_are_in_their_handlers() {
    stopped_while_asleep(3).await;
}
