//! Crashes, clients that hang up, and stops: whatever ends early, a repeat finds everything or nothing.

use std::time::{Duration, Instant};

use idem_tests::{
    database::Database,
    raw_http::Connection,
    service::{
        Client, EFFECTS, Reply, Service, ServiceProcess, Setup,
        script::{Script, Step, sql},
    },
};
use reqwest::StatusCode;
use tokio::{
    task::{JoinSet, block_in_place},
    time::sleep,
};

const SERVICE: &str = env!("CARGO_BIN_EXE_service");

/// Sleeps in Rust, the first time only.
fn asleep_in_rust() -> Script {
    let first = "SELECT nextval('tries') = 1".to_owned();
    Script::of([Step::SleepIf(first, 60_000)])
}

/// Sleeps inside a statement, the first time only.
fn asleep_in_sql() -> Script {
    let first = "SELECT CASE WHEN nextval('tries') = 1 THEN pg_sleep(60) END";
    Script::of([sql(first)])
}

fn database_with_tries() -> Database {
    let database = EFFECTS.database();
    database.run_sql("CREATE SEQUENCE tries").unwrap();
    database
}

/// Sends the same request again, as a patient client does, until it is no longer in progress.
async fn settled(client: &Client, key: &str, script: &Script) -> Reply {
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
async fn connected(client: &Client, key: &str, script: &Script) -> Connection {
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

async fn killed_and_retried_on_another(script: &Script, asleep: impl AsyncFn(&Database)) {
    let database = database_with_tries();
    let mut first = ServiceProcess::start(SERVICE, &database.url());
    let second = ServiceProcess::start(SERVICE, &database.url());
    settled(&second.client, "warm", &Script::default()).await;
    send_in_vain(&first.client, "k", script);
    asleep(&database).await;

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
    killed_and_retried_on_another(&asleep_in_rust(), async |database| {
        database.until_asleep_in_rust(1).await;
    })
    .await;
}

#[tokio::test]
async fn request_of_a_process_killed_inside_a_statement_runs_at_once_on_another() {
    killed_and_retried_on_another(&asleep_in_sql(), async |database| {
        database.until_asleep_in_sql(1).await;
    })
    .await;
}

#[tokio::test]
async fn killed_process_leaves_nothing_to_clean_up_for_its_successor() {
    let database = database_with_tries();
    let script = asleep_in_rust();
    let mut first = ServiceProcess::start(SERVICE, &database.url());
    send_in_vain(&first.client, "k", &script);
    database.until_asleep_in_rust(1).await;
    first.kill();

    let successor = ServiceProcess::start(SERVICE, &database.url());
    let reply = settled(&successor.client, "k", &script).await;
    reply.assert(StatusCode::CREATED, false);
    assert_eq!((database.effects(), database.records()), (1, 1));
    database.assert_clean(4).await;
}

/// The classic lease problem: a holder that was only paused wakes up when another has long done its work.
#[tokio::test]
async fn paused_process_loses_the_key_in_time_and_cannot_write_a_second_effect_when_it_wakes_up() {
    let database = EFFECTS.database();
    let (first, second) = (
        ServiceProcess::start(SERVICE, &database.url()),
        ServiceProcess::start(SERVICE, &database.url()),
    );
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

/// Whoever is stopped by force has as little time as one that is killed, but its process goes on.
#[tokio::test]
async fn server_stopped_by_force_at_any_moment_leaves_effect_and_record_or_neither() {
    let database = EFFECTS.database();
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
    assert_eq!(database.run_sql(ONE_SIDED).unwrap(), "0");
}

async fn hung_up(hang_up: impl AsyncFn(Connection)) {
    let database = EFFECTS.database();
    let service = Service::start(&database.url()).await;
    let script = Script::sleeping(1_000);
    let connection = connected(&service.client, "k", &script).await;
    database.until_asleep_in_rust(1).await;
    hang_up(connection).await;

    database
        .until("SELECT count(*) FROM idem.records", "1")
        .await;
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
const ONE_SIDED: &str = "SELECT count(*) FROM (SELECT note FROM effects WHERE note <> 'note') e \
                         FULL JOIN (SELECT key FROM idem.records WHERE key <> 'warm') r ON note = key \
                         WHERE note IS NULL OR key IS NULL";

/// The work goes through many states; a reset has to be right in each.
#[tokio::test]
async fn reset_at_any_moment_leaves_effect_and_record_or_neither() {
    let database = EFFECTS.database();
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
    assert_eq!(database.run_sql(ONE_SIDED).unwrap(), "0");
    for number in 0..60 {
        let reply = service.post(&format!("k{number}"), &script(number)).await;
        assert_eq!(reply.status, 201);
    }
    assert_eq!(database.run_sql(ONE_SIDED).unwrap(), "0");
    assert_eq!((database.effects(), database.records()), (61, 61));
    assert_eq!(service.pool.status().size, service.pool.status().available);
    database.assert_clean(4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_of_a_process_waits_for_the_work_of_a_client_that_has_hung_up() {
    let database = EFFECTS.database();
    let mut service = ServiceProcess::start(SERVICE, &database.url());
    let script = Script::sleeping(1_000);
    let connection = connected(&service.client, "k", &script).await;
    database.until_asleep_in_rust(1).await;
    connection.reset().unwrap();
    block_in_place(|| service.terminate());
    assert_eq!((database.effects(), database.records()), (1, 1));

    let successor = ServiceProcess::start(SERVICE, &database.url());
    let again = settled(&successor.client, "k", &script).await;
    again.assert(StatusCode::CREATED, true);
}

#[tokio::test]
async fn draining_before_a_stop_waits_for_the_work_of_a_client_that_has_hung_up() {
    let database = EFFECTS.database();
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
    let database = EFFECTS.database();
    let mut service = ServiceProcess::start(SERVICE, &database.url());
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
    database
        .until("SELECT count(*) > 40 FROM effects", "t")
        .await;
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
async fn stop_answers_every_request_that_is_in_its_handler() {
    let database = EFFECTS.database();
    for requests in [1, 3] {
        let mut service = ServiceProcess::start(SERVICE, &database.url());
        let mut sent = JoinSet::new();
        for number in 0..requests {
            let request = service.client.request("/effects");
            let key = format!("k{requests}-{number}");
            sent.spawn(request.key(&key).script(&Script::sleeping(1_500)).send());
        }
        database.until_asleep_in_rust(requests).await;
        block_in_place(|| service.terminate());
        for reply in sent.join_all().await {
            reply.assert(StatusCode::CREATED, false);
        }
    }
    assert_eq!((database.effects(), database.records()), (4, 4));
}

/// An idle worker leaves at once, and would take every connection along that was opened on it.
#[tokio::test]
async fn stop_does_not_harm_a_request_whose_connection_another_worker_has_opened() {
    let database = EFFECTS.database();
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
