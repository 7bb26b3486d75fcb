//! Many keys at once, and settings of the transaction: what an engine with one writer cannot show, or has not.

use std::time::Duration;

use futures_util::future::join_all;
use idem_tests::{
    kinds::Kind as _,
    service::script::{Script, sql},
};
use reqwest::StatusCode;
use tokio::time::sleep;

use super::{
    Kind,
    shared::{
        Service, Setup, database,
        protocol::{small, until_running},
    },
};

#[tokio::test]
async fn duplicates_that_wait_all_get_the_one_answer_and_hold_no_connection() {
    let database = database();
    let service = small(&database).await;
    let script = Script::sleeping(1500);
    let wait = async || {
        service
            .client
            .request("/waiting")
            .key("k")
            .script(&script)
            .send()
            .await
    };
    let (replies, unrelated) = tokio::join!(join_all((0..40).map(|_| wait())), async {
        until_running(&service, 1).await;
        sleep(Duration::from_millis(200)).await;
        // One connection is with the handler; if waiting took any, none would be left.
        let reply = service.post("unrelated", &Script::default()).await;
        (reply, database.count("effects"))
    });
    let (reply, effects_by_then) = unrelated;
    reply.assert(StatusCode::CREATED, false);
    assert_eq!(
        effects_by_then, 1,
        "the unrelated request came after the others"
    );
    let [first] = &*replies
        .iter()
        .filter(|reply| !reply.is_replay())
        .collect::<Vec<_>>()
    else {
        panic!("not one first answer");
    };
    for reply in &replies {
        assert_eq!((reply.status, &reply.body), (201, &first.body));
    }
    assert_eq!(database.effects(), 2);
}

#[tokio::test]
async fn a_crowd_of_duplicates_does_not_keep_other_keys_from_the_pool() {
    let database = database();
    let service = small(&database).await;
    let script = Script::sleeping(2000);
    let (replies, unrelated) = tokio::join!(
        join_all((0..200).map(|_| service.post("k", &script))),
        async {
            until_running(&service, 1).await;
            let reply = service.post("unrelated", &Script::default()).await;
            reply.assert(StatusCode::CREATED, false);
            database.effects()
        }
    );
    assert_eq!(unrelated, 1, "the unrelated request came after the crowd's");
    assert_eq!(
        replies
            .iter()
            .filter(|reply| reply.status == 201 && !reply.is_replay())
            .count(),
        1
    );
    assert!(
        replies
            .iter()
            .all(|reply| reply.status == 201 || reply.status == 409)
    );
    assert_eq!(database.effects(), 2);
}

#[tokio::test]
async fn the_services_own_settings_hold_for_one_transaction() {
    let database = database();
    let setup = Setup {
        pool: 1,
        configure: |builder| {
            builder.transaction_settings(|request| {
                let account = request.headers().get("x-account").unwrap();
                vec![(
                    "app.tenant".to_owned(),
                    account.to_str().unwrap().to_owned(),
                )]
            })
        },
        ..Setup::default()
    };
    let service = Service::with(&database.url(), setup).await;
    let script = Script::of([sql(
        "INSERT INTO money VALUES (current_setting('app.tenant'), 1)",
    )]);
    for account in ["a", "b"] {
        let request = service.client.request("/effects").account(account).key("k");
        request
            .script(&script)
            .send()
            .await
            .assert(StatusCode::CREATED, false);
    }
    assert_eq!(
        database
            .run_sql("SELECT id FROM money ORDER BY id")
            .unwrap()
            .trim(),
        "a\nb"
    );
    let left = "SELECT nullif(current_setting('app.tenant', true), '')";
    assert_eq!(Kind::ask(&service.pool, left).await.unwrap(), None);
}
