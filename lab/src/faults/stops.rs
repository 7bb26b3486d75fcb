//! F5, F6, F19 and F24: processes that are stopped, by a signal that freezes them or one that asks them to go.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use super::{
    Lab,
    client::bytes,
    history::Outcome,
    load::{Load, Mix, percentile},
    trial::{Allowing, Plan, Trial, Verdict, fresh},
};
use crate::{
    Fallible,
    rig::database::LOCKS,
    service::{Order, Step},
};

/// F5: an instance is frozen in the middle of its handlers until the server has given up on it, another one serves the
/// same keys, and then the first one goes on.
pub(super) async fn zombie(lab: &Lab) -> Fallible<Verdict> {
    let plan = Plan {
        instances: 2,
        database_timeout: Duration::from_millis(300),
        ..Plan::default()
    };
    let mut trial = Trial::begin(lab, "F5", plan).await?;
    for _ in 0..lab.times(4, 60) {
        let requests: Vec<_> = (0..4)
            .map(|_| trial.fresh("/hurried", Order::sleeping(200)))
            .collect();
        let client = trial.client.clone();
        let doomed = requests.clone();
        let zombies = tokio::spawn(async move {
            join_all(doomed.iter().map(|request| client.once(0, request))).await
        });
        trial
            .database
            .until(
                &format!("SELECT count(*) = 4 FROM {LOCKS}"),
                Duration::from_secs(3),
            )
            .await?;
        sleep(Duration::from_millis(trial.rng.u64(0..150))).await;
        freeze(&mut trial, 0)?;
        // The handler's 300 ms and twice the database timeout, as often as sessions may wait in a row for the same
        // account (each begins its own time when the one before has ended), and some room.
        let fence = Instant::now() + Duration::from_millis(4 * (300 + 2 * 300) + 1500);
        let client = trial.client.clone();
        let others = requests.iter().map(async |request| {
            let mut line = client.line(1);
            loop {
                let outcome = line.attempt(request).await;
                if outcome.is_settled() || Instant::now() > fence {
                    return outcome;
                }
                sleep(Duration::from_millis(50)).await;
            }
        });
        let served = join_all(others).await;
        let served = served
            .iter()
            .filter(|outcome| outcome.status() == Some(201))
            .count();
        trial.signal(0, Signal::CONT)?;
        zombies.await?;
        trial.expect_in_time(
            served == 4,
            format!("the second instance has served {served} of 4 keys of the frozen one"),
        );
    }
    trial.end(Allowing::default()).await
}

/// F6: the backend that holds a key is frozen; its duplicates are told so at once, and other keys notice nothing.
pub(super) async fn frozen_backend(lab: &Lab) -> Fallible<Verdict> {
    let plan = Plan {
        instances: 2,
        ..Plan::default()
    };
    let mut trial = Trial::begin(lab, "F6", plan).await?;
    let mut times = Vec::new();
    for _ in 0..lab.times(4, 40) {
        let held = trial.fresh("/pay", Order::hesitating(300));
        let (client, holder) = (trial.client.clone(), Arc::clone(&held));
        let holder = tokio::spawn(async move { client.once(0, &holder).await });
        trial
            .database
            .until(
                &format!("SELECT count(*) = 1 FROM {LOCKS}"),
                Duration::from_secs(3),
            )
            .await?;
        // Asleep between two statements, it holds nothing of the server's own.
        sleep(Duration::from_millis(50)).await;
        let pid = trial
            .database
            .query(&format!("SELECT pid FROM {LOCKS}"))
            .await?;
        let pid = Pid::from_raw(pid.first().ok_or("nobody holds the key")?.get(0))
            .ok_or("no such process")?;
        trial
            .history
            .fault("SIGSTOP for the backend that holds a key");
        kill_process(pid, Signal::STOP)?;
        let told = async {
            let mut told = Vec::new();
            for instance in 0..20 {
                told.push(trial.client.once(instance, &held).await);
            }
            told
        };
        let others: Vec<_> = (0..100).map(|_| trial.rng.fork()).collect();
        let unrelated = async {
            let mut times = Vec::new();
            for (number, mut rng) in others.into_iter().enumerate() {
                let request = fresh(&mut rng, "/pay", Order::default());
                let began = Instant::now();
                let outcome = trial.client.once(number, &request).await;
                times.push((began.elapsed(), outcome.status()));
            }
            times
        };
        let (told, unrelated) = tokio::join!(told, unrelated);
        kill_process(pid, Signal::CONT)?;
        holder.await?;
        let told: Vec<_> = told
            .iter()
            .filter_map(Outcome::status)
            .filter(|status| !matches!(status, 409 | 503))
            .collect();
        trial.expect(
            told.is_empty(),
            format!("duplicates of a held key were told {told:?}"),
        );
        let failed = unrelated
            .iter()
            .filter(|(_, status)| *status != Some(201))
            .count();
        trial.expect(
            failed == 0,
            format!("{failed} requests with other keys failed"),
        );
        times.extend(unrelated.into_iter().map(|(time, _)| time));
    }
    let p99 = percentile(&mut times, 0.99);
    trial.note(format!(
        "other keys while a key's backend is frozen: p99 {p99:.1?} of {} requests (bound 100 ms)",
        times.len()
    ));
    trial.expect_in_time(
        p99 < Duration::from_millis(100),
        format!("other keys waited {p99:?} (p99)"),
    );
    trial.end(Allowing::default()).await
}

/// F19: graceful stops under load, with 2 to 4 workers; and rolling restarts of two instances.
pub(super) async fn graceful_stop(lab: &Lab) -> Fallible<Verdict> {
    let mut verdict: Option<Verdict> = None;
    let stops = lab.times(12, 140);
    let mut rolled = 0;
    for (workers, instances) in [(2, 1), (3, 1), (4, 1), (2, 2)] {
        let plan = Plan {
            instances,
            workers,
            ..Plan::default()
        };
        let mut trial = Trial::begin(lab, "F19", plan).await?;
        let mix = Mix {
            after: |rng| vec![Step::Sleep(rng.u64(0..60))],
            ..Mix::default()
        };
        let load = Load::start(&mut trial, &mix);
        for stop in 0..stops.div_ceil(4) {
            sleep(Duration::from_millis(trial.rng.u64(150..300))).await;
            let instance = stop % instances;
            trial.history.fault("SIGTERM for the service");
            let terminated = trial.history.now();
            trial.signal(instance, Signal::TERM)?;
            let began = Instant::now();
            let well = trial.ended(instance).await?;
            trial.expect(well, "the service did not end well");
            trial.expect_in_time(
                began.elapsed() < Duration::from_secs(3),
                format!("a graceful stop took {:?}", began.elapsed()),
            );
            trial.restart(instance).await?;
            let failed = trial.failed_in_flight(terminated);
            trial.expect(
                failed.is_empty(),
                format!("requests in flight at a graceful stop failed: {failed:?}"),
            );
            rolled += 1;
        }
        load.stop().await;
        let next = trial.end(Allowing::default()).await?;
        verdict = Some(match verdict {
            None => next,
            Some(verdict) => verdict.and(next),
        });
    }
    let mut verdict = verdict.ok_or("nothing was stopped")?;
    verdict
        .notes
        .push(format!("{rolled} graceful stops under load"));
    Ok(verdict)
}

/// F24: clients hang up, the service is asked to go, and what they wanted is done all the same.
pub(super) async fn stop_after_hanging_up(lab: &Lab) -> Fallible<Verdict> {
    let mut trial = Trial::begin(lab, "F24", Plan::default()).await?;
    let stops = lab.times(6, 70);
    for _ in 0..stops {
        let mut begun = Vec::new();
        for _ in 0..4 {
            let length = trial.rng.u64(30..250);
            let request = trial.fresh("/pay", Order::sleeping(length));
            let line = trial.client.line(0);
            let mut connection = line.open().await?;
            let number = trial.history.invoke(&request);
            connection.send(bytes(&request, number, "")).await?;
            begun.push((number, connection));
        }
        let numbers: Vec<_> = begun.iter().map(|(number, _)| *number).collect();
        trial.until_executed(&numbers).await?;
        for (number, connection) in begun {
            connection.reset()?;
            trial
                .history
                .returned(number, &Outcome::Lost("hung up".to_owned()));
        }
        sleep(Duration::from_millis(trial.rng.u64(0..20))).await;
        trial
            .history
            .fault("SIGTERM after the clients have hung up");
        trial.signal(0, Signal::TERM)?;
        trial.ended(0).await?;
        trial.restart(0).await?;
        trial.expect_done().await?;
    }
    trial.note(format!("{stops} graceful stops after clients had hung up"));
    trial.end(Allowing::default()).await
}

fn freeze(trial: &mut Trial, instance: usize) -> Fallible<()> {
    trial.history.fault("SIGSTOP for the service");
    trial.signal(instance, Signal::STOP)
}
