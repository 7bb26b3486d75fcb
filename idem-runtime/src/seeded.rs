//! Faults that the lab plants to see whether it notices them. No normal build contains this.

use std::{env, sync::LazyLock, time::Duration};

use crate::model::{FingerprintInput, Scope};

/// Names the one fault of this process; the variable is read once.
static PLANTED: LazyLock<String> = LazyLock::new(|| env::var("IDEM_SEEDED").unwrap_or_default());

/// Whether this is the fault of this process.
pub(crate) fn is(name: &str) -> bool {
    *PLANTED == name
}

/// How long some faults dawdle between two steps, so that others come in between.
pub(crate) const GAP: Duration = Duration::from_millis(20);

const GUARD_OF_EXECUTION: &str = "CASE WHEN pg_catalog.now() = $9";
const GUARD_OF_REFUSAL: &str = "CASE WHEN NOT EXISTS";
const LOCK: &str = "pg_catalog.pg_try_advisory_xact_lock($1) AS locked";
const SLOW_LOCK: &str =
    "pg_catalog.pg_sleep(0.02), pg_catalog.pg_try_advisory_xact_lock($1) AS locked";

/// Breaks what tells owners apart.
pub(crate) fn scope(scope: Scope) -> Scope {
    if is("scope-dropped") {
        Scope::global()
    } else {
        scope
    }
}

/// Breaks what tells requests apart.
pub(crate) fn input(mut input: FingerprintInput<'_>) -> FingerprintInput<'_> {
    if is("query-ignored") {
        input.query = "";
    }
    input
}

/// Breaks a statement.
pub(crate) fn sql(text: &str) -> String {
    let swap = |old: &str, new: &str| text.replace(old, new);
    match &**PLANTED {
        "record-after-commit" | "own-rollback-unnoticed" => {
            swap(GUARD_OF_EXECUTION, "CASE WHEN $9 IS NOT NULL")
        }
        "select-then-insert" => swap(LOCK, "$1::bigint IS NOT NULL AS locked"),
        "refusal-without-claim" => swap(GUARD_OF_REFUSAL, "CASE WHEN true OR NOT EXISTS"),
        "expiry-by-now" => swap(
            "pg_catalog.clock_timestamp() + $10",
            "pg_catalog.now() + $10",
        ),
        "expired-deleted-blindly"
            if text.contains("DELETE FROM idem.records") && text.contains("$4") =>
        {
            swap("AND expires_at <= pg_catalog.clock_timestamp()", "")
        }
        // The same delay alone is no fault.
        "expired-deleted-blindly" | "slow-lock" => swap(LOCK, SLOW_LOCK),
        _ => text.to_owned(),
    }
}
