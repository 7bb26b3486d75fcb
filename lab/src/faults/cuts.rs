//! F3 and F4: what can happen on the way between service and database.

use tokio::time::sleep;

use super::{
    Lab,
    load::{Load, Mix},
    trial::{Allowing, Plan, Trial, Verdict},
};
use crate::{
    Fallible,
    rig::proxy::{At, Cut, Rule},
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
