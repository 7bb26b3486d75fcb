//! The connection breaks around the COMMIT: whatever became of it, the answer is the truth and the effect is one.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use idem_runtime::Builder;
use idem_tests::{
    relay::Relay,
    service::{
        Reply, ServiceProcess,
        script::{Script, sql},
    },
};
use reqwest::StatusCode;
use tokio::task::JoinSet;

use super::{
    Kind, Pool,
    connections::{effects_and_records, own_cluster},
    shared::{
        Database, PROGRAM, Service, Setup, assert_whole, connections::pool_of, database, process,
    },
};

fn relayed_limits(builder: Builder<Pool>) -> Builder<Pool> {
    builder.database_timeout(Duration::from_millis(500))
}

/// A service that reaches its database through a relay, with a pool of two.
struct Relayed {
    database: Database,
    relay: Relay,
    service: Service,
}

impl Relayed {
    async fn start() -> Self {
        Self::with(|_| {}, relayed_limits).await
    }

    async fn with(
        prepare: impl FnOnce(&Database),
        configure: fn(Builder<Pool>) -> Builder<Pool>,
    ) -> Self {
        let database = database();
        prepare(&database);
        let relay = Relay::start(database.engine().port(), Duration::ZERO);
        let setup = Setup {
            pool: 2,
            pool_wait: Duration::from_millis(500),
            configure,
            ..Setup::default()
        };
        let service = Service::with(&relay.url(database.engine().name()), setup).await;
        Self {
            database,
            relay,
            service,
        }
    }

    async fn post(&self, script: &Script) -> Reply {
        self.service.post("k", script).await
    }

    /// Checks that the repeat is a replay of this answer and that there is one effect, or for a refusal none.
    async fn assert_settled(&self, script: &Script, reply: &Reply, effects: usize) {
        let again = self.post(script).await;
        again.assert(StatusCode::from_u16(reply.status).unwrap(), true);
        assert_eq!(again.body, reply.body);
        assert_eq!(
            (self.database.effects(), self.database.records()),
            (effects, 1)
        );
        self.database.assert_clean(2).await;
    }
}

#[tokio::test]
async fn commit_that_never_arrived_is_found_out_and_the_handler_runs_again() {
    let relayed = Relayed::start().await;
    let script = Script::default();
    relayed.relay.cut_before_commit();
    let reply = relayed.post(&script).await;
    reply.assert(StatusCode::CREATED, false);
    assert_eq!(relayed.relay.cuts(), 1);
    assert_eq!(relayed.service.executions.get(), 2);
    relayed.assert_settled(&script, &reply, 1).await;
}

#[tokio::test]
async fn commit_whose_answer_was_lost_is_found_out_and_answered_from_the_record() {
    let relayed = Relayed::start().await;
    let script = Script::default();
    relayed.relay.cut_after_commit();
    let reply = relayed.post(&script).await;
    assert_eq!(reply.status, 201);
    assert_eq!(relayed.relay.cuts(), 1);
    assert_eq!(relayed.service.executions.get(), 1);
    relayed.assert_settled(&script, &reply, 1).await;
}

#[tokio::test]
async fn refusal_whose_commit_never_arrived_is_stored_all_the_same() {
    let relayed = Relayed::start().await;
    let script = Script::answering(402);
    relayed.relay.cut_before_commit();
    let reply = relayed.post(&script).await;
    assert_eq!((reply.status, relayed.relay.cuts()), (402, 1));
    relayed.assert_settled(&script, &reply, 0).await;
}

#[tokio::test]
async fn refusal_whose_commit_was_lost_is_answered_from_the_record() {
    let relayed = Relayed::start().await;
    let script = Script::answering(402);
    relayed.relay.cut_after_commit();
    let reply = relayed.post(&script).await;
    assert_eq!((reply.status, relayed.relay.cuts()), (402, 1));
    assert_eq!(relayed.service.executions.get(), 1);
    relayed.assert_settled(&script, &reply, 0).await;
}

/// Without a record nobody can find out: the client is told that it may have happened.
#[tokio::test]
async fn lost_commit_of_a_request_without_key_is_told_to_be_unknown() {
    let relayed = Relayed::start().await;
    relayed.relay.cut_after_commit();
    let request = relayed.service.client.request("/optional");
    let reply = request.script(&Script::default()).send().await;
    reply.assert_problem(500, "outcome-unknown");
    assert_eq!(
        (relayed.service.executions.get(), relayed.database.effects()),
        (1, 1)
    );
    relayed.database.assert_clean(2).await;
}

/// Longer than any bound of the service that is under test here, and shorter than those it must not fall back to.
const BOUND: Duration = Duration::from_secs(9);

#[tokio::test]
async fn claim_that_is_swallowed_is_a_503_in_time_and_a_later_repeat_runs() {
    let relayed = Relayed::start().await;
    relayed.service.post("warm", &Script::default()).await;
    relayed.relay.black_hole(true);
    // First over a connection that is there, then over one that cannot be made.
    for _ in 0..2 {
        let start = Instant::now();
        let reply = relayed.post(&Script::default()).await;
        reply.assert_problem(503, "store-unavailable");
        assert!(reply.headers.contains_key("retry-after"));
        assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
    }
    relayed.relay.black_hole(false);
    let reply = relayed.post(&Script::default()).await;
    reply.assert(StatusCode::CREATED, false);
    assert_eq!(
        (relayed.database.effects(), relayed.database.records()),
        (2, 2)
    );
    assert_eq!(relayed.service.executions.get(), 2);
    relayed.database.assert_clean(2).await;
}

#[tokio::test]
async fn commit_that_is_swallowed_is_a_503_in_time_and_a_later_repeat_runs() {
    let relayed = Relayed::start().await;
    let script = Script::sleeping(1_000);
    let request = relayed.service.client.request("/effects").key("k");
    let start = Instant::now();
    let sent = tokio::spawn(request.script(&script).send());
    relayed.database.until_asleep_in_rust(1).await;
    relayed.relay.black_hole(true);
    let reply = sent.await.unwrap();
    reply.assert_problem(503, "store-unavailable");
    assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
    relayed.relay.black_hole(false);
    let reply = relayed.post(&script).await;
    reply.assert(StatusCode::CREATED, false);
    assert_eq!(relayed.service.executions.get(), 2);
    relayed.assert_settled(&script, &reply, 1).await;
}

/// Lets every COMMIT take a second.
fn slow_to_commit(database: &Database) {
    commit_takes(database, 1);
}

fn commit_takes(database: &Database, seconds: u32) {
    let slow = format!(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END'; \
         CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION dawdle()"
    );
    database.run_sql(&slow).unwrap();
}

#[tokio::test]
async fn process_killed_after_its_commit_has_done_the_work_and_the_repeat_is_a_replay() {
    let database = database();
    let relay = Relay::start(database.engine().port(), Duration::ZERO);
    let url = relay.url(database.engine().name());
    let mut first = ServiceProcess::with::<Kind>(PROGRAM, &database, &url, "off", Stdio::null());
    slow_to_commit(&database);
    let script = Script::default();
    let request = first.client.request("/effects").key("k").script(&script);
    let sent = tokio::spawn(request.try_send());
    database.until_asleep_in_sql(1).await;
    // The answer to COMMIT is on its way for longer than the process lives.
    relay.set_latency(Duration::from_secs(60));
    database.until_effects(1).await;
    first.kill();
    assert!(sent.await.unwrap().is_err());

    let second = process(&database);
    let again = second
        .client
        .request("/effects")
        .key("k")
        .script(&script)
        .send()
        .await;
    again.assert(StatusCode::CREATED, true);
    assert_eq!(
        (database.effects(), database.records(), database.begun()),
        (1, 1, 1)
    );
}

#[tokio::test]
async fn commit_whose_answer_is_swallowed_is_a_503_in_time_and_a_later_repeat_is_a_replay() {
    let relayed = Relayed::with(slow_to_commit, relayed_limits).await;
    let script = Script::default();
    let request = relayed.service.client.request("/effects").key("k");
    let start = Instant::now();
    let sent = tokio::spawn(request.script(&script).send());
    relayed.database.until_asleep_in_sql(1).await;
    relayed.relay.black_hole(true);
    let reply = sent.await.unwrap();
    reply.assert_problem(503, "store-unavailable");
    assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
    relayed.relay.black_hole(false);
    relayed
        .database
        .run_sql("DROP FUNCTION dawdle() CASCADE")
        .unwrap();
    let reply = relayed.post(&script).await;
    reply.assert(StatusCode::CREATED, true);
    assert_eq!(relayed.service.executions.get(), 1);
    relayed.assert_settled(&script, &reply, 1).await;
}

/// Its place in the pool is free then, and the server notices that nobody waits for it any more.
#[tokio::test]
async fn commit_without_an_answer_gives_its_connection_up_after_the_fence() {
    let relayed = Relayed::with(|database| commit_takes(database, 60), relayed_limits).await;
    let start = Instant::now();
    let script = Script::default();
    // Its handler may take 1 s, and each flight half a second.
    let hurried = |key: &str| {
        let request = relayed.service.client.request("/hurried").key(key);
        request.script(&script).send()
    };
    let (one, two) = tokio::join!(hurried("one"), hurried("two"));
    one.assert_problem(503, "store-unavailable");
    two.assert_problem(503, "store-unavailable");
    relayed.database.until_asleep_in_sql(0).await;
    let ended = start.elapsed();
    assert!(ended > Duration::from_secs(2) && ended < BOUND, "{ended:?}");
    relayed
        .database
        .run_sql("DROP FUNCTION dawdle() CASCADE")
        .unwrap();
    for key in ["one", "two"] {
        hurried(key).await.assert(StatusCode::CREATED, false);
    }
    assert_whole(&relayed.service.pool).await;
    relayed.database.assert_clean(2).await;
}

/// Otherwise each request would leave a session behind that waits for the standby, until the server takes no more.
#[tokio::test]
async fn commits_that_wait_for_a_standby_keep_their_connections_and_no_more_are_opened() {
    let (cluster, url) = own_cluster();
    let setup = Setup {
        configure: |builder| builder.database_timeout(Duration::from_millis(500)),
        ..pool_of(2)
    };
    let service = Service::with(&url, setup).await;
    service.idempotency.migrate().await.unwrap();
    let run = |statement| cluster.run_sql("shop", statement).unwrap();
    run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    run("SELECT pg_reload_conf()");
    let mut sent = JoinSet::new();
    for number in 0..12 {
        let request = service.client.request("/effects");
        let request = request.key(&format!("k{number}"));
        sent.spawn(request.script(&Script::default()).send());
    }
    for reply in sent.join_all().await {
        reply.assert_problem(503, "store-unavailable");
    }
    let sessions = "SELECT count(*), count(*) FILTER (WHERE wait_event = 'SyncRep') FROM pg_stat_activity \
                    WHERE datname = 'shop' AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
    assert_eq!(run(sessions), "2|2");

    run("ALTER SYSTEM RESET synchronous_standby_names");
    run("SELECT pg_reload_conf()");
    assert_whole(&service.pool).await;
    for number in 0..12 {
        let reply = service
            .post(&format!("k{number}"), &Script::default())
            .await;
        assert_eq!(reply.status, 201);
    }
    assert_eq!(effects_and_records(&cluster), "12|12");
    assert_eq!(service.executions.get(), 12);
    // They went back, and were not opened anew.
    assert_eq!(run(sessions), "2|0");
}

/// The server's last word on such a session is an error, and yet no proof that it rolled back.
#[tokio::test]
async fn session_that_is_ended_inside_its_commit_is_in_doubt_and_the_handler_runs_again() {
    let database = database();
    slow_to_commit(&database);
    let service = Service::start(&database.url()).await;
    let request = service.client.request("/effects").key("k");
    let sent = tokio::spawn(request.script(&Script::default()).send());
    database.until_asleep_in_sql(1).await;
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE datname = current_database() AND wait_event = 'PgSleep'";
    database.run_sql(end).unwrap();
    sent.await.unwrap().assert(StatusCode::CREATED, false);
    assert_eq!(service.executions.get(), 2);
    assert_eq!((database.effects(), database.records()), (1, 1));
    database.assert_clean(4).await;
}

#[tokio::test]
async fn refused_connections_are_a_503_and_the_service_recovers_by_itself() {
    let relayed = Relayed::start().await;
    relayed.service.post("warm", &Script::default()).await;
    relayed.relay.refuse(true);
    for _ in 0..2 {
        let reply = relayed.post(&Script::default()).await;
        reply.assert_problem(503, "store-unavailable");
        assert!(reply.headers.contains_key("retry-after"));
    }
    relayed.relay.refuse(false);
    let reply = relayed.post(&Script::default()).await;
    reply.assert(StatusCode::CREATED, false);
    assert_eq!(relayed.service.executions.get(), 2);
    assert_eq!(relayed.database.effects(), 2);
}

#[tokio::test]
async fn connection_lost_inside_the_handler_is_undone_and_a_repeat_runs() {
    let relayed = Relayed::start().await;
    let script = Script::sleeping(1_000);
    let request = relayed.service.client.request("/effects").key("k");
    let sent = tokio::spawn(request.script(&script).send());
    relayed.database.until_asleep_in_rust(1).await;
    relayed.relay.refuse(true);
    relayed.database.until_asleep_in_rust(0).await;
    relayed.relay.refuse(false);
    // Nothing of the handler failed, and its COMMIT did: it runs again.
    let reply = sent.await.unwrap();
    reply.assert(StatusCode::CREATED, false);
    assert_eq!(relayed.service.executions.get(), 2);
    relayed.assert_settled(&script, &reply, 1).await;

    // A statement of the handler failed: that is its own answer.
    let asleep = Script::of([sql("SELECT pg_sleep(60)")]).note("asleep");
    let request = relayed.service.client.request("/effects").key("other");
    let sent = tokio::spawn(request.script(&asleep).send());
    relayed.database.until_asleep_in_sql(1).await;
    relayed.relay.refuse(true);
    assert_eq!(sent.await.unwrap().status, 500);
    relayed.relay.refuse(false);
    assert_eq!(
        (relayed.database.effects(), relayed.database.records()),
        (1, 1)
    );
    relayed.database.assert_clean(2).await;
}
