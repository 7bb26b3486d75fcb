//! What becomes of the handler's writes, its answer and the key, by the status: the table of the promise.

use idem_tests::service::{
    handlers::UNRENDERABLE,
    script::{Script, Step},
};
use reqwest::StatusCode;

use super::{Service, Setup, assert_whole, database};

#[tokio::test]
async fn a_success_is_executed_once_and_replayed_to_every_repeat() {
    let database = database();
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

#[tokio::test]
async fn every_status_of_2xx_and_3xx_commits() {
    let database = database();
    let service = Service::start(&database.url()).await;
    for (number, status) in [200, 202, 204, 206, 303, 307].into_iter().enumerate() {
        let (key, script) = (format!("k-{status}"), Script::answering(status));
        let status = StatusCode::from_u16(status).unwrap();
        // A redirect leads nowhere here, so the client does not follow.
        service.post(&key, &script).await.assert(status, false);
        service.post(&key, &script).await.assert(status, true);
        assert_eq!(service.executions.get(), number + 1);
        assert_eq!(database.effects(), number + 1);
    }
}

#[tokio::test]
async fn an_effect_belongs_to_its_request_and_any_other_is_refused() {
    let database = database();
    let service = Service::start(&database.url()).await;
    service
        .post("k", &Script::default().note("one"))
        .await
        .assert(StatusCode::CREATED, false);
    for _ in 0..2 {
        let other = service.post("k", &Script::default().note("two")).await;
        other.assert_problem(422, "key-reused");
    }
    service
        .post("k", &Script::default().note("one"))
        .await
        .assert(StatusCode::CREATED, true);
    assert_eq!(database.effects(), 1);
}

#[tokio::test]
async fn a_refusal_is_stored_and_its_writes_are_undone() {
    let database = database();
    let service = Service::start(&database.url()).await;
    // As `Err`, and as `Ok(HttpResponse)`: the status decides.
    for (number, error) in [true, false].into_iter().enumerate() {
        let script = Script {
            error,
            ..Script::answering(402)
        };
        let key = format!("k-{error}");
        let first = service.post(&key, &script).await;
        first.assert(StatusCode::PAYMENT_REQUIRED, false);
        let again = service.post(&key, &script).await;
        again.assert(StatusCode::PAYMENT_REQUIRED, true);
        assert_eq!(again.body, first.body);
        assert_eq!(service.executions.get(), number + 1);
        assert_eq!((database.effects(), database.records()), (0, number + 1));
    }
}

#[tokio::test]
async fn a_refused_request_may_be_corrected_under_its_key_and_stays_refused_itself() {
    let database = database();
    let service = Service::start(&database.url()).await;
    let wrong = Script::answering(402).note("too much");
    let corrected = Script::default().note("less");
    service
        .post("k", &wrong)
        .await
        .assert(StatusCode::PAYMENT_REQUIRED, false);
    service
        .post("k", &corrected)
        .await
        .assert(StatusCode::CREATED, false);
    service
        .post("k", &wrong)
        .await
        .assert(StatusCode::PAYMENT_REQUIRED, true);
    service
        .post("k", &corrected)
        .await
        .assert(StatusCode::CREATED, true);
    service
        .post("k", &Script::default().note("more"))
        .await
        .assert_problem(422, "key-reused");
    assert_eq!(service.executions.get(), 2);
    assert_eq!((database.effects(), database.records()), (1, 2));
}

#[tokio::test]
async fn a_key_has_any_number_of_refusals_each_bound_to_its_request() {
    let database = database();
    let service = Service::start(&database.url()).await;
    for repeat in [false, true] {
        for status in [400, 402, 404, 409, 422] {
            let script = Script::answering(status).note(&format!("refused {status}"));
            let status = StatusCode::from_u16(status).unwrap();
            service.post("k", &script).await.assert(status, repeat);
        }
    }
    assert_eq!((database.effects(), database.records()), (0, 5));
}

#[tokio::test]
async fn a_passing_failure_is_undone_and_frees_the_key() {
    let database = database();
    let service = Service::start(&database.url()).await;
    for error in [true, false] {
        for status in [408, 425, 429, 500, 503] {
            let key = format!("k-{status}-{error}");
            let failing = Script {
                error,
                ..Script::answering(status)
            };
            let status = StatusCode::from_u16(status).unwrap();
            service.post(&key, &failing).await.assert(status, false);
            service.post(&key, &failing).await.assert(status, false);
            assert_eq!((database.effects(), database.records()), (0, 0));
        }
    }
    assert_eq!(service.executions.get(), 20);
    // Free for any request: also for the same one that now succeeds.
    service
        .post("k-503-true", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);
    assert_eq!(database.effects(), 1);
}

#[tokio::test]
async fn a_panic_is_undone_answered_and_frees_the_key() {
    let database = database();
    let service = Service::start(&database.url()).await;
    let panicking = Script::of([Step::Panic]);
    service
        .post("k", &panicking)
        .await
        .assert_problem(500, "internal");
    service
        .post("k", &panicking)
        .await
        .assert_problem(500, "internal");
    assert_eq!((database.effects(), database.records()), (0, 0));
    service
        .post("k", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);
}

/// Whose error it is makes no difference: the handler's, an extractor's, or that of `authorize`.
#[tokio::test]
async fn an_error_that_panics_as_it_becomes_an_answer_is_a_500_that_keeps_nothing_and_frees_the_key()
 {
    let database = database();
    // One connection: what one request leaves behind, the next one meets.
    let setup = Setup {
        pool: 1,
        ..Setup::default()
    };
    let service = Service::with(&database.url(), setup).await;
    let failing = Script {
        error: true,
        ..Script::answering(UNRENDERABLE)
    };
    let unwelcome = Script::default().note("unrenderable");
    for (path, account, script, runs) in [
        ("/effects", "a", &failing, 2),
        ("/optional", "a", &failing, 2),
        ("/effects", "unrenderable", &Script::default(), 0),
        ("/authorized", "a", &unwelcome, 0),
    ] {
        let before = service.executions.get();
        for _ in 0..2 {
            let request = service.client.request(path).account(account).key("k");
            let reply = request.script(script).send().await;
            reply.assert_problem(500, "internal");
        }
        assert_eq!(service.executions.get(), before + runs, "{path} {account}");
        assert_eq!((database.effects(), database.records()), (0, 0));
    }
    let unkeyed = service.client.request("/optional").script(&failing);
    unkeyed.send().await.assert_problem(500, "internal");
    assert_eq!(database.effects(), 0);
    for path in ["/effects", "/optional", "/authorized"] {
        let request = service.client.request(path).key("k");
        let reply = request.script(&Script::default()).send().await;
        reply.assert(StatusCode::CREATED, false);
    }
    assert_eq!((database.effects(), database.records()), (3, 3));
    assert_whole(&service.pool).await;
    database.assert_clean(1).await;
}

#[tokio::test]
async fn a_handler_over_its_deadline_is_undone_and_frees_the_key() {
    let database = database();
    let service = Service::start(&database.url()).await;
    let send = async |script: Script| {
        let request = service.client.request("/hurried").key("k");
        request.script(&script).send().await
    };
    let late = send(Script::sleeping(60_000)).await;
    late.assert_problem(503, "handler-timeout");
    assert!(late.headers.contains_key("retry-after"));
    assert_eq!((database.effects(), database.records()), (0, 0));
    // What held the key ends soon after its connection was closed.
    let mut reply = send(Script::default()).await;
    while reply.status == 409 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        reply = send(Script::default()).await;
    }
    reply.assert(StatusCode::CREATED, false);
    assert_eq!((database.effects(), database.records()), (1, 1));
}

#[tokio::test]
async fn commit_on_keeps_the_writes_of_a_deliberate_refusal() {
    let database = database();
    let service = Service::start(&database.url()).await;
    let declined = Script::answering(402);
    let post = async |script: &Script| {
        service
            .client
            .request("/committing")
            .key("k")
            .script(script)
            .send()
            .await
    };
    post(&declined)
        .await
        .assert(StatusCode::PAYMENT_REQUIRED, false);
    post(&declined)
        .await
        .assert(StatusCode::PAYMENT_REQUIRED, true);
    // It was the key's effect: another request is too late.
    post(&Script::default())
        .await
        .assert_problem(422, "key-reused");
    assert_eq!((database.effects(), database.records()), (1, 1));
}

#[tokio::test]
async fn release_on_frees_the_key_on_more() {
    let database = database();
    let service = Service::start(&database.url()).await;
    let missing = Script::answering(404);
    for _ in 0..2 {
        let reply = service
            .client
            .request("/releasing")
            .key("k")
            .script(&missing)
            .send()
            .await;
        reply.assert(StatusCode::NOT_FOUND, false);
    }
    assert_eq!(service.executions.get(), 2);
    assert_eq!((database.effects(), database.records()), (0, 0));
}

#[tokio::test]
async fn a_savepoint_undoes_a_part_and_the_rest_is_committed() {
    let database = database();
    let service = Service::start(&database.url()).await;
    let script = Script::of([
        Step::Savepoint("INSERT INTO money VALUES ('kept', 1)".to_owned()),
        Step::Savepoint("INSERT INTO money VALUES ('kept', 2)".to_owned()),
    ]);
    service
        .post("k", &script)
        .await
        .assert(StatusCode::CREATED, false);
    assert_eq!(
        database.run_sql("SELECT amount FROM money").unwrap().trim(),
        "1"
    );
    assert_eq!((database.effects(), database.records()), (1, 1));
}
