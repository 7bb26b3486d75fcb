//! What has to hold at every moment, by the names that reports give it.

use crate::{
    database::Kind,
    protocol::Protocol,
    state::{Answer, State},
};

/// Says whether a property holds in a state.
pub(crate) type Holds = fn(&Protocol, &State) -> bool;

/// All properties of safety.
pub(crate) const ALL: [(&str, Holds); 4] = [
    ("at most one effect a lifetime", one_effect),
    (
        "an acknowledged refusal never gains an effect",
        refusals_are_final,
    ),
    (
        "an acknowledged effect is answered for the whole lifetime",
        effects_are_answered,
    ),
    ("no two different final answers to one request", one_answer),
];

fn one_effect(_: &Protocol, state: &State) -> bool {
    !overlapping(state, |one, two| {
        one.kind == Kind::Effect && two.kind == Kind::Effect
    })
}

fn refusals_are_final(_: &Protocol, state: &State) -> bool {
    let gains = |refusal: &Answer, effect: &Answer| {
        refusal.kind == Kind::Refusal
            && refusal.is_told()
            && effect.kind == Kind::Effect
            && effect.request == refusal.request
    };
    !overlapping(state, |one, two| gains(one, two) || gains(two, one))
}

/// An answer from an earlier lifetime may still be on its way when the next one begins.
fn effects_are_answered(_: &Protocol, state: &State) -> bool {
    !state.forgotten
        && !overlapping(state, |one, two| {
            let answers = one.request == two.request && one.is_told() && two.is_told();
            answers && (one.kind == Kind::Effect || two.kind == Kind::Effect)
        })
}

/// A 422 is an answer too: once told, its request must not be told a later refusal.
fn one_answer(_: &Protocol, state: &State) -> bool {
    !state.misdenied
        && !overlapping(state, |one, two| {
            one.is_told_to(two.request) && two.is_told()
        })
}

/// Whether two records live at the same time of which this is true, the older one first.
fn overlapping(state: &State, is: impl Fn(&Answer, &Answer) -> bool) -> bool {
    state.answers.iter().any(|two| {
        state
            .answers
            .iter()
            .enumerate()
            .any(|(number, one)| two.beside.has(number) && is(one, two))
    })
}
