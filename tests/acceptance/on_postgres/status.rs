//! The status of a key that another server is at work on.

use idem_tests::service::script::Script;
use reqwest::StatusCode;

use super::shared::{
    Service, database,
    status::{EFFECTS, document},
};

#[tokio::test]
async fn key_at_work_on_another_server_is_running_and_nobody_takes_its_lock() {
    let database = database();
    let (one, two) = (
        Service::start(&database.url()).await,
        Service::start(&database.url()).await,
    );
    let request = one.client.request("/effects").key("k");
    let first = tokio::spawn(request.script(&Script::sleeping(1_000)).send());
    database.until_asleep_in_rust(1).await;
    let path = format!("{EFFECTS}/k");
    assert_eq!(document(&two.client, &path).await["state"], "running");
    first.await.unwrap().assert(StatusCode::CREATED, false);
    assert_eq!(document(&two.client, &path).await["state"], "executed");
    database.assert_clean(8).await;
}
