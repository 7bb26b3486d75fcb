//! Expired records are deleted, by any number of sweepers, and nothing else is.

use std::time::Duration;

use futures_util::future::join_all;
use idem_tests::database::Engine as _;
use tokio::time::{Instant, sleep};

use super::{Engine, Service, database};

#[tokio::test]
async fn sweeping_deletes_what_has_expired_and_nothing_else() {
    let database = database();
    let service = Service::start(&database.url()).await;
    database
        .run_sql(&Engine::insert_records(4500, 100))
        .unwrap();
    // Several at once share the work.
    let swept = join_all((0..4).map(|_| service.idempotency.sweep())).await;
    let swept: u64 = swept.into_iter().map(Result::unwrap).sum();
    assert_eq!(swept, 4500);
    assert_eq!(database.records(), 100);
    assert_eq!(service.idempotency.sweep().await.unwrap(), 0);
}

#[tokio::test]
async fn the_background_sweeper_sweeps_until_it_is_dropped() {
    let database = database();
    let service = Service::start(&database.url()).await;
    let expired = Engine::insert_records(1, 0);
    let sweeper = service.idempotency.sweep_every(Duration::from_millis(50));
    for _ in 0..2 {
        database.run_sql(&expired).unwrap();
        let limit = Instant::now() + Duration::from_secs(20);
        while database.records() > 0 {
            assert!(Instant::now() < limit, "nothing was swept");
            sleep(Duration::from_millis(20)).await;
        }
    }
    drop(sweeper);
    sleep(Duration::from_millis(200)).await;
    database.run_sql(&expired).unwrap();
    sleep(Duration::from_millis(300)).await;
    assert_eq!(database.records(), 1);
}
