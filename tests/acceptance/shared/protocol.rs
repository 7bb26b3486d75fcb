//! Duplicates that meet, lifetimes that end, refusals that race: the rows of the protocol's decision.

use std::time::Duration;

use futures_util::future::join_all;
use idem_tests::{
    database::Engine as _,
    service::{
        Reply,
        script::{Script, Step, once},
    },
};
use reqwest::StatusCode;
use tokio::time::{Instant, sleep};

use super::{Database, Engine, Service, Setup, database};

/// Waits until so many handlers have begun to run.
pub(crate) async fn until_running(service: &Service, executions: usize) {
    let limit = Instant::now() + Duration::from_secs(20);
    while service.executions.get() < executions {
        assert!(Instant::now() < limit, "no handler runs");
        sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) async fn small(database: &Database) -> Service {
    let setup = Setup {
        pool: 2,
        ..Setup::default()
    };
    Service::with(&database.url(), setup).await
}

#[tokio::test]
async fn of_two_at_once_one_runs_and_the_other_is_told_to_come_back() {
    let database = database();
    let service = Service::start(&database.url()).await;
    let script = Script::sleeping(700);
    let (first, second) = tokio::join!(service.post("k", &script), async {
        until_running(&service, 1).await;
        service.post("k", &script).await
    });
    first.assert(StatusCode::CREATED, false);
    second.assert_problem(409, "in-progress");
    assert_eq!(second.headers["retry-after"], "1");
    let repeat = service.post("k", &script).await;
    repeat.assert(StatusCode::CREATED, true);
    assert_eq!(repeat.body, first.body);
    assert_eq!(database.effects(), 1);
}

#[tokio::test]
async fn another_request_under_a_running_key_is_refused_at_once() {
    let database = database();
    let service = Service::start(&database.url()).await;
    let slow = Script::sleeping(1500);
    let (first, (other, still_running)) = tokio::join!(service.post("k", &slow), async {
        until_running(&service, 1).await;
        let other = service.post("k", &Script::default()).await;
        (other, database.effects() == 0)
    });
    first.assert(StatusCode::CREATED, false);
    other.assert_problem(422, "key-reused");
    assert!(still_running, "it was refused only afterwards");
    assert_eq!(database.effects(), 1);
}

#[tokio::test]
async fn a_duplicate_waits_no_longer_than_its_endpoint_says() {
    let database = database();
    let service = Service::start(&database.url()).await;
    let script = Script::sleeping(4000);
    let post = async || {
        service
            .client
            .request("/impatient")
            .key("k")
            .script(&script)
            .send()
            .await
    };
    let (first, (second, running)) = tokio::join!(post(), async {
        until_running(&service, 1).await;
        let second = post().await;
        (second, database.effects() == 0)
    });
    first.assert(StatusCode::CREATED, false);
    second.assert_problem(409, "in-progress");
    assert!(running, "it waited for the end");
}

#[tokio::test]
async fn when_the_first_fails_one_that_waits_runs() {
    let database = database();
    let service = Service::start(&database.url()).await;
    // Fails once, and has the same body each time.
    let failure = once(database.file("failed"), Step::Fail(503));
    let script = Script::of([Step::Sleep(300), failure]);
    let post = async || {
        service
            .client
            .request("/waiting")
            .key("k")
            .script(&script)
            .send()
            .await
    };
    let replies = join_all((0..5).map(|_| post())).await;
    let mut statuses: Vec<_> = replies.iter().map(|reply| reply.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 201, 201, 201, 503]);
    let executed = replies
        .iter()
        .filter(|reply| reply.status == 201 && !reply.is_replay());
    assert_eq!(executed.count(), 1);
    assert_eq!((service.executions.get(), database.effects()), (2, 1));
}

#[tokio::test]
async fn when_the_first_is_refused_those_that_wait_share_the_refusal() {
    let database = database();
    let service = small(&database).await;
    let script = Script {
        status: 402,
        ..Script::sleeping(600)
    };
    let post = async || {
        service
            .client
            .request("/waiting")
            .key("k")
            .script(&script)
            .send()
            .await
    };
    let replies = join_all((0..10).map(|_| post())).await;
    assert!(replies.iter().all(|reply| reply.status == 402));
    assert_eq!(replies.iter().filter(|reply| !reply.is_replay()).count(), 1);
    assert_eq!(service.executions.get(), 1);
    assert_eq!((database.effects(), database.records()), (0, 1));
}

#[tokio::test]
async fn one_that_waits_with_a_corrected_request_runs_after_the_refusal() {
    let database = database();
    let service = Service::start(&database.url()).await;
    let refused = Script {
        status: 402,
        ..Script::sleeping(600)
    };
    let corrected = Script::default().note("corrected");
    let post = async |script| {
        service
            .client
            .request("/waiting")
            .key("k")
            .script(script)
            .send()
            .await
    };
    let (first, second) = tokio::join!(post(&refused), async {
        until_running(&service, 1).await;
        post(&corrected).await
    });
    first.assert(StatusCode::PAYMENT_REQUIRED, false);
    // While the first runs, another request is refused at once, waiting or not.
    second.assert_problem(422, "key-reused");
    post(&corrected).await.assert(StatusCode::CREATED, false);
}

#[tokio::test]
async fn a_crowd_after_the_end_gets_nothing_but_replays() {
    let database = database();
    let service = small(&database).await;
    let first = service.post("k", &NOTHING).await;
    let replies = join_all((0..100).map(|_| service.post("k", &NOTHING))).await;
    for reply in &replies {
        reply.assert(StatusCode::CREATED, true);
        assert_eq!(reply.body, first.body);
    }
    assert_eq!(service.executions.get(), 1);
}

async fn brief(service: &Service, key: &str, script: &Script) -> Reply {
    service
        .client
        .request("/brief")
        .key(key)
        .script(script)
        .send()
        .await
}

#[tokio::test]
async fn after_its_lifetime_a_key_is_new_for_any_request() {
    let database = database();
    let service = Service::start(&database.url()).await;
    brief(&service, "k", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);
    brief(&service, "k", &Script::default())
        .await
        .assert(StatusCode::CREATED, true);
    let refused = Script::answering(402).note("refused");
    brief(&service, "r", &refused)
        .await
        .assert(StatusCode::PAYMENT_REQUIRED, false);
    sleep(Duration::from_millis(2100)).await;
    // The expired record is replaced, not added to, and binds nobody.
    let other = Script::default().note("another request");
    brief(&service, "k", &other)
        .await
        .assert(StatusCode::CREATED, false);
    brief(&service, "k", &other)
        .await
        .assert(StatusCode::CREATED, true);
    brief(&service, "k", &Script::default())
        .await
        .assert_problem(422, "key-reused");
    brief(&service, "r", &refused)
        .await
        .assert(StatusCode::PAYMENT_REQUIRED, false);
    brief(&service, "r", &refused)
        .await
        .assert(StatusCode::PAYMENT_REQUIRED, true);
    assert_eq!((database.effects(), database.records()), (2, 2));
}

#[tokio::test]
async fn a_refusal_that_takes_an_expired_key_replaces_its_record_as_well() {
    let database = database();
    let service = Service::start(&database.url()).await;
    brief(&service, "k", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);
    sleep(Duration::from_millis(2100)).await;
    let refused = Script::answering(402);
    brief(&service, "k", &refused)
        .await
        .assert(StatusCode::PAYMENT_REQUIRED, false);
    brief(&service, "k", &refused)
        .await
        .assert(StatusCode::PAYMENT_REQUIRED, true);
    assert_eq!((database.effects(), database.records()), (1, 1));
}

#[tokio::test]
async fn of_many_that_take_an_expired_key_at_once_one_has_its_effect() {
    let database = database();
    // Two services, so that the gate of one process does not decide it.
    let services = [
        Service::start(&database.url()).await,
        Service::start(&database.url()).await,
    ];
    for _ in 0..5 {
        let before = database.effects();
        database.run_sql(Engine::EXPIRE).unwrap();
        let replies = join_all((0..16).map(|number| {
            let service = &services[number % 2];
            service
                .client
                .request("/effects")
                .key("k")
                .script(&NOTHING)
                .send()
        }))
        .await;
        let executed = replies
            .iter()
            .filter(|reply| reply.status == 201 && !reply.is_replay());
        assert_eq!(executed.count(), 1);
        assert!(
            replies
                .iter()
                .all(|reply| reply.status == 201 || reply.status == 409)
        );
        assert_eq!((database.effects(), database.records()), (before + 1, 1));
    }
}

static NOTHING: Script = Script {
    note: String::new(),
    steps: Vec::new(),
    status: 201,
    error: false,
    headers: Vec::new(),
    length: 0,
};

#[tokio::test]
async fn an_acknowledged_refusal_never_becomes_an_effect_while_the_balance_changes() {
    let database = database();
    let services = [
        Service::start(&database.url()).await,
        Service::start(&database.url()).await,
    ];
    for round in 0..12 {
        let key = format!("k-{round}");
        database
            .run_sql(&format!("INSERT INTO money VALUES ('{key}', 0)"))
            .unwrap();
        let script = Script::of([Step::Sleep(5), Step::Need(key.clone(), 402)]).note(&key);
        let client = async |number: usize| {
            let service = &services[number % 2];
            loop {
                let reply = service.post(&key, &script).await;
                if reply.status != 409 {
                    return reply;
                }
                sleep(Duration::from_millis(3)).await;
            }
        };
        let (replies, ()) = tokio::join!(join_all((0..4).map(client)), async {
            sleep(Duration::from_millis(5 + round)).await;
            let arrives = format!("UPDATE money SET amount = 1 WHERE id = '{key}'");
            database.run_sql_aside(arrives).await;
        });
        let settled = client(0).await;
        for reply in &replies {
            assert_eq!((reply.status, &reply.body), (settled.status, &settled.body));
        }
        assert_eq!(replies.iter().filter(|reply| !reply.is_replay()).count(), 1);
        let effects = database
            .run_sql(&format!(
                "SELECT count(*) FROM effects WHERE note = '{key}'"
            ))
            .unwrap();
        assert_eq!(effects.trim() == "1", settled.status == 201);
    }
}

#[tokio::test]
async fn a_record_written_by_another_fingerprint_version_is_no_mismatch() {
    let database = database();
    let service = Service::start(&database.url()).await;
    service
        .post("k", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);
    service
        .post("k", &Script::default().note("other"))
        .await
        .assert_problem(422, "key-reused");
    database.run_sql(Engine::OTHER_FINGERPRINT_VERSION).unwrap();
    service
        .post("k", &Script::default().note("other"))
        .await
        .assert(StatusCode::CREATED, true);
}

#[tokio::test]
async fn a_late_duplicate_of_a_refusal_gets_it_again_while_the_corrected_request_runs() {
    let database = database();
    let service = Service::start(&database.url()).await;
    let refused = Script::answering(402).note("refused");
    let corrected = Script::sleeping(1500).note("corrected");
    let first = service.post("k", &refused).await;
    first.assert(StatusCode::PAYMENT_REQUIRED, false);
    let (second, (late, still_running)) = tokio::join!(service.post("k", &corrected), async {
        until_running(&service, 2).await;
        let late = service.post("k", &refused).await;
        (late, database.effects() == 0)
    });
    second.assert(StatusCode::CREATED, false);
    late.assert(StatusCode::PAYMENT_REQUIRED, true);
    assert_eq!(late.body, first.body);
    assert!(still_running, "it was answered only afterwards");
}
