//! What becomes of the handler's writes, its answer and the key, by the status: the table of the promise.

use idem_tests::service::{EFFECTS, Service, script::Script};
use reqwest::StatusCode;

#[tokio::test]
async fn a_success_is_executed_once_and_replayed_to_every_repeat() {
    let database = EFFECTS.database();
    let service = Service::start(&database.url()).await;
    let first = service.post("k", &Script::default()).await;
    first.assert(StatusCode::CREATED, false);
    for _ in 0..3 {
        let again = service.post("k", &Script::default()).await;
        again.assert(StatusCode::CREATED, true);
        assert_eq!(again.body, first.body);
    }
    assert_eq!(service.executions.get(), 1);
    assert_eq!((database.effects(), database.records()), (1, 1));
}
