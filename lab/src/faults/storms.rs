//! F12 and F22: many clients at once, under one key or under equal keys of many owners.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;

use super::{
    Lab,
    history::{Outcome, Reply, Request},
    load::percentile,
    trial::{Allowing, MARK, Plan, Trial, Verdict, fresh},
};
use crate::{Fallible, service::Order};

/// How many duplicates a storm has.
const DUPLICATES: usize = 1000;

/// F12: a thousand duplicates at once while the handler takes a second, over one to three instances, told to come back
/// or made to wait; another key is served meanwhile as ever.
pub(super) async fn storm(lab: &Lab) -> Fallible<Verdict> {
    let plan = Plan {
        instances: 3,
        ..Plan::default()
    };
    let mut trial = Trial::begin(lab, "F12", plan).await?;
    // Each worker and connection has served once.
    for instance in 0..60 {
        let request = trial.fresh("/pay", Order::default());
        trial.client.once(instance, &request).await;
    }
    for _ in 0..lab.times(1, 8) {
        for instances in [1, 2, 3] {
            for path in ["/pay", "/waiting"] {
                one_storm(&mut trial, instances, path).await?;
            }
        }
    }
    trial.end(Allowing::default()).await
}

async fn one_storm(trial: &mut Trial, instances: usize, path: &'static str) -> Fallible<()> {
    let request = trial.fresh(path, Order::hesitating(1000));
    let client = trial.client.clone();
    trial.history.fault(&format!(
        "{DUPLICATES} duplicates for {path} over {instances} instances"
    ));
    let duplicates = (0..DUPLICATES).map(|number| {
        let (client, request) = (client.clone(), Arc::clone(&request));
        tokio::spawn(async move {
            let began = Instant::now();
            let outcome = client.once(number % instances, &request).await;
            (outcome, began.elapsed())
        })
    });
    let duplicates: Vec<_> = duplicates.collect();
    let rngs: Vec<_> = (0..4).map(|_| trial.rng.fork()).collect();
    let until = Instant::now() + Duration::from_secs(1);
    let unrelated = rngs.into_iter().enumerate().map(async |(number, mut rng)| {
        let mut times = Vec::new();
        let mut line = client.line(number % instances);
        while Instant::now() < until {
            let request = fresh(&mut rng, "/pay", Order::default());
            let began = Instant::now();
            let outcome = line.attempt(&request).await;
            times.push((began.elapsed(), outcome.status()));
        }
        times
    });
    let unrelated = join_all(unrelated).await.concat();
    let mut answers = Vec::new();
    for duplicate in duplicates {
        answers.push(duplicate.await?);
    }

    let name = format!("{path} over {instances} instances");
    let slowest = answers
        .iter()
        .map(|(_, time)| *time)
        .max()
        .unwrap_or_default();
    trial.expect_in_time(
        slowest <= Duration::from_secs(3),
        format!("{name}: a duplicate was answered after {slowest:?}"),
    );
    let answered = |status| {
        answers
            .iter()
            .filter(|(outcome, _)| outcome.status() == Some(status))
            .count()
    };
    let (created, told) = (answered(201), answered(409));
    let expected = if path == "/waiting" {
        created == DUPLICATES
    } else {
        created >= 1 && created + told == DUPLICATES
    };
    trial.expect(
        expected,
        format!("{name}: {created} answers 201, {told} answers 409"),
    );
    let executions: HashSet<_> = answers
        .iter()
        .filter_map(|(outcome, _)| execution(outcome))
        .collect();
    trial.expect(
        executions.len() == 1,
        format!("{name}: {} executions were acknowledged", executions.len()),
    );

    let failed = unrelated
        .iter()
        .filter(|(_, status)| *status != Some(201))
        .count();
    trial.expect(
        failed == 0,
        format!("{name}: {failed} requests with other keys failed"),
    );
    let mut times: Vec<_> = unrelated.into_iter().map(|(time, _)| time).collect();
    let p99 = percentile(&mut times, 0.99);
    trial.expect_in_time(
        times.len() >= 200,
        format!("{name}: only {} samples of another key", times.len()),
    );
    trial.expect_in_time(
        p99 <= Duration::from_millis(50),
        format!("{name}: another key waited {p99:?} (p99)"),
    );
    trial.note(format!(
        "storm on {name}: {created} × 201, {told} × 409, all within {slowest:.1?}; another key's p99 {p99:.1?} of {} samples",
        times.len()
    ));
    Ok(())
}

fn execution(outcome: &Outcome) -> Option<&str> {
    match outcome {
        Outcome::Answer(Reply { execution, .. }) => execution.as_deref(),
        Outcome::Lost(_) => None,
    }
}

/// F22: equal keys and bodies in 50 scopes; a caller whose right was revoked; a key's spellings.
pub(super) async fn scopes(lab: &Lab) -> Fallible<Verdict> {
    let plan = Plan {
        instances: 2,
        ..Plan::default()
    };
    let mut trial = Trial::begin(lab, "F22", plan).await?;
    for _ in 0..lab.times(6, 60) {
        let request = trial.fresh("/pay", Order::default());
        let owned: Vec<_> = (0..50)
            .map(|owner| {
                let mut owned = Request::clone(&request);
                owned.scope = format!("{MARK}-scope-{owner}");
                Arc::new(owned)
            })
            .collect();
        let client = trial.client.clone();
        let twice = owned.iter().chain(&owned).enumerate();
        let answers = join_all(twice.map(async |(number, request)| {
            client.history.fault("an equal key of another owner");
            let mut rng = fastrand::Rng::with_seed(number as u64);
            client
                .finish(request, Duration::from_secs(10), &mut rng)
                .await
        }))
        .await;
        let executions: HashSet<_> = answers.iter().filter_map(execution).collect();
        trial.expect(
            executions.len() == 50,
            format!("50 owners had {} executions", executions.len()),
        );

        if let Some(owned) = owned.first() {
            trial.history.fault("a revoked caller");
            let outcome = trial
                .client
                .line(0)
                .attempt_with(owned, "x-revoked: 1\r\n")
                .await;
            trial.expect(
                outcome.status() == Some(403),
                format!("a revoked caller got {outcome:?}"),
            );
            trial.history.fault("a quoted key");
            let mut quoted = Request::clone(owned);
            quoted.key = format!("\"{}\"", owned.key);
            let outcome = trial.client.once(1, &Arc::new(quoted)).await;
            trial.expect(
                matches!(&outcome, Outcome::Answer(reply) if reply.status == 201 && reply.replayed),
                format!("the quoted form of a known key got {outcome:?}"),
            );
            for key in [
                String::new(),
                " ".to_owned(),
                "ä".to_owned(),
                "\"open".to_owned(),
                format!("{MARK}{}", "x".repeat(253)),
            ] {
                trial.history.fault("a malformed key");
                let malformed = Request {
                    key,
                    ..Request::clone(owned)
                };
                let outcome = trial.client.once(0, &Arc::new(malformed)).await;
                trial.expect(
                    outcome.status() == Some(400),
                    format!("a malformed key got {outcome:?}"),
                );
            }
            trial.history.fault("a key given twice");
            let line = format!("idempotency-key: {}\r\n", owned.key);
            let outcome = trial.client.line(0).attempt_with(owned, &line).await;
            trial.expect(
                outcome.status() == Some(400),
                format!("a key given twice got {outcome:?}"),
            );
        }
    }
    trial.end(Allowing::default()).await
}
