//! Compares what clients were told with what the database holds: the invariants, one small function each.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use super::{
    history::{Attempt, Reply, Request},
    trial::Allowing,
};
use crate::{
    Fallible,
    rig::database::{Database, OPENING},
};

/// The lifetime of records of `/brief`; others live longer than any trial.
pub(crate) const BRIEF: Duration = Duration::from_secs(1);

/// Says what an invariant has been broken by.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    /// `I1` to `I12`, or what a fault checks by itself: a `rule`, or a `bound` of time.
    pub(crate) invariant: &'static str,
    /// Whose history shows it.
    pub(crate) key: Option<Identity>,
    pub(crate) what: String,
}

/// Names a logical operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Identity {
    pub(crate) scope: String,
    pub(crate) operation: String,
    pub(crate) key: String,
}

impl Identity {
    pub(crate) fn of(request: &Request) -> Self {
        Self {
            scope: request.scope.clone(),
            operation: format!("POST {}", request.path),
            // The quoted form is the same key.
            key: request.key.trim_matches('"').to_owned(),
        }
    }
}

impl Violation {
    pub(crate) fn new(invariant: &'static str, what: impl Into<String>) -> Self {
        Self {
            invariant,
            key: None,
            what: what.into(),
        }
    }

    pub(crate) fn of(invariant: &'static str, request: &Request, what: impl Into<String>) -> Self {
        Self::at(invariant, &Identity::of(request), what)
    }

    fn at(invariant: &'static str, key: &Identity, what: impl Into<String>) -> Self {
        Self {
            key: Some(key.clone()),
            ..Self::new(invariant, what)
        }
    }
}

/// Everything that can be known after a trial.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    pub(crate) attempts: Vec<Attempt>,
    effects: Vec<Effect>,
    records: Vec<Record>,
    /// Account, balance, moves.
    accounts: Vec<(i32, i64, i64)>,
    /// The attempts whose handler has begun.
    executed: HashSet<usize>,
}

#[derive(Debug)]
struct Effect {
    key: Identity,
    execution: String,
    payer: i32,
    payee: i32,
    amount: i64,
    began: SystemTime,
    written: SystemTime,
}

#[derive(Debug)]
struct Record {
    key: Identity,
    is_effect: bool,
    status: i16,
    body: Vec<u8>,
}

impl Evidence {
    /// Reads the tables, and what handlers have noted.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub(crate) async fn gather(
        database: &Database,
        attempts: Vec<Attempt>,
        executions: &Path,
    ) -> Fallible<Self> {
        let key = |row: &tokio_postgres::Row| Identity {
            scope: row.get("scope"),
            operation: row.get("operation"),
            key: row.get("key"),
        };
        let effects = database
            .query("SELECT *, execution::text AS name FROM effects")
            .await?;
        let effects = effects.iter().map(|row| Effect {
            key: key(row),
            execution: row.get("name"),
            payer: row.get("payer"),
            payee: row.get("payee"),
            amount: row.get("amount"),
            began: row.get("began"),
            written: row.get("written"),
        });
        let records = database.query("SELECT * FROM idem.records").await?;
        let records = records.iter().map(|row| Record {
            key: key(row),
            is_effect: row.get::<_, &[u8]>("request").is_empty(),
            status: row.get("status"),
            body: row.get("body"),
        });
        let accounts = database
            .query("SELECT id, balance, moves FROM accounts")
            .await?;
        let accounts = accounts
            .iter()
            .map(|row| (row.get(0), row.get(1), row.get(2)));
        Ok(Self {
            attempts,
            effects: effects.collect(),
            records: records.collect(),
            accounts: accounts.collect(),
            executed: executed(executions),
        })
    }
}

/// The attempts whose handler has begun.
pub(crate) fn executed(executions: &Path) -> HashSet<usize> {
    // Without any execution there is no file.
    let noted = fs::read_to_string(executions).unwrap_or_default();
    noted.lines().filter_map(|line| line.parse().ok()).collect()
}

/// What the comparison has brought.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) violations: Vec<Violation>,
    pub(crate) keys: usize,
    /// Acknowledged effects that a server which may lose them has lost.
    pub(crate) lost: usize,
}

/// Checks everything.
pub(crate) fn check(evidence: &Evidence, allowing: Allowing) -> Checked {
    let mut violations = Vec::new();
    let mut lost = 0;
    let keys = group(evidence);
    for (key, seen) in &keys {
        let found = match &*key.operation {
            "POST /brief" => many_lifetimes(seen),
            _ => one_lifetime(evidence, seen),
        };
        // A commit that the server lost took its record with it; then the key had another effect.
        let excused = |invariant: &str| {
            allowing.lossy && matches!(invariant, "I2" | "I3" | "I4" | "I8" | "I12")
        };
        let (excusable, found): (Vec<_>, Vec<_>) = found
            .into_iter()
            .partition(|(invariant, _)| excused(invariant));
        lost += usize::from(!excusable.is_empty());
        violations.extend(
            found
                .into_iter()
                .map(|(invariant, what)| Violation::at(invariant, key, what)),
        );
    }
    violations.extend(books(evidence));
    Checked {
        violations,
        keys: keys.len(),
        lost,
    }
}

/// What is known of one key.
#[derive(Debug, Default)]
struct Seen<'a> {
    attempts: Vec<(usize, &'a Attempt)>,
    effects: Vec<&'a Effect>,
    records: Vec<&'a Record>,
}

fn group(evidence: &Evidence) -> BTreeMap<Identity, Seen<'_>> {
    let mut keys: BTreeMap<Identity, Seen<'_>> = BTreeMap::new();
    for (number, attempt) in evidence.attempts.iter().enumerate() {
        let seen = keys.entry(Identity::of(&attempt.request)).or_default();
        seen.attempts.push((number, attempt));
    }
    for effect in &evidence.effects {
        keys.entry(effect.key.clone())
            .or_default()
            .effects
            .push(effect);
    }
    for record in &evidence.records {
        keys.entry(record.key.clone())
            .or_default()
            .records
            .push(record);
    }
    keys
}

type Broken = (&'static str, String);

/// A key within one lifetime: `absent`, then `done` with one answer.
#[allow(
    clippy::too_many_lines,
    reason = "one rule after the other, of one lifetime"
)]
fn one_lifetime(evidence: &Evidence, seen: &Seen<'_>) -> Vec<Broken> {
    let mut broken = Vec::new();
    let effect = match seen.effects.as_slice() {
        [] => None,
        [effect] => Some(*effect),
        several => {
            broken.push(("I1", format!("{} effects", several.len())));
            None
        }
    };
    let records: Vec<_> = seen
        .records
        .iter()
        .filter(|record| record.is_effect)
        .collect();
    let record = records.first();
    match (seen.effects.is_empty(), records.len()) {
        (true, 0) | (false, 1) => {}
        (true, _) => broken.push(("I5", "a record without its effect".to_owned())),
        (false, 0) => broken.push(("I5", "an effect without its record".to_owned())),
        (false, several) => broken.push(("I1", format!("{several} records of effects"))),
    }

    let answers = || {
        let attempts = seen.attempts.iter();
        attempts
            .filter_map(|(_, attempt)| attempt.answer().map(|(at, reply)| (*attempt, at, reply)))
    };
    for (attempt, _, reply) in answers().filter(|(.., reply)| is_effect(reply)) {
        if seen.effects.is_empty() {
            broken.push((
                "I2",
                format!("{} was acknowledged, and there is no effect", reply.status),
            ));
        } else if effect.is_some_and(|effect| reply.execution.as_ref() != Some(&effect.execution)) {
            broken.push((
                "I2",
                "another execution was acknowledged than the one that took effect".to_owned(),
            ));
        }
        if let Some(record) = record
            && (i32::from(record.status) != i32::from(reply.status) || record.body != reply.body)
        {
            broken.push((
                "I2",
                "another answer is stored than the one that was sent".to_owned(),
            ));
        }
        broken.extend(other_scope(attempt, reply));
    }
    broken.extend(same_answers(
        answers().map(|(attempt, _, reply)| (&*attempt.request, reply)),
    ));

    let first = answers()
        .filter(|(.., reply)| is_effect(reply))
        .min_by_key(|(_, at, _)| *at);
    if let Some((acknowledged, at, _)) = first {
        for (number, attempt) in seen
            .attempts
            .iter()
            .filter(|(_, attempt)| attempt.invoked > at)
        {
            if evidence.executed.contains(number) {
                broken.push((
                    "I8",
                    format!("attempt {number} executed after an acknowledgement"),
                ));
            }
            let status = attempt
                .returned
                .as_ref()
                .and_then(|(_, outcome)| outcome.status());
            let same = attempt.request.content() == acknowledged.request.content();
            match status {
                Some(409) if same && !overlapped(seen, attempt) => broken.push((
                    "I3",
                    format!("attempt {number} was told to wait after an acknowledgement"),
                )),
                Some(422) if same => broken.push((
                    "I3",
                    format!("attempt {number} was refused as another request"),
                )),
                Some(200..=399) if !same => broken.push((
                    "I4",
                    format!("attempt {number} has another request's answer"),
                )),
                _ => {}
            }
        }
    }
    // A refusal that was acknowledged never gains an effect.
    let refusals = answers().filter(|(.., reply)| !is_effect(reply));
    for (refused, at, _) in refusals {
        let later = seen
            .attempts
            .iter()
            .filter(|(_, attempt)| attempt.request.content() == refused.request.content());
        for (number, attempt) in later {
            if attempt.invoked > at && evidence.executed.contains(number) {
                broken.push(("I8", format!("attempt {number} executed after its refusal")));
            }
            if attempt.answer().is_some_and(|(_, reply)| is_effect(reply)) {
                broken.push((
                    "I12",
                    format!("attempt {number} has an effect, and its request was refused"),
                ));
            }
        }
    }
    broken
}

/// Whether another attempt of the same request was in flight meanwhile: then one may still be at work, in vain.
fn overlapped(seen: &Seen<'_>, attempt: &Attempt) -> bool {
    let Some((answered, _)) = &attempt.returned else {
        return true;
    };
    seen.attempts.iter().any(|(_, other)| {
        let ended = other.returned.as_ref().map(|(at, _)| *at);
        !std::ptr::eq(*other, attempt)
            && other.request.content() == attempt.request.content()
            && other.invoked < *answered
            && ended.is_none_or(|ended| ended > attempt.invoked)
    })
}

/// A key over several lifetimes: one effect in each.
fn many_lifetimes(seen: &Seen<'_>) -> Vec<Broken> {
    let mut broken = Vec::new();
    let mut effects = seen.effects.clone();
    effects.sort_by_key(|effect| effect.began);
    for pair in effects.windows(2) {
        if let [one, next] = pair
            && next.began < one.written + BRIEF
        {
            let early = (one.written + BRIEF).duration_since(next.began);
            broken.push((
                "I1",
                format!("an effect {early:?} before the last one's end"),
            ));
        }
    }
    let answers = seen
        .attempts
        .iter()
        .filter_map(|(_, attempt)| attempt.answer().map(|(_, reply)| (*attempt, reply)));
    let mut executions: HashMap<&str, Vec<&Reply>> = HashMap::new();
    for (attempt, reply) in answers.filter(|(_, reply)| is_effect(reply)) {
        broken.extend(other_scope(attempt, reply));
        let execution = reply.execution.as_deref().unwrap_or_default();
        if effects.iter().all(|effect| effect.execution != execution) {
            broken.push((
                "I2",
                "an execution was acknowledged that left no effect".to_owned(),
            ));
        }
        executions.entry(execution).or_default().push(reply);
    }
    let request = Request::default();
    for replies in executions.into_values() {
        broken.extend(same_answers(
            replies.into_iter().map(|reply| (&request, reply)),
        ));
    }
    broken
}

fn is_effect(reply: &Reply) -> bool {
    reply.status < 400
}

/// All final answers of one request are the same; at most one without the replay mark.
fn same_answers<'a>(answers: impl Iterator<Item = (&'a Request, &'a Reply)>) -> Vec<Broken> {
    let mut broken = Vec::new();
    let mut first: HashMap<_, (&Reply, usize)> = HashMap::new();
    for (request, reply) in answers {
        let (known, fresh) = first.entry(request.content()).or_insert((reply, 0));
        *fresh += usize::from(!reply.replayed);
        if (known.status, &known.body, &known.execution)
            != (reply.status, &reply.body, &reply.execution)
        {
            broken.push(("I3", "two answers to one request".to_owned()));
        }
    }
    for (_, fresh) in first.into_values() {
        if fresh > 1 {
            broken.push(("I3", format!("{fresh} answers without the replay mark")));
        }
    }
    broken
}

/// An answer never holds another scope's data.
fn other_scope(attempt: &Attempt, reply: &Reply) -> Option<Broken> {
    let body: serde_json::Value = serde_json::from_slice(&reply.body).ok()?;
    let caller = body.get("caller")?.as_str()?;
    (caller != attempt.request.scope).then(|| ("I9", format!("an answer for {caller}")))
}

/// Money and counts agree with the effects.
fn books(evidence: &Evidence) -> Vec<Violation> {
    let mut expected: HashMap<i32, (i64, i64)> = HashMap::new();
    for effect in &evidence.effects {
        let payer = expected.entry(effect.payer).or_default();
        *payer = (payer.0 - effect.amount, payer.1 + 1);
        expected.entry(effect.payee).or_default().0 += effect.amount;
    }
    let wrong = evidence.accounts.iter().filter(|(id, balance, moves)| {
        let (change, count) = expected.get(id).copied().unwrap_or_default();
        (OPENING + change, count) != (*balance, *moves)
    });
    wrong
        .map(|(id, balance, moves)| {
            Violation::new("I11", format!("account {id} holds {balance} after {moves} payments, which is not what the effects say"))
        })
        .collect()
}

#[cfg(test)]
mod tests;
