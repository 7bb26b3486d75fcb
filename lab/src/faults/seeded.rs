//! Whether the checker is any good: it has to catch twelve builds of the framework, each with one fault planted in it.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rustix::process::Signal;
use tokio::time::sleep;

use super::{
    Injecting, Lab, Plan as Asked, cuts, handlers,
    history::Outcome,
    lifetimes,
    load::{Load, Mix},
    trial::{Allowing, Plan, Trial, Verdict},
};
use crate::{Fallible, service::Order};

/// Within how many requests a fault has to be caught.
const BOUND: usize = 2000;

/// How many requests customers send before the settle pass repeats them.
const SENT: usize = 700;

struct Planted {
    /// As the framework's variable names it.
    name: &'static str,
    what: &'static str,
    run: for<'a> fn(&'a Lab, &'a str) -> Injecting<'a>,
}

macro_rules! planted {
    ($($name:literal, $what:literal, $run:ident;)*) => {
        &[$(Planted { name: $name, what: $what, run: |lab, name| Box::pin($run(lab, name)) }),*]
    };
}

const PLANTED: &[Planted] = planted! {
    "record-after-commit", "record stored after COMMIT", cut;
    "select-then-insert", "select, then insert, without the unique key", without_unique_key;
    "commit-taken-for-granted", "error of COMMIT taken for success", cut;
    "scope-dropped", "scope dropped", ordinary;
    "query-ignored", "fingerprint without the query", ordinary;
    "expiry-by-now", "lifetime counted from `now()`", end_of_lifetime;
    "no-rollback-on-drop", "no rollback when a transaction is dropped", over_the_deadline;
    "connections-of-workers", "connections driven by the workers' runtimes", graceful_stop;
    "refusal-not-stored", "refusal not stored", ordinary;
    "refusal-without-claim", "refusal stored without the second claim", refusals;
    "expired-deleted-blindly", "expired record deleted without looking at its end", bursts;
    "own-rollback-unnoticed", "no guard against a handler's own ROLLBACK", own_rollback;
};

/// Plants each fault in turn, and none once for each way to look; tells whether all of them were caught.
///
/// # Errors
///
/// When the lab itself cannot work.
pub(crate) async fn check(plan: Asked) -> Fallible<bool> {
    if !cfg!(feature = "seeded") {
        return Err("this build cannot plant faults: cargo run --release -p lab --features seeded -- checker".into());
    }
    let lab = Lab::open(&plan)?;
    println!("seed {}", lab.seed);
    let mut caught = 0;
    let mut false_alarms = 0;
    let asked = |planted: &&Planted| {
        plan.only.is_empty() || plan.only.iter().any(|name| name == planted.name)
    };
    let planted: Vec<_> = PLANTED.iter().filter(asked).collect();
    for Planted { name, what, run } in &planted {
        // Slowness alone is no fault.
        let without = if *name == "expired-deleted-blindly" {
            "slow-lock"
        } else {
            ""
        };
        let sound = run(&lab, without).await?;
        if let Some(alarm) = sound.violations.first() {
            false_alarms += 1;
            println!(
                "FALSE ALARM without {name}: {} {}",
                alarm.invariant, alarm.what
            );
        }
        let broken = run(&lab, name).await?;
        let first = broken
            .violations
            .first()
            .filter(|_| broken.requests <= BOUND);
        let (verdict, why) = match first {
            Some(violation) => (
                "caught",
                format!("{}: {}", violation.invariant, violation.what),
            ),
            None => ("MISSED", String::new()),
        };
        caught += usize::from(first.is_some());
        let why: String = why.chars().take(90).collect();
        println!(
            "{verdict}  {what:<50} {:>5} requests  {why}",
            broken.requests
        );
    }
    std::fs::remove_dir_all(&lab.folder)?;
    println!(
        "caught {caught} of {}, {false_alarms} false alarms without them (seed {})",
        planted.len(),
        lab.seed
    );
    Ok(caught == planted.len() && false_alarms == 0)
}

/// A trial over the framework with this fault in it.
async fn begin(lab: &Lab, name: &str, plan: Plan) -> Fallible<Trial> {
    let plan = Plan {
        environment: vec![("IDEM_SEEDED".to_owned(), name.to_owned())],
        ..plan
    };
    Trial::begin(lab, "seeded", plan).await
}

/// Customers, and nothing that goes wrong.
async fn ordinary(lab: &Lab, name: &str) -> Fallible<Verdict> {
    let mut trial = begin(lab, name, Plan::default()).await?;
    let load = Load::start(&mut trial, &Mix::default());
    load.until_sent(&trial, SENT).await;
    load.stop().await;
    trial.end(Allowing::default()).await
}

/// As F3.
async fn cut(lab: &Lab, name: &str) -> Fallible<Verdict> {
    let mut trial = begin(lab, name, Plan::default()).await?;
    trial.proxy.set_rules(&cuts::around_commit());
    let load = Load::start(&mut trial, &Mix::default());
    load.until_sent(&trial, SENT).await;
    trial.proxy.set_rules(&[]);
    load.stop().await;
    trial.end(Allowing::default()).await
}

/// Duplicates at two instances, over a record table without its key.
async fn without_unique_key(lab: &Lab, name: &str) -> Fallible<Verdict> {
    let plan = Plan {
        instances: 2,
        ..Plan::default()
    };
    let mut trial = begin(lab, name, plan).await?;
    if !name.is_empty() {
        let drop = "ALTER TABLE idem.records DROP CONSTRAINT records_pkey";
        trial.database.execute(drop).await?;
    }
    let load = Load::start(&mut trial, &Mix::default());
    load.until_sent(&trial, SENT).await;
    load.stop().await;
    trial.end(Allowing::default()).await
}

/// Repeats before the end of a lifetime that began long after the transaction.
async fn end_of_lifetime(lab: &Lab, name: &str) -> Fallible<Verdict> {
    let mut trial = begin(lab, name, Plan::default()).await?;
    let requests: Vec<_> = (0..4)
        .map(|_| trial.fresh("/brief", Order::hesitating(600)))
        .collect();
    for pause in [0, 700] {
        sleep(Duration::from_millis(pause)).await;
        trial.history.fault("repeats within the lifetime");
        join_all(requests.iter().map(|request| trial.client.once(0, request))).await;
    }
    trial.end(Allowing::default()).await
}

/// As F14: handlers that are given up in the middle of their transaction.
async fn over_the_deadline(lab: &Lab, name: &str) -> Fallible<Verdict> {
    let mut trial = begin(lab, name, Plan::default()).await?;
    for _ in 0..4 {
        let request = trial.fresh("/hurried", Order::default());
        trial.history.fault("a sleep over the deadline");
        let steps = "x-after: [{\"sleep\": 400}]\r\n";
        trial.client.line(0).attempt_with(&request, steps).await;
    }
    trial.end(Allowing::default()).await
}

/// As F19, with so few customers that a worker is idle; until a stop has failed a request.
async fn graceful_stop(lab: &Lab, name: &str) -> Fallible<Verdict> {
    let mut trial = begin(lab, name, Plan::default()).await?;
    for _ in 0..24 {
        // Both workers open connections; who gets which is left to chance.
        let warm = 0..trial.rng.usize(6..13);
        let warm: Vec<_> = warm
            .map(|_| trial.fresh("/pay", Order::sleeping(20)))
            .collect();
        join_all(warm.iter().map(|request| trial.client.once(0, request))).await;
        let request = trial.fresh("/pay", Order::sleeping(500));
        let (client, sent) = (trial.client.clone(), request.clone());
        let running = tokio::spawn(async move { client.once(0, &sent).await });
        sleep(Duration::from_millis(100)).await;
        trial.history.fault("SIGTERM for the service");
        let terminated = trial.history.now();
        trial.signal(0, Signal::TERM)?;
        // What comes while the service drains is still at work when its workers stop; one of them is idle.
        // It writes once it has slept: a connection that breaks later is made good by another run.
        let late = trial.fresh("/pay", Order::hesitating(1200));
        trial.client.once(0, &late).await;
        running.await?;
        trial.ended(0).await?;
        trial.restart(0).await?;
        let failed = trial.failed_in_flight(terminated);
        if !failed.is_empty() {
            let what = format!("requests in flight at a graceful stop failed: {failed:?}");
            trial.expect(false, what);
            break;
        }
    }
    trial.end(Allowing::default()).await
}

/// As F23: limits rise while equal requests are refused by two instances.
async fn refusals(lab: &Lab, name: &str) -> Fallible<Verdict> {
    let plan = Plan {
        instances: 2,
        ..Plan::default()
    };
    let mut trial = begin(lab, name, plan).await?;
    let changing = handlers::changing_limits(&mut trial).await?;
    while trial.history.requests() < SENT {
        let keys: Vec<_> = (0..4).map(|_| trial.rng.fork()).collect();
        join_all(keys.into_iter().map(|rng| handlers::shuffled(&trial, rng))).await;
    }
    changing.abort();
    trial.end(Allowing::default()).await
}

/// As F16.
async fn bursts(lab: &Lab, name: &str) -> Fallible<Verdict> {
    let plan = Plan {
        instances: 2,
        pool: 8,
        ..Plan::default()
    };
    let mut trial = begin(lab, name, plan).await?;
    lifetimes::bursts(&mut trial, 16, Instant::now() + Duration::from_secs(7)).await;
    trial.end(Allowing::default()).await
}

/// As F20.
async fn own_rollback(lab: &Lab, name: &str) -> Fallible<Verdict> {
    let mut trial = begin(lab, name, Plan::default()).await?;
    for _ in 0..10 {
        let request = trial.fresh("/pay", Order::default());
        trial.history.fault("rolls back by itself");
        let steps = "x-after: [{\"sql\": \"ROLLBACK\"}]\r\n";
        let outcome: Outcome = trial.client.line(0).attempt_with(&request, steps).await;
        trial.expect(
            outcome.status() == Some(500),
            format!("a handler that rolls back by itself: {outcome:?}"),
        );
    }
    trial.end(Allowing::default()).await
}
