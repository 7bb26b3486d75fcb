//! What a guarded request costs in round trips: two more than its handler by hand, since sqlx sends one after the other.

use std::time::Duration;

use actix_web::{HttpResponse, http::StatusCode, web};
use idem_runtime::postgres::StatementMode;
use idem_tests::{
    relay::Relay,
    service::{
        handlers::{Account, Failure},
        script::Script,
    },
};
use sqlx::{PgPool, query};
use tokio::time::sleep;

use super::{
    routes,
    shared::{Database, Service, Setup, assert_whole, database},
};

/// Long enough for what is sent together to be one flight.
const LATENCY: Duration = Duration::from_millis(30);

/// The same handler with a transaction of its own.
async fn bare(
    account: Account,
    script: web::Json<Script>,
    pool: web::Data<PgPool>,
) -> Result<HttpResponse, Failure> {
    let mut tx = pool.begin().await?;
    query("INSERT INTO effects (scope, note) VALUES ($1, $2)")
        .bind(&account.0)
        .bind(&script.note)
        .execute(&mut *tx)
        .await?;
    let status = StatusCode::from_u16(script.status).unwrap();
    if status.is_success() {
        tx.commit().await?;
    } else {
        tx.rollback().await?;
    }
    Ok(HttpResponse::build(status).finish())
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
            configure: match mode {
                StatementMode::Unnamed => |builder| builder.statements(StatementMode::Unnamed),
                _ => |builder| builder,
            },
            routes: |app| {
                app.route("/bare", web::post().to(bare));
                routes::configure(app);
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
        for path in ["/bare", "/effects"] {
            for status in [201, 402, 201] {
                let key = format!("warm-{status}");
                counted.send(path, &key, &Script::answering(status)).await;
            }
        }
        counted.relay.set_latency(LATENCY);
        counted
    }

    async fn send(&self, path: &str, key: &str, script: &Script) {
        let request = self.service.client.request(path).key(key).script(script);
        request.send().await;
        // Behind the answer come the ROLLBACK of a repeat, and the ping of a connection that goes back to its pool.
        sleep(5 * LATENCY).await;
        assert_whole(&self.service.pool).await;
    }

    /// Stores for one key what another process has stored for the other.
    fn record_elsewhere(&self, key: &str, other: &str) {
        let record = format!(
            "INSERT INTO idem.records
             SELECT scope, operation, '{other}', request, fingerprint, status, headers, body, created_at, expires_at
               FROM idem.records WHERE operation = 'POST /effects' AND key = '{key}'"
        );
        self.database.run_sql(&record).unwrap();
    }

    async fn flights(&self, path: &str, key: &str, status: u16) -> usize {
        self.relay.reset_counters();
        let script = Script::answering(status);
        self.send(path, key, &script).await;
        self.relay.flights()
    }
}

#[tokio::test]
async fn first_request_costs_claim_and_record_more_than_by_hand() {
    let counted = Counted::start(StatementMode::Cached).await;
    let by_hand = counted.flights("/bare", "k", 201).await;
    // The pool's ping, BEGIN, INSERT, COMMIT, and the ping of a connection that comes back.
    assert_eq!(by_hand, 5);
    let first = counted.flights("/effects", "k", 201).await;
    assert_eq!(first, by_hand + 2);
    // Pings, and a look at the record.
    let repeat = counted.flights("/effects", "k", 201).await;
    assert_eq!(repeat, 3);
    // A record of another process. No INSERT: pings, BEGIN, claim, ROLLBACK.
    counted.record_elsewhere("k", "l");
    let repeat = counted.flights("/effects", "l", 201).await;
    assert_eq!(repeat, by_hand);
    // Whether it is still the same transaction; ROLLBACK and BEGIN go together; then the claim again, the record, COMMIT.
    let refusal = counted.flights("/effects", "refused", 402).await;
    assert_eq!(refusal, by_hand + 5);
}

/// sqlx prepares what it is not to keep, each time.
#[tokio::test]
async fn unnamed_statements_cost_a_flight_more_each() {
    let counted = Counted::start(StatementMode::Unnamed).await;
    let by_hand = counted.flights("/bare", "k", 201).await;
    let first = counted.flights("/effects", "k", 201).await;
    let repeat = counted.flights("/effects", "k", 201).await;
    counted.record_elsewhere("k", "l");
    let repeat_of_another = counted.flights("/effects", "l", 201).await;
    let refusal = counted.flights("/effects", "refused", 402).await;
    assert_eq!(
        (first, repeat, repeat_of_another, refusal),
        (by_hand + 4, by_hand + 1, by_hand + 1, by_hand + 9)
    );
}
