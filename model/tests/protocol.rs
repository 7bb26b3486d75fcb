//! The protocol keeps its promise in every interleaving within small bounds, and a rule that is left out breaks it.

use std::collections::BTreeSet;

use idem_model::{
    Level::{self, Committed, Repeatable},
    Protocol,
    Request::{self, A, B},
    Without, settle,
};
use stateright::{Checker, HasDiscoveries, Model};

const ONE_EFFECT: &str = "at most one effect a lifetime";
const REFUSAL: &str = "an acknowledged refusal never gains an effect";
const EFFECT: &str = "an acknowledged effect is answered for the whole lifetime";
const ONE_ANSWER: &str = "no two different final answers to one request";

fn pair(one: Request, two: Request, level: Level, expiries: usize) -> Protocol {
    Protocol::new(&[(one, level), (two, level)], expiries)
}

/// Explores everything. The least number of states is there so that a model that stops early, or
/// in which nothing can happen, is noticed.
fn holds(protocol: &Protocol, at_least: usize) {
    let checked = protocol.clone().checker().spawn_bfs().join();
    checked.assert_properties();
    assert!(checked.unique_state_count() >= at_least);

    let settling = settle(protocol);
    assert_eq!(settling.states, checked.unique_state_count());
    assert!(settling.settled > 0);
    assert_eq!(settling.stuck_on_success, 0);
    assert_eq!(settling.stuck_on_refusal, 0);
}

/// Searches until this one property is seen broken.
fn breaks(protocol: Protocol, property: &'static str) {
    let found = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checked = protocol.checker().finish_when(found).spawn_bfs().join();
    checked.assert_any_discovery(property);
}

/// Explores everything, and expects these properties broken and no others.
fn breaks_only(protocol: Protocol, broken: &[&'static str]) {
    let checked = protocol.checker().spawn_bfs().join();
    let found: BTreeSet<_> = checked.discoveries().into_keys().collect();
    assert_eq!(found, broken.iter().copied().collect());
}

#[test]
fn duplicates_have_one_answer() {
    holds(&pair(A, A, Committed, 1), 90_000);
}

#[test]
fn duplicates_have_one_answer_with_one_snapshot_a_transaction() {
    holds(&pair(A, A, Repeatable, 1), 70_000);
}

#[test]
fn duplicates_at_different_levels_have_one_answer() {
    holds(
        &Protocol::new(&[(A, Committed), (A, Repeatable)], 1),
        180_000,
    );
}

#[test]
fn two_requests_under_one_key_have_one_effect() {
    holds(&pair(A, B, Committed, 0), 25_000);
}

#[test]
fn two_requests_under_one_key_have_one_effect_with_one_snapshot_a_transaction() {
    holds(&pair(A, B, Repeatable, 0), 29_000);
}

#[test]
fn three_duplicates_have_one_answer() {
    holds(&Protocol::new(&[(A, Committed); 3], 0), 20_000);
}

#[test]
fn without_the_lock_there_is_one_effect_but_refusals_lie() {
    breaks_only(
        pair(A, A, Committed, 0).without(Without::Lock),
        &[REFUSAL, EFFECT, ONE_ANSWER],
    );
    breaks_only(
        pair(A, A, Repeatable, 0).without(Without::Lock),
        &[REFUSAL, EFFECT, ONE_ANSWER],
    );
}

#[test]
fn without_the_guard_an_effect_comes_beside_a_refusal() {
    breaks_only(
        pair(A, A, Committed, 0).without(Without::Guard),
        &[REFUSAL, EFFECT, ONE_ANSWER],
    );
}

#[test]
fn without_the_guard_a_refusal_comes_behind_anothers_effect() {
    breaks(pair(A, B, Committed, 0).without(Without::Guard), ONE_ANSWER);
}

#[test]
fn without_the_mark_an_effect_comes_beside_a_refusal() {
    breaks_only(
        pair(A, A, Repeatable, 0).without(Without::Mark),
        &[REFUSAL, EFFECT, ONE_ANSWER],
    );
}

#[test]
fn without_the_unique_key_there_are_two_effects() {
    breaks(
        pair(A, A, Committed, 0).without(Without::UniqueKey),
        ONE_EFFECT,
    );
    breaks(
        pair(A, A, Repeatable, 0).without(Without::UniqueKey),
        ONE_EFFECT,
    );
}

#[test]
fn without_the_expiry_predicate_a_fresh_effect_is_deleted_and_comes_again() {
    breaks(
        pair(A, A, Committed, 1).without(Without::Predicate),
        ONE_EFFECT,
    );
}

#[test]
fn without_the_second_claim_a_refusal_comes_beside_an_effect() {
    breaks_only(
        pair(A, A, Committed, 0).without(Without::SecondClaim),
        &[REFUSAL, EFFECT, ONE_ANSWER],
    );
}

#[test]
fn without_read_committed_a_refusal_does_not_see_the_effect() {
    breaks_only(
        pair(A, A, Repeatable, 0).without(Without::RefusalLevel),
        &[REFUSAL, EFFECT, ONE_ANSWER],
    );
}

#[test]
fn without_clearing_an_expired_record_is_in_the_way_for_ever() {
    let settling = settle(
        &pair(A, A, Committed, 1)
            .unswept()
            .without(Without::Clearing),
    );
    assert!(settling.stuck_on_success > 0);
    assert!(settling.stuck_on_refusal > 0);
}

#[test]
fn without_fences_a_vanished_process_keeps_its_key() {
    let settling = settle(&pair(A, A, Committed, 0).without(Without::Fences));
    assert!(settling.stuck_on_success > 0);
    assert!(settling.stuck_on_refusal > 0);
}
