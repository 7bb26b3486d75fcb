//! Requests without a key, where it is optional: executed in the supplied transaction, and not recorded.

use idem_tests::service::script::{Script, Step, sql};

use super::{CREATED, start};

#[tokio::test]
async fn without_an_optional_key_each_request_is_executed_and_none_recorded() {
    let (database, service) = start().await;
    let request = || {
        service
            .client
            .request("/optional")
            .script(&Script::default())
    };
    request().send().await.assert(CREATED, false);
    request().send().await.assert(CREATED, false);
    assert_eq!((database.effects(), database.records()), (2, 0));
    request().key("k").send().await.assert(CREATED, false);
    request().key("k").send().await.assert(CREATED, true);
    assert_eq!((database.effects(), database.records()), (3, 1));
    // Optional does not mean that anything goes.
    request()
        .key("a b")
        .send()
        .await
        .assert_problem(400, "key-invalid");
    request()
        .key("")
        .send()
        .await
        .assert_problem(400, "key-invalid");
    assert_eq!(service.executions.get(), 3);
}

#[tokio::test]
async fn without_a_key_the_status_decides_over_the_writes_as_well() {
    let (database, service) = start().await;
    for status in [400, 402, 404, 429, 500, 503] {
        for error in [true, false] {
            let script = Script {
                error,
                ..Script::answering(status)
            };
            let reply = service
                .client
                .request("/optional")
                .script(&script)
                .send()
                .await;
            assert_eq!((reply.status, &*reply.problem()), (status, ""));
        }
    }
    assert_eq!((service.executions.get(), database.effects()), (12, 0));
    let panicking = Script::of([Step::Panic]);
    let reply = service
        .client
        .request("/optional")
        .script(&panicking)
        .send()
        .await;
    reply.assert_problem(500, "internal");
    assert_eq!((database.effects(), database.records()), (0, 0));
}

#[tokio::test]
async fn without_a_key_a_handler_that_ends_the_transaction_is_no_success() {
    let (database, service) = start().await;
    for step in ["ROLLBACK", "ROLLBACK; BEGIN"] {
        let script = Script::of([sql(step)]);
        let reply = service
            .client
            .request("/optional")
            .script(&script)
            .send()
            .await;
        reply.assert_problem(500, "internal");
        assert_eq!(database.effects(), 0, "{step}");
    }
    // What the handler has committed by itself stays committed; only the answer can tell.
    for step in ["COMMIT", "COMMIT; BEGIN"] {
        let script = Script::of([Step::Try(step.to_owned())]);
        let reply = service
            .client
            .request("/optional")
            .script(&script)
            .send()
            .await;
        reply.assert_problem(500, "internal");
    }
    let clean = service
        .client
        .request("/optional")
        .script(&Script::default());
    clean.send().await.assert(CREATED, false);
}

#[tokio::test]
async fn without_a_key_a_deferred_constraint_that_fails_at_commit_is_no_success() {
    let (database, service) = start().await;
    let script = Script::of([sql("INSERT INTO children VALUES (7)")]);
    let reply = service
        .client
        .request("/optional")
        .script(&script)
        .send()
        .await;
    reply.assert_problem(500, "internal");
    assert_eq!(database.effects(), 0);
}
