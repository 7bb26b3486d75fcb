//! Crashes, clients that hang up, and stops: whatever ends early, a repeat finds everything or nothing.

use std::time::{Duration, Instant};

use idem_tests::{
    database::Engine as _,
    raw_http::Connection,
    service::{
        Client, Reply,
        script::{Script, Step, once},
    },
};
use reqwest::StatusCode;
use tokio::{
    task::{JoinSet, block_in_place},
    time::sleep,
};

use super::{Database, Engine, Service, Setup, assert_whole, database, process};

/// Sleeps in Rust, the first time only.
fn asleep_in_rust(database: &Database) -> Script {
    Script::of([once(database.file("slept"), Step::Sleep(60_000))])
}

/// Sends the same request again, as a patient client does, until it is no longer in progress.
pub(crate) async fn settled(client: &Client, key: &str, script: &Script) -> Reply {
    loop {
        let reply = client
            .request("/effects")
            .key(key)
            .script(script)
            .send()
            .await;
        if reply.status != 409 {
            return reply;
        }
        reply.assert_problem(409, "in-progress");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Sends a request whose answer nobody waits for.
fn send_in_vain(client: &Client, key: &str, script: &Script) {
    let request = client.request("/effects").key(key).script(script);
    tokio::spawn(request.try_send());
}

/// Sends a request over a socket that the test can hang up.
pub(crate) async fn connected(client: &Client, key: &str, script: &Script) -> Connection {
    let body = serde_json::to_string(script).unwrap();
    let mut connection = Connection::open(client.address()).await.unwrap();
    let head = format!(
        "POST /effects HTTP/1.1\r\nHost: a\r\nX-Account: a\r\nIdempotency-Key: {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    connection.send(head + &body).await.unwrap();
    connection
}

/// Kills a process while its handler is where the script has it sleep, and repeats the request on another.
pub(crate) async fn killed_and_retried_on_another(
    database: &Database,
    script: &Script,
    asleep: impl AsyncFn(),
) {
    let mut first = process(database);
    let second = process(database);
    settled(&second.client, "warm", &Script::default()).await;
    send_in_vain(&first.client, "k", script);
    asleep().await;

    first.kill();
    let killed = Instant::now();
    let reply = settled(&second.client, "k", script).await;
    let waited = killed.elapsed();
    reply.assert(StatusCode::CREATED, false);
    assert!(waited < Duration::from_secs(2), "{waited:?}");
    assert_eq!((database.effects(), database.records()), (2, 2));
    assert_eq!(database.begun(), 3);
    let again = settled(&second.client, "k", script).await;
    assert_eq!(again.assert(StatusCode::CREATED, true).body, reply.body);
    database.assert_clean(4).await;
}

#[tokio::test]
async fn request_of_a_process_killed_asleep_in_rust_runs_at_once_on_another() {
    let database = database();
    let script = asleep_in_rust(&database);
    killed_and_retried_on_another(&database, &script, async || {
        database.until_asleep_in_rust(1).await;
    })
    .await;
}

#[tokio::test]
async fn killed_process_leaves_nothing_to_clean_up_for_its_successor() {
    let database = database();
    let script = asleep_in_rust(&database);
    let mut first = process(&database);
    send_in_vain(&first.client, "k", &script);
    database.until_asleep_in_rust(1).await;
    first.kill();

    let successor = process(&database);
    let reply = settled(&successor.client, "k", &script).await;
    reply.assert(StatusCode::CREATED, false);
    assert_eq!((database.effects(), database.records()), (1, 1));
    database.assert_clean(4).await;
}

/// Whoever is stopped by force has as little time as one that is killed, but its process goes on.
#[tokio::test]
async fn server_stopped_by_force_at_any_moment_leaves_effect_and_record_or_neither() {
    let database = database();
    for number in 0..12_u64 {
        let service = Service::start(&database.url()).await;
        for client in 0..3 {
            let key = format!("k{number}-{client}");
            send_in_vain(&service.client, &key, &Script::sleeping(5).note(&key));
        }
        sleep(Duration::from_millis(number * 4)).await;
        drop(service);
    }
    database.assert_clean(0).await;
    assert_eq!(one_sided(&database), "0");
}

async fn hung_up(hang_up: impl AsyncFn(Connection)) {
    let database = database();
    let service = Service::start(&database.url()).await;
    let script = Script::sleeping(1_000);
    let connection = connected(&service.client, "k", &script).await;
    database.until_asleep_in_rust(1).await;
    hang_up(connection).await;

    database.until_records(1).await;
    let again = service.post("k", &script).await;
    again.assert(StatusCode::CREATED, true);
    assert_eq!((service.executions.get(), database.effects()), (1, 1));
    database.assert_clean(4).await;
}

#[tokio::test]
async fn work_of_a_client_that_resets_its_connection_is_finished_and_replayed() {
    hung_up(async |connection| connection.reset().unwrap()).await;
}

#[tokio::test]
async fn work_of_a_client_that_closes_its_connection_is_finished_and_replayed() {
    hung_up(async |connection| drop(connection)).await;
}

#[tokio::test]
async fn client_that_closes_only_its_sending_side_gets_its_answer() {
    hung_up(async |mut connection| {
        connection.fin().await.unwrap();
        assert_eq!(connection.receive().await.unwrap().status, 201);
    })
    .await;
}

/// Counts effects without a record and records without an effect, where the note is the key.
pub(crate) fn one_sided(database: &Database) -> String {
    let query = format!(
        "SELECT count(*) FROM (SELECT note FROM effects WHERE note <> 'note') e \
         FULL JOIN (SELECT key FROM {} WHERE key NOT LIKE 'warm%') r ON note = key \
         WHERE note IS NULL OR key IS NULL",
        Engine::RECORDS
    );
    database.run_sql(&query).unwrap()
}

/// The work goes through many states; a reset has to be right in each.
#[tokio::test]
async fn reset_at_any_moment_leaves_effect_and_record_or_neither() {
    let database = database();
    let service = Service::start(&database.url()).await;
    service.post("warm", &Script::default()).await;
    let script = |number| Script::sleeping(5).note(&format!("k{number}"));
    for number in 0..60_u64 {
        let key = format!("k{number}");
        let connection = connected(&service.client, &key, &script(number)).await;
        sleep(Duration::from_micros(number * 500)).await;
        connection.reset().unwrap();
    }
    database.assert_clean(4).await;
    assert_eq!(one_sided(&database), "0");
    for number in 0..60 {
        let reply = service.post(&format!("k{number}"), &script(number)).await;
        assert_eq!(reply.status, 201);
    }
    assert_eq!(one_sided(&database), "0");
    assert_eq!((database.effects(), database.records()), (61, 61));
    assert_whole(&service.pool).await;
    database.assert_clean(4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_of_a_process_waits_for_the_work_of_a_client_that_has_hung_up() {
    let database = database();
    let mut service = process(&database);
    let script = Script::sleeping(1_000);
    let connection = connected(&service.client, "k", &script).await;
    database.until_asleep_in_rust(1).await;
    connection.reset().unwrap();
    block_in_place(|| service.terminate());
    assert_eq!((database.effects(), database.records()), (1, 1));

    let successor = process(&database);
    let again = settled(&successor.client, "k", &script).await;
    again.assert(StatusCode::CREATED, true);
}

#[tokio::test]
async fn draining_before_a_stop_waits_for_the_work_of_a_client_that_has_hung_up() {
    let database = database();
    let service = Service::start(&database.url()).await;
    let script = Script::sleeping(1_000);
    let connection = connected(&service.client, "k", &script).await;
    database.until_asleep_in_rust(1).await;
    connection.reset().unwrap();
    service.idempotency.drain().await;
    service.handle.stop(true).await;
    assert_eq!((database.effects(), database.records()), (1, 1));
    database.assert_clean(4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_under_load_loses_no_request_whose_handler_has_begun() {
    let database = database();
    let mut service = process(&database);
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let client = service.client.clone();
        clients.spawn(async move {
            let mut answered = 0;
            for round in 0.. {
                let key = format!("{number}-{round}");
                let request = client.request("/effects").key(&key);
                match request.script(&Script::sleeping(30)).try_send().await {
                    Ok(reply) => {
                        reply.assert(StatusCode::CREATED, false);
                        answered += 1;
                    }
                    // Nobody listens any more.
                    Err(_) => break,
                }
            }
            answered
        });
    }
    database.until_effects(41).await;
    block_in_place(|| service.terminate());
    let answered: usize = clients.join_all().await.into_iter().sum();
    assert_eq!(database.begun(), answered);
    assert_eq!(
        (database.effects(), database.records()),
        (answered, answered)
    );
    database.assert_clean(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_answers_the_request_that_is_in_its_handler() {
    stopped_while_asleep(1).await;
}

/// Stops a service while so many handlers run, each of which is to be answered.
pub(crate) async fn stopped_while_asleep(requests: usize) {
    let database = database();
    let mut service = process(&database);
    let mut sent = JoinSet::new();
    for number in 0..requests {
        let request = service.client.request("/effects");
        let key = format!("k{number}");
        sent.spawn(request.key(&key).script(&Script::sleeping(1_500)).send());
    }
    database.until_asleep_in_rust(requests).await;
    block_in_place(|| service.terminate());
    for reply in sent.join_all().await {
        reply.assert(StatusCode::CREATED, false);
    }
    assert_eq!(
        (database.effects(), database.records()),
        (requests, requests)
    );
}

/// An idle worker leaves at once, and would take every connection along that was opened on it.
#[tokio::test]
async fn stop_does_not_harm_a_request_whose_connection_another_worker_has_opened() {
    let database = database();
    // Workers are served in turn; whichever opened the one connection, once the other one uses it.
    for earlier in 1..=2 {
        let setup = Setup {
            pool: 1,
            ..Setup::default()
        };
        let service = Service::with(&database.url(), setup).await;
        for number in 0..earlier {
            let key = format!("e{earlier}-{number}");
            service.post(&key, &Script::default()).await;
        }
        let key = format!("k{earlier}");
        let request = service.client.request("/effects").key(&key);
        let sent = tokio::spawn(request.script(&Script::sleeping(1_500)).send());
        database.until_asleep_in_rust(1).await;
        service.handle.stop(true).await;
        sent.await.unwrap().assert(StatusCode::CREATED, false);
        assert_eq!(service.executions.get(), earlier + 1);
    }
    assert_eq!((database.effects(), database.records()), (5, 5));
}
