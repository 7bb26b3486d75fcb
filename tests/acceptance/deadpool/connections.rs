//! Pools of the service's own.

use std::time::{Duration, Instant};

use deadpool_postgres::{Manager, Pool, PoolBuilder, Runtime, tokio_postgres::NoTls};
use idem_runtime::{Idempotency, SettingsError};
use idem_tests::{relay::Relay, service::script::Script};
use reqwest::StatusCode;

use super::shared::{Service, Setup, database};

/// A pool as a service makes it by itself.
fn pool(url: &str, set: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Pool {
    let config = url.parse().expect("a URL of PostgreSQL");
    let builder = set(Pool::builder(Manager::new(config, NoTls)));
    builder
        .build()
        .expect("a runtime wherever there is a timeout")
}

#[test]
fn pool_that_would_wait_for_ever_is_refused_with_what_to_write_instead() {
    let pool = pool("postgres://localhost/shop", |builder| builder);
    let error = Idempotency::new(pool).unwrap_err();
    assert!(matches!(error, SettingsError::NoWaitTimeout));
    let text = error.to_string();
    assert!(
        text.contains("wait_timeout(Some(Duration::from_secs(5))).runtime(Runtime::Tokio1)"),
        "{text}"
    );
    assert!(text.contains("idem_runtime::postgres::pool"), "{text}");
}

#[tokio::test]
async fn pool_of_the_services_own_without_further_limits_does_not_hang_when_packets_vanish() {
    let database = database();
    let relay = Relay::start(database.engine().port(), Duration::ZERO);
    let pool = pool(&relay.url(database.engine().name()), |builder| {
        let wait = Some(Duration::from_millis(500));
        builder.runtime(Runtime::Tokio1).wait_timeout(wait)
    });
    let setup = Setup {
        configure: |builder| builder.database_timeout(Duration::from_millis(500)),
        ..Setup::default()
    };
    let service = Service::over(pool, setup).await;
    relay.black_hole(true);
    let start = Instant::now();
    let reply = service.post("k", &Script::default()).await;
    reply.assert_problem(503, "store-unavailable");
    assert!(
        start.elapsed() < Duration::from_secs(8),
        "{:?}",
        start.elapsed()
    );
    relay.black_hole(false);
    service
        .post("k", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);
    assert_eq!((database.effects(), database.records()), (1, 1));
}
