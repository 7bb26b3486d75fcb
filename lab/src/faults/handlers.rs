//! F14, F20, F21 and F23: handlers that panic, misbehave, meet conflicts, and refuse.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tokio::{task::JoinHandle, time::sleep};
use tokio_postgres::types::ToSql;

use super::{
    Lab,
    history::{Outcome, Request},
    load::{Load, Mix, body},
    trial::{Allowing, MARK, Plan, Trial, Verdict},
};
use crate::{
    Fallible,
    rig::{
        database::ACCOUNTS,
        proxy::{At, Cut, Rule},
    },
    service::{Order, Step},
};

/// F14: panics in the handler, in an extractor and while the answer is made; and a handler over its deadline.
pub(super) async fn panics(lab: &Lab) -> Fallible<Verdict> {
    let mut trial = Trial::begin(lab, "F14", Plan::default()).await?;
    let faults = [
        (
            "a panic in the handler",
            "/pay",
            "x-after: [\"panic\"]\r\n",
            500,
        ),
        (
            "a panic before the writes",
            "/pay",
            "x-before: [\"panic\"]\r\n",
            500,
        ),
        ("a panic in an extractor", "/pay", "x-panic: 1\r\n", 500),
        (
            "a panic while the answer is made",
            "/pay",
            "x-after: [\"panic_in_answer\"]\r\n",
            500,
        ),
        (
            "a sleep over the deadline",
            "/hurried",
            "x-after: [{\"sleep\": 400}]\r\n",
            503,
        ),
        (
            "a statement over the deadline",
            "/hurried",
            "x-after: [{\"sql\": \"SELECT pg_sleep(0.6)\"}]\r\n",
            503,
        ),
    ];
    for _ in 0..lab.times(8, 100) {
        let requests = faults.map(|(name, path, lines, status)| {
            (name, lines, status, trial.fresh(path, Order::default()))
        });
        let client = &trial.client;
        let struck = requests.iter().map(async |(name, lines, status, request)| {
            client.history.fault(name);
            let outcome = client.line(0).attempt_with(request, lines).await;
            (outcome.status() != Some(*status)).then(|| format!("{name}: {outcome:?}"))
        });
        let wrong: Vec<_> = join_all(struck).await.into_iter().flatten().collect();
        trial.expect(wrong.is_empty(), wrong.join("; "));
        let keys = requests
            .map(|(.., request)| format!("'{}'", request.key))
            .join(", ");
        let effects = format!("SELECT count(*) FROM effects WHERE key IN ({keys})");
        let effects = trial.database.number(&effects).await?;
        trial.expect(
            effects == 0,
            format!("{effects} effects of handlers that gave no answer"),
        );
    }
    trial.end(Allowing::default()).await
}

/// What a handler does wrong, and what has to come of it.
struct Misbehaviour {
    name: &'static str,
    lines: &'static str,
    /// The answers that may come of it; one of 2xx has its effect, any other none.
    statuses: &'static [u16],
    /// What the log has to say about it.
    log: &'static str,
}

const MISBEHAVIOURS: [Misbehaviour; 9] = [
    Misbehaviour {
        name: "swallows an SQL error",
        lines: "x-after: [{\"try\": \"SELECT 1/0\"}]\r\n",
        statuses: &[500],
        log: "a SQL statement of the handler failed",
    },
    Misbehaviour {
        name: "rolls back by itself",
        lines: "x-after: [{\"sql\": \"ROLLBACK\"}]\r\n",
        statuses: &[500],
        log: "the handler ended the transaction by itself",
    },
    Misbehaviour {
        name: "rolls back and begins anew",
        lines: "x-after: [{\"sql\": \"ROLLBACK; BEGIN\"}]\r\n",
        statuses: &[500],
        log: "the handler ended the transaction by itself",
    },
    Misbehaviour {
        name: "commits and begins anew before its work",
        lines: "x-before: [{\"sql\": \"COMMIT; BEGIN\"}]\r\n",
        statuses: &[500],
        log: "the handler ended the transaction by itself",
    },
    Misbehaviour {
        name: "leaks an open row stream",
        lines: "x-after: [\"leak_stream\"]\r\n",
        // Whether what nobody reads holds up what comes after it depends on how many pieces it arrives in.
        statuses: &[201, 503],
        log: "",
    },
    Misbehaviour {
        name: "takes a second connection",
        lines: "x-after: [\"second_connection\"]\r\n",
        statuses: &[503],
        log: "",
    },
    Misbehaviour {
        name: "streams its answer",
        lines: "x-after: [\"stream\"]\r\n",
        statuses: &[201],
        log: "",
    },
    Misbehaviour {
        name: "answers 10 MB",
        lines: "x-after: [{\"long\": 10000000}]\r\n",
        statuses: &[500],
        log: "longer than `max_response`",
    },
    Misbehaviour {
        name: "sets cookies",
        lines: "x-after: [\"cookies\"]\r\n",
        statuses: &[201],
        log: "",
    },
];

/// F20: handlers that misbehave, over a pool of one connection.
pub(super) async fn misbehaviour(lab: &Lab) -> Fallible<Verdict> {
    let plan = Plan {
        pool: 1,
        pool_wait: Duration::from_millis(500),
        ..Plan::default()
    };
    let mut trial = Trial::begin(lab, "F20", plan).await?;
    for _ in 0..lab.times(4, 40) {
        for Misbehaviour {
            name,
            lines,
            statuses,
            log,
        } in MISBEHAVIOURS
        {
            let request = trial.fresh("/pay", Order::default());
            let logged = trial.log(0).matches(log).count();
            trial.history.fault(name);
            let outcome = trial.client.line(0).attempt_with(&request, lines).await;
            let status = outcome.status();
            trial.expect(
                status.is_some_and(|status| statuses.contains(&status)),
                format!("a handler that {name}: {outcome:?}"),
            );
            trial.expect(
                log.is_empty() || trial.log(0).matches(log).count() > logged,
                format!("a handler that {name}: the log does not say `{log}`"),
            );
            let effects = format!("SELECT count(*) FROM effects WHERE key = '{}'", request.key);
            let effects = trial.database.number(&effects).await?;
            trial.expect(
                effects == i64::from(status == Some(201)),
                format!("a handler that {name}: {effects} effects"),
            );
        }
        committed_by_itself(&mut trial).await?;
    }
    trial.end(Allowing::default()).await
}

/// What a handler has committed by itself stays, as the documentation says; but it is told, and nothing is recorded.
async fn committed_by_itself(trial: &mut Trial) -> Fallible<()> {
    let mut request = Request::clone(&*trial.fresh("/pay", Order::default()));
    request.body = body(&Order::default()); // Moves nothing.
    let request = Arc::new(request);
    trial.history.fault("commits by itself");
    let outcome = trial
        .client
        .line(0)
        .attempt_with(&request, "x-after: [{\"sql\": \"COMMIT\"}]\r\n")
        .await;
    trial.expect(
        outcome.status() == Some(500),
        format!("a handler that commits by itself: {outcome:?}"),
    );
    let there = format!(
        "SELECT (SELECT count(*) FROM effects WHERE key = '{0}') * 10 + (SELECT count(*) FROM idem.records WHERE key = '{0}')",
        request.key
    );
    let there = trial.database.number(&there).await?;
    trial.expect(
        there == 10,
        format!("a handler that commits by itself leaves effects and records {there}"),
    );
    let undo = format!(
        "DELETE FROM effects WHERE key = '{}'; UPDATE accounts SET moves = moves - 1 WHERE id = 0",
        request.key
    );
    trial.database.execute(&undo).await
}

/// F21: serialisation failures and deadlocks in statements and at COMMIT, and constraints that fail at COMMIT.
pub(super) async fn conflicts(lab: &Lab) -> Fallible<Verdict> {
    let mut trial = Trial::begin(lab, "F21", Plan::default()).await?;
    for path in ["/pay", "/serializable"] {
        let mix = Mix {
            path,
            crowded: true,
            after: |rng| match rng.u8(0..8) {
                0 => vec![Step::Sleep(1)],
                _ => Vec::new(),
            },
            ..Mix::default()
        };
        let load = Load::start(&mut trial, &mix);
        let end = Instant::now() + lab.time(3.0, 40.0);
        while Instant::now() < end {
            let request = trial.fresh(path, Order::default());
            trial.history.fault("a constraint that fails at COMMIT");
            let orphan = "x-after: [{\"sql\": \"INSERT INTO children VALUES (1)\"}]\r\n";
            let outcome = trial.client.line(0).attempt_with(&request, orphan).await;
            let refused = matches!(outcome.status(), Some(500 | 503));
            trial.expect(
                refused,
                format!("a constraint failed at COMMIT: {outcome:?}"),
            );
            sleep(Duration::from_millis(20)).await;
        }
        load.stop().await;
    }
    // A sequence is not rolled back: what is missing are runs that conflicts have undone.
    let runs = trial
        .database
        .number("SELECT last_value FROM effects_id_seq")
        .await?;
    let effects = trial
        .database
        .number("SELECT count(*) FROM effects")
        .await?;
    let constraints = i64::try_from(trial.history.faults())?;
    let undone = runs - effects - constraints;
    for _ in 0..undone {
        trial.history.fault("a conflict");
    }
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let deadlocks = trial.database.number(deadlocks).await?;
    trial.expect(
        undone > deadlocks && deadlocks > 0,
        format!("{undone} runs were undone, {deadlocks} by deadlocks"),
    );
    trial.note(format!("{undone} runs undone by conflicts, {deadlocks} of them by deadlocks, {constraints} by constraints"));
    trial.end(Allowing::default()).await
}

/// F23: refused, corrected and late duplicate requests under one key, shuffled, while limits change, and while the
/// connection is cut between a refusal's rollback and its record.
pub(super) async fn refusals(lab: &Lab) -> Fallible<Verdict> {
    let plan = Plan {
        instances: 2,
        ..Plan::default()
    };
    let mut trial = Trial::begin(lab, "F23", plan).await?;
    let rule = |at, cut, chance| Rule { at, cut, chance };
    trial.proxy.set_rules(&[
        rule(At::Rollback, Cut::Before, 0.02),
        rule(At::Rollback, Cut::After, 0.04),
        rule(At::Rollback, Cut::Answer(0), 0.02),
        rule(At::Rollback, Cut::Answer(13), 0.02),
        rule(At::Commit, Cut::After, 0.02),
        rule(At::Commit, Cut::Answer(0), 0.02),
    ]);
    let changing = changing_limits(&mut trial).await?;
    let end = Instant::now() + lab.time(6.0, 90.0);
    while Instant::now() < end {
        let keys: Vec<_> = (0..8).map(|_| trial.rng.fork()).collect();
        join_all(keys.into_iter().map(|rng| shuffled(&trial, rng))).await;
    }
    changing.abort();
    trial.proxy.set_rules(&[]);
    trial
        .database
        .execute("UPDATE limits SET amount = 1000")
        .await?;
    trial.end(Allowing::default()).await
}

/// Raises and lowers limits, until the task is aborted.
pub(super) async fn changing_limits(trial: &mut Trial) -> Fallible<JoinHandle<()>> {
    let history = trial.history.clone();
    let limits = trial.database.connect().await?;
    let mut rng = trial.rng.fork();
    Ok(tokio::spawn(async move {
        let change = "UPDATE limits SET amount = $1 WHERE id % 2 = $2";
        loop {
            let (half, limit) = (rng.bool(), if rng.bool() { 0 } else { 5000 });
            let parameters: [&(dyn ToSql + Sync); 2] = [&i64::from(limit), &i32::from(half)];
            if limits.execute(change, &parameters).await.is_ok() {
                history.fault("limits change");
            }
            sleep(Duration::from_millis(rng.u64(1..6))).await;
        }
    }))
}

/// One key: two requests and a correction, each sent several times, in any order, by several clients.
pub(super) async fn shuffled(trial: &Trial, mut rng: fastrand::Rng) {
    let payer = rng.i32(0..ACCOUNTS);
    let (scope, key) = (
        format!("{MARK}-scope"),
        format!("{MARK}-key-{:016x}", rng.u64(..)),
    );
    let requests = [4000, 3000, 1].map(|amount| {
        Arc::new(Request {
            path: "/pay",
            query: "",
            scope: scope.clone(),
            key: key.clone(),
            body: body(&Order {
                payer,
                payee: (payer + 1) % ACCOUNTS,
                amount,
                before: vec![Step::Limit, Step::Sleep(rng.u64(0..3))],
                ..Order::default()
            }),
        })
    });
    let mut sent: Vec<_> = requests
        .iter()
        .flat_map(|request| vec![Arc::clone(request); 3])
        .collect();
    rng.shuffle(&mut sent);
    let clients = sent.chunks(3).map(|sent| {
        let mut rng = rng.fork();
        async move {
            for request in sent {
                let outcome: Outcome = trial.client.once(rng.usize(..), request).await;
                if !outcome.is_settled() {
                    sleep(Duration::from_millis(rng.u64(1..10))).await;
                }
            }
        }
    });
    join_all(clients.collect::<Vec<_>>()).await;
}
