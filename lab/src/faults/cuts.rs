//! F3 and F4: what can happen on the way between service and database.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::{
    Lab,
    load::{Load, Mix},
    trial::{Allowing, Plan, Trial, Verdict},
};
use crate::{
    Fallible,
    rig::{
        database::{LOCKS, SERVICE_SESSIONS},
        proxy::{At, Cut, Rule, Traffic},
    },
};

/// F3: the connection is cut before COMMIT is forwarded, right after, and after each part of its answer; sometimes
/// around the claim's BEGIN and a refusal's ROLLBACK too.
pub(super) async fn commit_cut(lab: &Lab) -> Fallible<Verdict> {
    let mut trial = Trial::begin(lab, "F3", Plan::default()).await?;
    let load = Load::start(&mut trial, &Mix::default());
    trial.proxy.set_rules(&around_commit());
    sleep(lab.time(7.0, 120.0)).await;
    trial.proxy.set_rules(&[]);
    load.stop().await;
    trial.end(Allowing::default()).await
}

/// F4: the network between service and database swallows everything, now and then for longer than any deadline; then
/// the server has to let go of the keys by itself.
pub(super) async fn black_hole(lab: &Lab) -> Fallible<Verdict> {
    let plan = Plan {
        database_timeout: Duration::from_millis(500),
        ..Plan::default()
    };
    let sessions = u32::try_from(plan.pool)?;
    let mut trial = Trial::begin(lab, "F4", plan).await?;
    let mix = Mix {
        path: "/hurried",
        ..Mix::default()
    };
    let load = Load::start(&mut trial, &mix);
    let end = Instant::now() + lab.time(7.0, 90.0);
    // The handler's 300 ms and twice the database timeout, as the transaction's fence says, and some room.
    let fence = Duration::from_millis(300 + 2 * 500 + 500);
    for count in 0.. {
        sleep(Duration::from_millis(trial.rng.u64(100..500))).await;
        trial.history.fault("black hole");
        trial.proxy.set_traffic(Traffic::Vanishes);
        if count % 3 == 0 {
            // A session that waited for another one's rows begins its own time when that one has ended: at worst
            // all of them wait in a row.
            let limit = fence * sessions;
            let released = format!(
                "SELECT NOT EXISTS (SELECT FROM {LOCKS}) AND NOT EXISTS (SELECT FROM {SERVICE_SESSIONS} AND state <> 'idle')"
            );
            let released = trial.database.until(&released, limit).await;
            trial.expect_in_time(
                released.is_ok(),
                format!("locks and sessions are still held after {limit:?} in a black hole"),
            );
        } else {
            sleep(Duration::from_millis(trial.rng.u64(20..700))).await;
        }
        trial.proxy.set_traffic(Traffic::Flows);
        if Instant::now() > end {
            break;
        }
    }
    load.stop().await;
    trial.end(Allowing::default()).await
}

/// Cuts about every fourth transaction.
pub(super) fn around_commit() -> Vec<Rule> {
    let rule = |at, cut, chance| Rule { at, cut, chance };
    let mut rules = vec![
        rule(At::Commit, Cut::Before, 0.06),
        rule(At::Commit, Cut::After, 0.06),
        rule(At::Begin, Cut::After, 0.01),
        rule(At::Begin, Cut::Answer(40), 0.01),
        rule(At::Rollback, Cut::Before, 0.05),
        rule(At::Rollback, Cut::After, 0.05),
        rule(At::Rollback, Cut::Answer(0), 0.05),
    ];
    // `CommandComplete` has 12 bytes, `ReadyForQuery` 6.
    for bytes in [0, 1, 5, 11, 12, 17] {
        rules.push(rule(At::Commit, Cut::Answer(bytes), 0.02));
    }
    rules
}
