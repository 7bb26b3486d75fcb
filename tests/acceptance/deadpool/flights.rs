//! What a guarded request costs in round trips: no more than its handler in a hand-written transaction.

use std::time::{Duration, Instant};

use actix_web::{HttpResponse, http::StatusCode, web};
use deadpool_postgres::{Client, Pool};
use idem_runtime::postgres::StatementMode;
use idem_tests::{
    relay::Relay,
    service::{
        Reply,
        handlers::{Account, Failure},
        script::{Script, Step, sql},
    },
};

use tokio::time::sleep;

use super::{
    routes,
    shared::{Database, Service, Setup, database},
};

/// Holds every answer back long enough for all that is sent together to be one flight.
const LATENCY: Duration = Duration::from_millis(100);

/// The same handler with a transaction of its own.
async fn bare(
    account: Account,
    script: web::Json<Script>,
    pool: web::Data<Pool>,
) -> Result<HttpResponse, Failure> {
    let failure = |status| Failure { status, code: None };
    let down = StatusCode::SERVICE_UNAVAILABLE;
    let mut client = pool.get().await.map_err(|_| failure(down))?;
    let transaction = client.transaction().await?;
    let insert =
        "INSERT INTO effects (scope, note) VALUES ($1, $2) RETURNING gen_random_uuid()::text";
    let insert = transaction.prepare_cached(insert).await?;
    let row = transaction
        .query_one(&insert, &[&account.0, &script.note])
        .await?;
    for step in &script.steps {
        if let Step::Sql(sql) = step {
            transaction.batch_execute(sql).await?;
        }
    }
    let status = StatusCode::from_u16(script.status)
        .map_err(|_| failure(StatusCode::INTERNAL_SERVER_ERROR))?;
    if status.is_success() {
        transaction.commit().await?;
    } else {
        transaction.rollback().await?;
    }
    Ok(HttpResponse::build(status).body(row.get::<_, String>(0)))
}

/// A service with one connection behind a relay that counts.
struct Counted {
    database: Database,
    relay: Relay,
    service: Service,
}

impl Counted {
    async fn start(mode: StatementMode) -> Self {
        let database = database();
        let relay = Relay::start(database.engine().port(), Duration::ZERO);
        let setup = Setup {
            pool: 1,
            pool_wait: Duration::from_secs(20),
            configure: match mode {
                StatementMode::Unnamed => |builder| builder.statements(StatementMode::Unnamed),
                _ => |builder| builder,
            },
            routes: |app| {
                app.route("/bare", web::post().to(bare))
                    .configure(routes::configure);
            },
            ..Setup::default()
        };
        let service = Service::with(&relay.url(database.engine().name()), setup).await;
        let counted = Self {
            database,
            relay,
            service,
        };
        // Statements are prepared once a connection.
        for path in ["/bare", "/effects", "/optional"] {
            counted.send(path, None, &Script::default()).await;
            counted.send(path, Some("warm"), &Script::default()).await;
        }
        counted.settle().await;
        counted.relay.set_latency(LATENCY);
        counted
    }

    async fn send(&self, path: &str, key: Option<&str>, script: &Script) -> Reply {
        let mut request = self.service.client.request(path).script(script);
        if let Some(key) = key {
            request = request.key(key);
        }
        request.send().await
    }

    /// Takes the one connection, once it is back.
    async fn connection(&self) -> Client {
        let connection = self.service.pool.get().await;
        connection.expect("taking the one connection")
    }

    /// Stores what three requests of another process would have stored.
    fn record_elsewhere(&self) {
        let records = "INSERT INTO idem.records
            SELECT scope, operation, other, request, fingerprint, status, headers, body, created_at, expires_at
              FROM idem.records, unnest(ARRAY['one', 'two', 'three']) AS other
             WHERE operation = 'POST /effects' AND key = 'warm'";
        self.database.run_sql(records).expect("storing records");
    }

    /// Waits until it is back.
    async fn settle(&self) {
        drop(self.connection().await);
    }

    /// Counts the flights of one request, those behind its answer included.
    async fn flights(&self, path: &str, key: Option<&str>, script: &Script) -> usize {
        self.relay.reset_counters();
        let reply = self.send(path, key, script).await;
        assert_eq!((reply.status, reply.is_replay()), (script.status, false));
        self.settle().await;
        self.relay.flights()
    }
}

async fn costs_as_much_as_by_hand(mode: StatementMode) {
    let counted = Counted::start(mode).await;
    let one = Script::default();
    let three = Script::of([sql("SELECT 1"), sql("SELECT 2")]);
    for (name, script) in [("one", &one), ("three", &three)] {
        let by_hand = counted.flights("/bare", None, script).await;
        assert_eq!(by_hand, 3 + script.steps.len());
        assert_eq!(
            counted.flights("/effects", Some(name), script).await,
            by_hand
        );
        assert_eq!(
            counted.flights("/optional", Some(name), script).await,
            by_hand
        );
        assert_eq!(counted.flights("/optional", None, script).await, by_hand);
    }

    // One more than by hand: ROLLBACK takes the second claim along, and the refusal is stored with a COMMIT.
    let refused = Script::answering(402);
    let by_hand = counted.flights("/bare", None, &refused).await;
    assert_eq!(by_hand, 3);
    assert_eq!(
        counted.flights("/effects", Some("refused"), &refused).await,
        by_hand + 1
    );

    // Nothing is stored: as by hand.
    let failed = Script::answering(500);
    assert_eq!(
        counted.flights("/effects", Some("failed"), &failed).await,
        by_hand
    );
}

#[tokio::test]
async fn first_request_costs_exactly_as_many_flights_as_by_hand_and_a_refusal_one_more() {
    costs_as_much_as_by_hand(StatementMode::Cached).await;
}

#[tokio::test]
async fn unnamed_statements_cost_no_flight_more() {
    costs_as_much_as_by_hand(StatementMode::Unnamed).await;
}

/// Repeats a key, with its own request and another one, and tells how many flights it took.
async fn flights_of_repeats(mode: StatementMode, seen: bool) -> usize {
    let counted = Counted::start(mode).await;
    let keys = if seen {
        ["warm", "warm", "warm"]
    } else {
        counted.record_elsewhere();
        ["one", "two", "three"]
    };
    let latency = Duration::from_secs(1);
    counted.relay.set_latency(latency);
    counted.relay.reset_counters();
    let begun = Instant::now();
    for (key, script) in keys.into_iter().zip([
        Script::default(),
        Script::default().note("other"),
        Script::default(),
    ]) {
        let start = Instant::now();
        let reply = counted.send("/effects", Some(key), &script).await;
        let answered = start.elapsed();
        let known = reply.is_replay() || reply.problem() == "key-reused";
        assert!(known, "{reply:?}");
        // A second flight would take another second, and so would waiting for the ROLLBACK of the
        // request before on the one connection.
        assert!(answered < 2 * latency, "{answered:?}");
    }
    // Each took one: from the ROLLBACK before it, which is on its way when the next request is sent.
    assert!(begun.elapsed() >= 3 * latency, "{:?}", begun.elapsed());
    // What is sent behind the last answer is on its way at once.
    sleep(LATENCY).await;
    counted.relay.flights()
}

/// A claim each, which takes the ROLLBACK before it along; the last one's goes alone.
const CLAIMS: usize = 4;

/// A look each, and nothing behind it.
const LOOKS: usize = 3;

#[tokio::test]
async fn repeat_is_answered_after_one_flight_and_nobody_waits_for_its_rollback() {
    assert_eq!(
        flights_of_repeats(StatementMode::Cached, false).await,
        CLAIMS
    );
}

#[tokio::test]
async fn repeat_with_unnamed_statements_is_answered_after_one_flight_too() {
    assert_eq!(
        flights_of_repeats(StatementMode::Unnamed, false).await,
        CLAIMS
    );
}

#[tokio::test]
async fn repeat_of_a_record_that_the_process_has_seen_needs_no_transaction() {
    for mode in [StatementMode::Cached, StatementMode::Unnamed] {
        assert_eq!(flights_of_repeats(mode, true).await, LOOKS);
    }
}
