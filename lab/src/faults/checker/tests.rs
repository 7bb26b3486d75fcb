//! Small histories, each with one thing that is not as it should be.

use std::sync::Arc;

use super::{super::history::Outcome, *};

/// A history that is put together attempt by attempt, and what the database holds after it.
#[derive(Default)]
struct Story {
    evidence: Evidence,
}

impl Story {
    /// An attempt of the request with this body, its time in milliseconds, and its answer.
    fn attempt(mut self, body: &str, from: u64, to: u64, reply: Reply) -> Self {
        let request = Request {
            path: "/pay",
            scope: "scope".to_owned(),
            key: "key".to_owned(),
            body: body.to_owned(),
            ..Request::default()
        };
        self.evidence.attempts.push(Attempt {
            request: Arc::new(request),
            invoked: Duration::from_millis(from),
            returned: Some((Duration::from_millis(to), Outcome::Answer(reply))),
        });
        self
    }

    /// The last attempt has executed.
    fn executed(mut self) -> Self {
        let last = self.evidence.attempts.len() - 1;
        self.evidence.executed.insert(last);
        self
    }

    fn effect(mut self, execution: &str) -> Self {
        self.evidence.effects.push(Effect {
            key: identity(),
            execution: execution.to_owned(),
            payer: 1,
            payee: 2,
            amount: 5,
            began: SystemTime::UNIX_EPOCH,
            written: SystemTime::UNIX_EPOCH,
        });
        self
    }

    fn record(mut self, status: i16, body: &str) -> Self {
        self.evidence.records.push(Record {
            key: identity(),
            is_effect: status < 400,
            status,
            body: body.as_bytes().to_vec(),
        });
        self
    }

    /// The invariants that are broken, each once.
    fn broken(&self) -> Vec<&'static str> {
        let checked = check(&self.evidence, Allowing::default());
        let mut broken: Vec<_> = checked
            .violations
            .iter()
            .map(|violation| violation.invariant)
            .collect();
        broken.sort_unstable();
        broken.dedup();
        broken
    }
}

fn identity() -> Identity {
    Identity {
        scope: "scope".to_owned(),
        operation: "POST /pay".to_owned(),
        key: "key".to_owned(),
    }
}

fn reply(status: u16, replayed: bool, execution: &str) -> Reply {
    Reply {
        status,
        replayed,
        execution: Some(execution.to_owned()).filter(|execution| !execution.is_empty()),
        body: execution.as_bytes().to_vec(),
    }
}

/// One request, its effect, and a repeat of its answer.
fn sound() -> Story {
    Story::default()
        .attempt("a", 0, 10, reply(201, false, "x"))
        .executed()
        .attempt("a", 20, 30, reply(201, true, "x"))
        .effect("x")
        .record(201, "x")
}

#[test]
fn what_is_as_it_should_be_breaks_nothing() {
    assert!(sound().broken().is_empty());
    let corrected = Story::default()
        .attempt("a", 0, 10, reply(402, false, ""))
        .executed()
        .attempt("b", 20, 30, reply(201, false, "x"))
        .executed()
        .attempt("a", 40, 50, reply(402, true, ""))
        .attempt("c", 40, 50, reply(422, false, ""))
        .effect("x")
        .record(402, "")
        .record(201, "x");
    assert!(corrected.broken().is_empty(), "{:?}", corrected.broken());
}

#[test]
fn second_effect_is_a_duplicate() {
    assert_eq!(sound().effect("y").broken(), ["I1"]);
}

#[test]
fn acknowledgement_without_an_effect_is_lost() {
    let lost = Story::default().attempt("a", 0, 10, reply(201, false, "x"));
    assert_eq!(lost.broken(), ["I2"]);
}

#[test]
fn stored_answer_has_to_be_the_one_that_was_sent() {
    let other = Story::default()
        .attempt("a", 0, 10, reply(201, false, "x"))
        .effect("x")
        .record(201, "y");
    assert_eq!(other.broken(), ["I2"]);
}

#[test]
fn effect_and_record_stand_together() {
    assert_eq!(Story::default().effect("x").broken(), ["I5"]);
    assert_eq!(Story::default().record(201, "x").broken(), ["I5"]);
}

#[test]
fn one_answer_alone_comes_without_the_mark() {
    let twice = sound().attempt("a", 40, 50, reply(201, false, "x"));
    assert_eq!(twice.broken(), ["I3"]);
}

#[test]
fn nothing_executes_or_waits_after_an_acknowledgement() {
    let again = sound()
        .attempt("a", 40, 50, reply(503, false, ""))
        .executed();
    assert_eq!(again.broken(), ["I8"]);
    let told_to_wait = sound().attempt("a", 40, 50, reply(409, false, ""));
    assert_eq!(told_to_wait.broken(), ["I3"]);
    // While another one is at work, in vain.
    let beside = sound().attempt("a", 5, 60, reply(201, true, "x")).attempt(
        "a",
        40,
        50,
        reply(409, false, ""),
    );
    assert!(beside.broken().is_empty());
}

#[test]
fn another_request_never_gets_the_answer() {
    let other = sound().attempt("b", 40, 50, reply(201, true, "x"));
    assert_eq!(other.broken(), ["I4"]);
}

#[test]
fn refusal_that_was_acknowledged_never_gains_an_effect() {
    let gained = Story::default()
        .attempt("a", 0, 10, reply(402, false, ""))
        .attempt("a", 20, 30, reply(201, true, "x"))
        .effect("x")
        .record(201, "x");
    assert_eq!(gained.broken(), ["I12", "I3"]);
}

#[test]
fn answer_for_another_scope_is_noticed() {
    let mut foreign = reply(201, true, "x");
    foreign.body = br#"{"caller":"other"}"#.to_vec();
    let told = Story::default()
        .attempt("a", 0, 10, foreign)
        .effect("x")
        .record(201, r#"{"caller":"other"}"#);
    assert_eq!(told.broken(), ["I9"]);
}

#[test]
fn books_have_to_agree_with_the_effects() {
    let mut story = sound();
    story.evidence.accounts = vec![(1, OPENING - 5, 1), (2, OPENING + 5, 0), (3, OPENING, 0)];
    assert!(story.broken().is_empty());
    story.evidence.accounts = vec![(1, OPENING - 5, 1), (2, OPENING + 4, 0)];
    assert_eq!(story.broken(), ["I11"]);
}

#[test]
fn effect_before_the_end_of_a_lifetime_is_a_duplicate() {
    let mut story = Story::default().effect("x").effect("y");
    for effect in &mut story.evidence.effects {
        effect.key.operation = "POST /brief".to_owned();
    }
    assert_eq!(story.broken(), ["I1"]);
    if let Some(next) = story.evidence.effects.last_mut() {
        next.began += BRIEF;
    }
    assert!(story.broken().is_empty());
}
