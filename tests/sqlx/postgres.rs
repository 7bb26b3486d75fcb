//! PostgreSQL through sqlx: handlers in its transactions, what they cost, and what becomes of connections.

use std::time::{Duration, Instant};

use actix_web::{App, test};
use idem_runtime::{
    Idempotency,
    postgres::{SqlxPostgres, StatementMode},
};
use idem_tests::{
    database::{Database, Template},
    relay::Relay,
};
use sqlx::{PgConnection, PgPool, postgres::PgPoolOptions};

super::handlers!(sqlx::Postgres, PgConnection);

static SHOP: Template = Template::new(|database| {
    Box::pin(async move {
        let pool = PgPool::connect(&database.url()).await.unwrap();
        let idempotency = Idempotency::new(pool.clone()).unwrap();
        idempotency.migrate().await.unwrap();
        idempotency.migrate().await.unwrap();
        idempotency.verify_schema().await.unwrap();
        pool.close().await;
        database
            .run_sql("CREATE TABLE effects (note text)")
            .unwrap();
    })
});

struct Shop {
    database: Database,
    pool: PgPool,
    idempotency: Idempotency<SqlxPostgres>,
}

impl Shop {
    async fn open() -> Self {
        let database = SHOP.database();
        let url = database.url();
        Self::at(database, &url, 3, StatementMode::Cached).await
    }

    async fn at(database: Database, url: &str, size: u32, mode: StatementMode) -> Self {
        let pool = PgPoolOptions::new()
            .max_connections(size)
            .acquire_timeout(Duration::from_secs(2))
            .connect(url)
            .await
            .unwrap();
        let idempotency = Idempotency::builder(pool.clone())
            .statements(mode)
            .database_timeout(Duration::from_millis(500))
            .build()
            .unwrap();
        Self {
            database,
            pool,
            idempotency,
        }
    }

    /// Effects and records.
    fn counts(&self) -> String {
        let count = "SELECT (SELECT count(*) FROM effects), (SELECT count(*) FROM idem.records)";
        self.database.run_sql(count).unwrap()
    }

    /// Sessions of the service that hold a transaction open.
    fn open_transactions(&self) -> String {
        let count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                     AND pid <> pg_backend_pid() AND xact_start IS NOT NULL";
        self.database.run_sql(count).unwrap()
    }

    async fn settles(&self) {
        let begun = Instant::now();
        while self.open_transactions() != "0" {
            assert!(
                begun.elapsed() < Duration::from_secs(3),
                "a transaction stays open"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

macro_rules! app {
    ($shop:ident) => {
        test::init_service(
            App::new()
                .app_data(web::Data::new($shop.idempotency.clone()))
                .configure(routes),
        )
        .await
    };
}

#[actix_web::test]
async fn repeats_are_answered_from_the_record_and_other_requests_refused() {
    let shop = Shop::open().await;
    let app = app!(shop);
    for path in ["/connection", "/transaction", "/nested"] {
        let first = post(&app, path, "k", &Script::effect(201)).await;
        assert_eq!((first.status, first.replayed), (201, false), "{path}");
        let again = post(&app, path, "k", &Script::effect(201)).await;
        assert_eq!((again.status, again.replayed), (201, true), "{path}");
        assert_eq!(again.body, first.body);
        assert_eq!(
            post(&app, path, "k", &Script::effect(200)).await.status,
            422
        );
    }
    assert_eq!(shop.counts(), "3|3");
    shop.settles().await;
}

#[actix_web::test]
async fn refusal_rolls_back_binds_its_request_and_lets_a_corrected_one_run() {
    let shop = Shop::open().await;
    let app = app!(shop);
    let refused = post(&app, "/transaction", "k", &Script::effect(409)).await;
    assert_eq!((refused.status, refused.replayed), (409, false));
    assert_eq!(shop.counts(), "0|1");
    let corrected = post(&app, "/transaction", "k", &Script::effect(201)).await;
    assert_eq!((corrected.status, corrected.replayed), (201, false));
    let late = post(&app, "/transaction", "k", &Script::effect(409)).await;
    assert_eq!((late.status, late.replayed), (409, true));
    assert_eq!(late.body, refused.body);
    assert_eq!(shop.counts(), "1|2");
}

#[actix_web::test]
async fn handler_that_ends_the_transaction_by_itself_is_never_recorded() {
    let shop = Shop::open().await;
    let app = app!(shop);
    let insert = "INSERT INTO effects VALUES ('one')";
    for sql in [
        vec![insert, "ROLLBACK"],
        vec!["ROLLBACK", "BEGIN", insert],
        vec!["COMMIT"],
        vec!["COMMIT", "BEGIN", insert],
        vec![insert, "SELECT 1/0"],
    ] {
        let script = Script {
            sql: sql.iter().map(ToString::to_string).collect(),
            sleep: 0,
            status: 201,
        };
        let mistaken = post(&app, "/connection", "k", &script).await;
        assert_eq!(mistaken.status, 500, "{sql:?}");
        assert_eq!(shop.counts(), "0|0", "{sql:?}");
    }
    for path in ["/leaking", "/committing"] {
        assert_eq!(
            post(&app, path, "k", &Script::effect(201)).await.status,
            500
        );
    }
    // What `/committing` did after its COMMIT stands alone, and nothing can be done about it.
    assert_eq!(shop.counts(), "1|0");
    shop.settles().await;
    for key in ["a", "b", "c", "d"] {
        assert_eq!(
            post(&app, "/connection", key, &Script::effect(201))
                .await
                .status,
            201
        );
    }
    assert_eq!(shop.counts(), "5|4");
}

#[actix_web::test]
async fn request_without_a_key_runs_in_the_transaction_too() {
    let shop = Shop::open().await;
    let app = app!(shop);
    let unkeyed = async |script: &Script| {
        let request = test::TestRequest::post().uri("/unkeyed").set_json(script);
        test::call_service(&app, request.to_request())
            .await
            .status()
    };
    assert_eq!(unkeyed(&Script::effect(201)).await, 201);
    assert_eq!(unkeyed(&Script::effect(400)).await, 400);
    assert_eq!(unkeyed(&Script::new(201, ["ROLLBACK"])).await, 500);
    assert_eq!(shop.counts(), "1|0");
}

#[actix_web::test]
async fn statement_that_runs_past_the_deadline_lets_go_of_key_and_connection() {
    let shop = Shop::open().await;
    let app = app!(shop);
    let late = Script::new(
        201,
        ["INSERT INTO effects VALUES ('one')", "SELECT pg_sleep(30)"],
    );
    assert_eq!(post(&app, "/transaction", "k", &late).await.status, 503);
    shop.settles().await;
    assert_eq!(
        post(&app, "/transaction", "k", &Script::effect(201))
            .await
            .status,
        201
    );
    assert_eq!(shop.counts(), "1|1");
}

#[actix_web::test]
async fn begin_that_is_given_up_half_way_leaves_no_transaction_in_the_pool() {
    let database = SHOP.database();
    let relay = Relay::start(database.port(), Duration::ZERO);
    let url = relay.url(database.name());
    let shop = Shop::at(database, &url, 1, StatementMode::Cached).await;
    let app = app!(shop);
    assert_eq!(
        post(&app, "/connection", "a", &Script::effect(201))
            .await
            .status,
        201
    );
    // The ping of the pool comes through in time, the answer to BEGIN does not.
    relay.set_latency(Duration::from_millis(900));
    assert_eq!(
        post(&app, "/connection", "b", &Script::effect(201))
            .await
            .status,
        503
    );
    relay.set_latency(Duration::ZERO);
    shop.settles().await;
    let transaction = "SELECT now() = statement_timestamp()";
    let alone: bool = sqlx::query_scalar(transaction)
        .fetch_one(&shop.pool)
        .await
        .unwrap();
    assert!(
        alone,
        "the pool hands out a connection inside a transaction"
    );
    assert_eq!(
        post(&app, "/connection", "b", &Script::effect(201))
            .await
            .status,
        201
    );
    assert_eq!(shop.counts(), "2|2");
}

#[actix_web::test]
async fn round_trips_are_counted() {
    for (mode, first, repeat, refusal) in [
        (StatementMode::Cached, 6, 4, 8),
        (StatementMode::Unnamed, 8, 5, 11),
    ] {
        let database = SHOP.database();
        let relay = Relay::start(database.port(), Duration::ZERO);
        let url = relay.url(database.name());
        let shop = Shop::at(database, &url, 1, mode).await;
        let app = app!(shop);
        for status in [201, 409] {
            post(&app, "/connection", "warm", &Script::effect(status)).await;
        }
        relay.set_latency(Duration::from_millis(30));
        let flights = async |key: &str, status: u16| {
            // The ping of the last request's connection on its way back to the pool.
            tokio::time::sleep(Duration::from_millis(200)).await;
            relay.reset_counters();
            post(&app, "/connection", key, &Script::effect(status)).await;
            relay.flights()
        };
        assert_eq!(flights("a", 201).await, first, "{mode:?}, first request");
        assert_eq!(flights("a", 201).await, repeat, "{mode:?}, repeat");
        assert_eq!(flights("b", 409).await, refusal, "{mode:?}, refusal");
    }
}
