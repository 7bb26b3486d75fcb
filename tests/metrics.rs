//! What is counted and measured: each request once, in words of a small set, and nothing of what clients have chosen.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test whose database cannot be changed, or that misses a metric, has failed"
)]

use std::{
    collections::BTreeMap,
    sync::{LazyLock, Mutex, PoisonError},
    time::Duration,
};

use idem_tests::{
    database::{Engine, until},
    kinds::{Deadpool, Kind, Sqlite, SqlxPostgres},
    relay::Relay,
    service::{
        Service, Setup,
        script::{Script, Step},
    },
};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::sync::Mutex as Turn;

/// There is one recorder a process, so these tests run one after the other.
static ALONE: Turn<()> = Turn::const_new(());

static RECORDER: LazyLock<Snapshotter> = LazyLock::new(|| {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();
    snapshotter
});

/// What was recorded since it was last asked for: `name{label=value}`, and how much or how often.
fn recorded() -> BTreeMap<String, u64> {
    let snapshot = RECORDER.snapshot().into_vec();
    let values = snapshot.into_iter().map(|(key, _, _, value)| {
        let labels = key.key().labels();
        let labels: Vec<_> = labels
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        let value = match value {
            DebugValue::Counter(count) => count,
            DebugValue::Gauge(_) => 0,
            DebugValue::Histogram(values) => values.len() as u64,
        };
        (
            format!("{}{{{}}}", key.key().name(), labels.join(",")),
            value,
        )
    });
    values.filter(|(_, value)| *value > 0).collect()
}

/// The requests among them, by outcome, all of one operation.
fn requests(recorded: &BTreeMap<String, u64>, operation: &str) -> BTreeMap<String, u64> {
    let start = format!("idem_requests_total{{operation={operation},outcome=");
    let of_operation = recorded.iter().filter_map(|(name, count)| {
        let outcome = name.strip_prefix(&start)?.strip_suffix('}')?;
        Some((outcome.to_owned(), *count))
    });
    of_operation.collect()
}

async fn counts_each_request_once<K: Kind>() {
    let database = K::template().database();
    let setup = Setup::<K> {
        configure: |builder| builder.cache(1 << 20),
        ..Setup::default()
    };
    let service = Service::with(&database.url(), setup).await;
    let other = Service::<K>::start(&database.url()).await;
    recorded();
    let changed = Script::default().note("changed");
    let refused = Script::answering(402);
    for (service, key, script) in [
        (&service, "marker-key", &Script::default()),
        (&service, "marker-key", &Script::default()),
        (&other, "marker-key", &Script::default()),
        (&service, "marker-key", &changed),
        (&service, "refused", &refused),
        (&service, "refused", &refused),
        (&service, "released", &Script::answering(503)),
        (&service, "panic", &Script::of([Step::Panic])),
        (&service, "marker key", &Script::default()),
    ] {
        service.post(key, script).await;
    }
    let revoked = service.client.request("/effects").account("revoked");
    revoked.key("k").send().await;
    let first = recorded();
    let expected = [
        ("executed", 1),
        ("internal", 1),
        ("key-invalid", 1),
        ("key-reused", 1),
        ("refused", 1),
        ("rejected", 1),
        ("released", 1),
        ("remembered", 1),
        ("replayed", 2),
    ];
    let expected: BTreeMap<_, _> = expected
        .map(|(name, count)| (name.to_owned(), count))
        .into();
    assert_eq!(requests(&first, "POST /effects"), expected);
    // The effect and the refusal.
    assert_eq!(first["idem_flight_seconds{flight=keep}"], 2);
    let looked = first["idem_flight_seconds{flight=look}"];
    let claimed = first["idem_flight_seconds{flight=claim}"];
    // The other request and the repeat of the refusal find their records by a look.
    assert!(looked >= 2 && looked + claimed >= 8, "{first:?}");
    assert!(!format!("{first:?}").contains("marker"), "{first:?}");

    // Without a key, and under a name of its own.
    let unkeyed = service.client.request("/optional");
    unkeyed.script(&Script::default()).send().await;
    let named = service.client.request("/named/old").key("named");
    named.script(&Script::default()).send().await;
    let sleeping = Script::sleeping(1_000);
    let running = service.client.request("/effects").key("slow");
    let running = tokio::spawn(running.script(&sleeping).send());
    database.until_asleep_in_rust(1).await;
    service.post("slow", &sleeping).await;
    running.await.unwrap();
    let second = recorded();
    let one = |outcome: &str| BTreeMap::from([(outcome.to_owned(), 1)]);
    assert_eq!(requests(&second, "POST /optional"), one("executed"));
    assert_eq!(requests(&second, "effects.named"), one("executed"));
    let mut both = one("executed");
    both.append(&mut one("in-progress"));
    assert_eq!(requests(&second, "POST /effects"), both);

    database.run_sql(K::Engine::EXPIRE).unwrap();
    let swept = service.idempotency.sweep().await.unwrap();
    assert_eq!(recorded()["idem_swept_records_total{}"], swept);
    assert_eq!(swept, 4);
}

#[tokio::test]
async fn each_request_is_counted_once_by_its_operation_and_its_outcome() {
    let _alone = ALONE.lock().await;
    counts_each_request_once::<Deadpool>().await;
    counts_each_request_once::<SqlxPostgres>().await;
    counts_each_request_once::<Sqlite>().await;
}

async fn counts_a_lost_commit<K: Kind<Engine = idem_tests::database::postgres::Postgres>>() {
    let database = K::template().database();
    let relay = Relay::start(database.engine().port(), Duration::ZERO);
    let url = relay.url(database.engine().name());
    let service = Service::<K>::start(&url).await;
    recorded();
    relay.cut_after_commit();
    let reply = service.post("k", &Script::default()).await;
    assert_eq!((reply.status, relay.cuts()), (201, 1));
    // The driver may say a little later that it was lost.
    let all = Mutex::new(BTreeMap::new());
    until(|| {
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        all.append(&mut recorded());
        let lost = all.contains_key("idem_lost_connections_total{}");
        lost.then_some(()).ok_or_else(|| format!("{all:?}"))
    })
    .await;
    let all = all.into_inner().unwrap();
    assert_eq!(all["idem_second_claims_total{cause=lost-commit}"], 1);
    assert_eq!(requests(&all, "POST /effects")["replayed"], 1);
}

#[tokio::test]
async fn lost_commit_is_counted_with_its_connection() {
    let _alone = ALONE.lock().await;
    counts_a_lost_commit::<Deadpool>().await;
    counts_a_lost_commit::<SqlxPostgres>().await;
}

async fn counts_a_lost_connection<K: Kind<Engine = idem_tests::database::postgres::Postgres>>() {
    let database = K::template().database();
    let service = Service::<K>::start(&database.url()).await;
    recorded();
    let request = service.client.request("/effects").key("k");
    let running = tokio::spawn(request.script(&Script::sleeping(1_000)).send());
    database.until_asleep_in_rust(1).await;
    database.engine().end_sessions();
    let reply = running.await.unwrap();
    assert_eq!((reply.status, reply.is_replay()), (201, false));
    let all = recorded();
    assert_eq!(all["idem_second_claims_total{cause=lost-connection}"], 1);
    assert_eq!(requests(&all, "POST /effects")["executed"], 1);
}

#[tokio::test]
async fn connection_that_broke_before_the_commit_is_no_contention() {
    let _alone = ALONE.lock().await;
    counts_a_lost_connection::<Deadpool>().await;
    counts_a_lost_connection::<SqlxPostgres>().await;
}

async fn counts_a_retry<K: Kind>() {
    let database = K::template().database();
    let setup = Setup::<K> {
        configure: |builder| builder.retryable(|_| true),
        ..Setup::default()
    };
    let service = Service::with(&database.url(), setup).await;
    recorded();
    let failed = Step::Once(database.file("failed"), Box::new(Step::Fail(500)));
    let reply = service.post("k", &Script::of([failed])).await;
    assert_eq!(reply.status, 201);
    let recorded = recorded();
    assert_eq!(recorded["idem_second_claims_total{cause=retryable}"], 1);
    assert_eq!(requests(&recorded, "POST /effects")["executed"], 1);
}

#[tokio::test]
async fn second_run_that_the_service_has_asked_for_is_counted() {
    let _alone = ALONE.lock().await;
    counts_a_retry::<Deadpool>().await;
    counts_a_retry::<SqlxPostgres>().await;
    counts_a_retry::<Sqlite>().await;
}
