//! When a call ends: its deadline, the time of an attempt, the service's wishes, the budget.

use std::time::Duration;

use idem_client::{Answer, Budget, Cause, Limit, Retries};
use tokio::time::Instant;

use crate::script::{Step, client, gave_up, retries, retry_after, status};

const URL: &str = "http://pay.example/payments";

#[tokio::test(start_paused = true)]
async fn the_deadline_ends_a_call_that_only_fails() {
    for step in [status(503), Step::Silence, retry_after(429, "1")] {
        let deadline = Duration::from_secs(10);
        let retries = Retries::within(deadline).budget(Budget::new(100, 10_000));
        let (client, script) = client(retries, [step.clone()]);
        let started = Instant::now();
        let error = client.post(URL).send().await.unwrap_err();
        let elapsed = started.elapsed();
        let call = gave_up(&error);
        assert!(
            elapsed <= deadline + Duration::from_millis(5),
            "{step:?}: {elapsed:?}"
        );
        assert_eq!(call.limit(), Limit::Deadline(deadline), "{step:?}");
        assert_eq!(call.attempts() as usize, script.requests());
        assert!(script.requests() >= 3, "{step:?}: {}", script.requests());
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_without_an_answer_is_cut_off_and_repeated() {
    let retries = retries().attempt(Duration::from_secs(2));
    let (client, _) = client(retries, [Step::Silence, status(201)]);
    let started = Instant::now();
    let answer = client.post(URL).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.attempts()), (201, 2));
    let elapsed = started.elapsed();
    assert!(elapsed >= Duration::from_secs(2), "{elapsed:?}");
    assert!(elapsed <= Duration::from_millis(2200), "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn what_the_service_asks_for_is_waited_out() {
    let steps = [retry_after(503, "7"), retry_after(429, "5"), status(201)];
    let (client, _) = client(retries(), steps);
    let started = Instant::now();
    client.post(URL).send().await.unwrap();
    let elapsed = started.elapsed();
    assert!(elapsed >= Duration::from_secs(12), "{elapsed:?}");
    assert!(elapsed < Duration::from_secs(13), "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_asks_for_less_than_the_backoff_does_not_shorten_it() {
    let mut longest = Duration::ZERO;
    for _ in 0..100 {
        let second = Duration::from_secs(1);
        let retries = retries().backoff(second, second);
        let (client, _) = client(retries, [retry_after(503, "0"), status(201)]);
        let started = Instant::now();
        client.post(URL).send().await.unwrap();
        longest = longest.max(started.elapsed());
    }
    assert!(longest > Duration::from_millis(700), "{longest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_would_pass_the_deadline_is_not_begun() {
    let (client, script) = client(retries(), [retry_after(503, "3600")]);
    let started = Instant::now();
    let error = client.post(URL).send().await.unwrap_err();
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(script.requests(), 1);
    let call = gave_up(&error);
    assert_eq!(call.retry_after(), Some(Duration::from_secs(3600)));
    assert!(matches!(call.cause(), Cause::Status(status) if *status == 503));
    assert_eq!(
        error.to_string(),
        "POST http://pay.example/payments: no final answer after 1 attempt in 0.0ns; the last: 503 Service \
         Unavailable; another would pass the deadline of 60s (the service asks to wait 3600s); it may have been done: \
         repeat it with the same key, not with a new one"
    );
}

#[tokio::test(start_paused = true)]
async fn a_service_that_fails_every_request_gets_no_more_than_the_budget() {
    const CALLS: usize = 1000;
    let retries = Retries::within(Duration::from_secs(30)).budget(Budget::new(20, 50));
    let (client, script) = client(retries, [status(503)]);
    let started = Instant::now();
    let mut ended = [0, 0];
    for batch in 0..10 {
        let calls = (0..CALLS / 10).map(|_| tokio::spawn(client.post(URL).send()));
        for call in calls.collect::<Vec<_>>() {
            let error = call.await.unwrap().unwrap_err();
            let budget = gave_up(&error).limit() == Limit::Budget;
            ended[usize::from(budget)] += 1;
        }
        println!(
            "batch {batch}: {} requests, {:?}",
            script.requests(),
            started.elapsed()
        );
    }
    let repeats = script.requests() - CALLS;
    let seconds = usize::try_from(started.elapsed().as_secs()).unwrap();
    let allowed = 50 + CALLS / 5 + seconds;
    println!(
        "{repeats} repeats of {allowed} in {seconds} s; {} calls out of budget",
        ended[1]
    );
    assert!(repeats <= allowed, "{repeats} of {allowed}");
    // It is the budget that held, and it was used.
    assert!(ended[1] > CALLS * 9 / 10, "{ended:?}");
    // What a call deposits into a full bucket is lost.
    assert!(repeats + CALLS / 10 >= allowed, "{repeats} of {allowed}");
}

#[tokio::test(start_paused = true)]
async fn clones_and_layers_with_one_budget_share_it() {
    let budget = Budget::new(0, 3);
    let pause = Duration::from_millis(100);
    let minute = Duration::from_secs(60);
    let layer = Retries::within(minute)
        .budget(budget.clone())
        .backoff(pause, pause);
    let other = Retries::within(minute / 2)
        .budget(budget)
        .backoff(pause, pause);
    let mut requests = 0;
    for layer in [layer.clone(), layer, other] {
        let (client, script) = client(layer, [status(503)]);
        client.post(URL).send().await.unwrap_err();
        requests += script.requests();
    }
    assert_eq!(requests, 3 + 3);
}
