//! The life of a guarded request: claim, decide, run, keep.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    backend::{self, Backend, Call, Claimed, Entry, KeepError, Open, Session},
    cache::{Cache, Since},
    error::StoreError,
    gate::{Entered, Gate, Pass, State, Verdict},
    meter::{self, Cause, Flight, timed},
    model::{Decision, Fate, Fingerprint, Found, Kind, Record, Snapshot, decide},
};

/// How often a handler runs for one request before the answer is 503.
const RUNS: u32 = 3;

/// How long a request in doubt waits for the old transaction to end.
const RESOLVE: Duration = Duration::from_secs(5);

/// Runs the user's handler; the layer above knows how.
pub(crate) trait Handler<O> {
    /// Runs it once inside the open transaction.
    /// In its last run, an error that asks for another one is an answer like any other.
    fn run(&mut self, open: &mut O, last: bool) -> impl Future<Output = Ran>;

    /// Whether anybody still waits for the answer.
    fn is_wanted(&self) -> bool;
}

/// Says how one run of the handler ended.
#[derive(Debug)]
pub(crate) enum Ran {
    /// Its writes are to be committed with this answer.
    Commit(Snapshot),
    /// Its writes are to be rolled back, and this answer stored.
    Refuse(Snapshot),
    /// Its writes are to be rolled back, and the answer passed on.
    Release,
    /// Its error says that a new run may succeed.
    Again,
    /// It gave no answer that can be used.
    Failed(Mistake),
}

/// Says what was wrong with the handler; the text is for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Mistake {
    #[error("the handler panicked")]
    Panicked,
    #[error("the handler did not answer within its `timeout` of {0:?}")]
    Deadline(Duration),
    #[error("the answer's body is longer than `max_response` ({0} bytes)")]
    AnswerTooLarge(usize),
    #[error("the answer's body failed while it was read")]
    AnswerBroken,
    #[error(
        "a SQL statement of the handler failed, the handler went on to answer success, and \
         PostgreSQL had rolled its writes back: return the error, or use a savepoint"
    )]
    Swallowed,
    #[error(
        "the handler ended the transaction by itself (COMMIT, ROLLBACK or BEGIN through `tx`, or a \
         savepoint left open): leave that to the runtime, and end each savepoint"
    )]
    Ended,
}

/// Says what a request is to be answered.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The handler's own answer, and what has become of its writes.
    Answer(Fate),
    /// A stored answer.
    Replay(Arc<Record>),
    /// The key had its effect, or runs, for another request.
    Mismatch,
    /// A request with this key runs.
    InProgress,
    /// The handler gave no usable answer; nothing is kept.
    Mistaken(Mistake),
    /// The store did not do its part: nothing is kept, or a repeat will tell.
    Unavailable(Arc<StoreError>),
    /// The database refused the handler's commit; nothing is kept.
    Refused(StoreError),
    /// The commit of a request without a key is in doubt, and nothing can tell.
    Unknown(StoreError),
    /// The handler ran as often as it may, and each time something came in between.
    Exhausted,
}

/// Holds how a request ended.
#[derive(Debug)]
pub(crate) struct End<O> {
    pub(crate) outcome: Outcome,
    verdict: Verdict,
    /// A transaction that is to be given up, behind the answer.
    pub(crate) open: Option<O>,
}

/// Passes the gate for a request's key: brings the pass to go and ask the database, or what a
/// duplicate inside this process has already found out.
pub(crate) async fn enter(gate: &Arc<Gate>, call: &Call, until: Instant) -> Result<Pass, Outcome> {
    // Whether the leader has come after this request: its claim has seen whatever was acknowledged
    // before this request was sent. That of one who was here first may not have.
    let mut newer = false;
    loop {
        let watched = match gate.enter(&call.identity) {
            Entered::Leader(pass) => return Ok(pass),
            Entered::Follower(watched) => watched,
        };
        match follow(watched, &call.fingerprint, until).await? {
            Verdict::Recorded(record) => {
                let found = match record.kind {
                    Kind::Effect => Found {
                        effect: Some(record),
                        refusal: None,
                    },
                    Kind::Refusal => Found {
                        effect: None,
                        refusal: Some(record),
                    },
                };
                match decide(&found, &call.fingerprint, false) {
                    Decision::Replay(record) => return Err(Outcome::Replay(record)),
                    Decision::Mismatch(_) => return Err(Outcome::Mismatch),
                    // The refusal of another request says nothing about this one.
                    Decision::Run | Decision::Busy => {}
                }
            }
            Verdict::Unavailable(error) => return Err(Outcome::Unavailable(error)),
            Verdict::Busy if !newer => {}
            Verdict::Busy if Instant::now() >= until => return Err(Outcome::InProgress),
            Verdict::Busy => sleep(jitter()).await,
            Verdict::Free => {}
        }
        newer = true;
    }
}

/// Answers a request that this process knows to contradict another one under its key. Its own
/// refusal may be stored all the same, and only the database knows.
pub(crate) async fn contradict<B: Backend>(backend: &B, call: &Call) -> Outcome {
    match look(backend, call).await {
        Ok(Decision::Replay(record)) => Outcome::Replay(record),
        Ok(Decision::Mismatch(_) | Decision::Run | Decision::Busy) => Outcome::Mismatch,
        Err(error) => {
            noticed(&error);
            Outcome::Unavailable(Arc::new(error))
        }
    }
}

/// Looks for a record that is the answer, whoever holds the key.
async fn look<B: Backend>(backend: &B, call: &Call) -> Result<Decision, StoreError> {
    let found = timed(Flight::Look, backend.look(call)).await?;
    Ok(decide(&found, &call.fingerprint, false))
}

/// Watches the leader: a claim is waited for, a running handler only as long as the endpoint says.
async fn follow(
    mut watched: watch::Receiver<State>,
    fingerprint: &Fingerprint,
    until: Instant,
) -> Result<Verdict, Outcome> {
    let patience = until.max(Instant::now() + RESOLVE);
    loop {
        let state = watched.borrow_and_update().clone();
        let limit = match state {
            State::Ended(verdict) => return Ok(verdict),
            State::Running(other) if other != *fingerprint => return Err(Outcome::Mismatch),
            State::Running(_) if Instant::now() >= until => return Err(Outcome::InProgress),
            State::Running(_) => until,
            State::Claiming => patience,
        };
        match timeout_at(limit, watched.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Ok(Verdict::Free),
            Err(_) if matches!(*watched.borrow(), State::Ended(_)) => {}
            Err(_) => return Err(Outcome::InProgress),
        }
    }
}

/// Asks the database, runs the handler if it has to run, and tells the duplicates how it ended.
pub(crate) async fn lead<B: Backend>(
    backend: &B,
    cache: Option<&Cache>,
    call: &Call,
    pass: Pass,
    until: Instant,
    handler: &mut impl Handler<B::Open>,
) -> End<B::Open> {
    let mut end = execute(backend, cache, call, &pass, until, handler)
        .await
        .unwrap_or_else(|error| {
            noticed(&error);
            let error = Arc::new(error);
            let verdict = Verdict::Unavailable(Arc::clone(&error));
            End::new(Outcome::Unavailable(error), verdict, None)
        });
    pass.end(std::mem::replace(&mut end.verdict, Verdict::Free));
    end
}

async fn execute<B: Backend>(
    backend: &B,
    cache: Option<&Cache>,
    call: &Call,
    pass: &Pass,
    until: Instant,
    handler: &mut impl Handler<B::Open>,
) -> Result<End<B::Open>, StoreError> {
    let since = Since::now();
    let remember = |record: &Arc<Record>| remember(cache, call, record, since);
    if (B::LOOKS_FIRST || pass.expects_record())
        && let Some(end) = recorded(backend, call, remember).await?
    {
        return Ok(end);
    }
    let mut runs = 0;
    let mut in_doubt = false;
    // A refusal whose writes are rolled back and whose record is still to be written.
    let mut refusal = None;
    let mut claimed = claim(backend, call, until, || handler.is_wanted()).await?;
    loop {
        let Claimed {
            mut open,
            locked,
            found,
            expired,
        } = claimed;
        match decide(&found, &call.fingerprint, locked) {
            Decision::Replay(record) => {
                remember(&record);
                return Ok(End::replayed(record, Some(open)));
            }
            Decision::Mismatch(effect) => return Ok(End::mismatched(effect, Some(open))),
            // The transaction in doubt still holds the key: a repeat will tell.
            Decision::Busy if in_doubt => {
                let unknown = Outcome::Unavailable(Arc::new(StoreError::TimedOut(RESOLVE)));
                return Ok(End::new(unknown, Verdict::Busy, Some(open)));
            }
            // Between a rollback and its second claim another process may have taken the key.
            Decision::Busy if Instant::now() < until && handler.is_wanted() => {
                open.let_go().await;
                // The next claim is at the endpoint's level; see below.
                refusal = None;
                let later = claim(backend, call, until, || handler.is_wanted());
                claimed = Box::pin(later).await?;
                continue;
            }
            Decision::Busy => {
                return Ok(End::new(Outcome::InProgress, Verdict::Busy, Some(open)));
            }
            Decision::Run => {}
        }

        let (kind, snapshot) = if let Some(snapshot) = refusal.take() {
            (Kind::Refusal, snapshot)
        } else if runs == RUNS {
            return Ok(End::undone(Outcome::Exhausted, open).await);
        } else {
            runs += 1;
            pass.running(call.fingerprint);
            match handler.run(&mut open, runs == RUNS).await {
                Ran::Commit(snapshot) => (Kind::Effect, snapshot),
                // Between the rollback and the second claim a duplicate may have had its effect:
                // then that is the answer, not the refusal.
                Ran::Refuse(snapshot) => {
                    claimed = match Box::pin(timed(Flight::Claim, open.again(call))).await {
                        Ok(claimed) => {
                            refusal = Some(snapshot);
                            claimed
                        }
                        Err(error @ KeepError::Ended) => return Ok(End::not_kept(error)),
                        // This claim is at the endpoint's level, where its snapshot can hide such
                        // an effect to the end: the handler has to answer anew.
                        Err(error) => resolve(backend, call, error).await?,
                    };
                    continue;
                }
                Ran::Again => {
                    meter::claimed_again(Cause::Retryable);
                    open.give_up().await;
                    let again = claim(backend, call, until, || handler.is_wanted());
                    claimed = Box::pin(again).await?;
                    continue;
                }
                Ran::Release => {
                    return Ok(End::undone(Outcome::Answer(Fate::Release), open).await);
                }
                Ran::Failed(mistake) => return Ok(End::mistaken(mistake, open).await),
            }
        };

        let entry = Entry {
            kind,
            snapshot: &snapshot,
            replaces_expired: expired,
        };
        match timed(Flight::Keep, open.keep(call, entry)).await {
            Ok(()) => {
                let record = Arc::new(Record {
                    kind,
                    fingerprint: call.fingerprint.as_bytes().as_slice().into(),
                    snapshot,
                    remaining: call.ttl,
                });
                remember(&record);
                return Ok(End::kept(record));
            }
            Err(error @ (KeepError::InDoubt(_) | KeepError::Overtaken(_))) => {
                in_doubt |= matches!(error, KeepError::InDoubt(_));
                claimed = resolve(backend, call, error).await?;
            }
            Err(error) => return Ok(End::not_kept(error)),
        }
    }
}

/// Answers a request whose key has a record, without a claim.
async fn recorded<B: Backend>(
    backend: &B,
    call: &Call,
    remember: impl Fn(&Arc<Record>),
) -> Result<Option<End<B::Open>>, StoreError> {
    Ok(match look(backend, call).await {
        Ok(Decision::Replay(record)) => {
            remember(&record);
            Some(End::replayed(record, None))
        }
        Ok(Decision::Mismatch(effect)) => Some(End::mismatched(effect, None)),
        // Where SERIALIZABLE is the role's own default, even a look can fail; a claim decides.
        Ok(Decision::Run | Decision::Busy) | Err(StoreError::Conflict(_)) => None,
        Err(error) => return Err(error),
    })
}

/// Keeps an effect in memory, if the service has asked for that.
fn remember(cache: Option<&Cache>, call: &Call, record: &Arc<Record>, since: Since) {
    if let (Some(cache), Kind::Effect) = (cache, record.kind) {
        cache.put(&call.identity, record, since);
    }
}

/// Runs a request without a key: in the supplied transaction, unrecorded.
pub(crate) async fn run_unrecorded<B: Backend>(
    backend: &B,
    session: &Session,
    handler: &mut impl Handler<B::Open>,
) -> End<B::Open> {
    let mut open = match timed(Flight::Claim, backend.begin(session)).await {
        Ok(open) => open,
        Err(error) => {
            noticed(&error);
            return End::new(Outcome::Unavailable(Arc::new(error)), Verdict::Free, None);
        }
    };
    match handler.run(&mut open, true).await {
        Ran::Commit(_) => match timed(Flight::Keep, open.commit()).await {
            Ok(()) => End::new(Outcome::Answer(Fate::Commit), Verdict::Free, None),
            Err(error) => {
                if let KeepError::InDoubt(error) | KeepError::Overtaken(error) = &error {
                    noticed(error);
                }
                End::not_kept(error)
            }
        },
        Ran::Refuse(_) | Ran::Release | Ran::Again => {
            End::undone(Outcome::Answer(Fate::Release), open).await
        }
        Ran::Failed(mistake) => End::mistaken(mistake, open).await,
    }
}

impl<O: Open> End<O> {
    fn new(outcome: Outcome, verdict: Verdict, open: Option<O>) -> Self {
        Self {
            outcome,
            verdict,
            open,
        }
    }

    fn replayed(record: Arc<Record>, open: Option<O>) -> Self {
        let verdict = Verdict::Recorded(Arc::clone(&record));
        Self::new(Outcome::Replay(record), verdict, open)
    }

    fn mismatched(effect: Arc<Record>, open: Option<O>) -> Self {
        Self::new(Outcome::Mismatch, Verdict::Recorded(effect), open)
    }

    fn kept(record: Arc<Record>) -> Self {
        let fate = match record.kind {
            Kind::Effect => Fate::Commit,
            Kind::Refusal => Fate::Refuse,
        };
        Self::new(Outcome::Answer(fate), Verdict::Recorded(record), None)
    }

    /// Rolls back before the answer: a repeat that comes at once is to find the key free.
    async fn undone(outcome: Outcome, open: O) -> Self {
        open.give_up().await;
        Self::new(outcome, Verdict::Free, None)
    }

    async fn mistaken(mistake: Mistake, open: O) -> Self {
        if let Mistake::Deadline(_) = mistake {
            // It may have left a statement running, behind which a ROLLBACK would wait: dropping
            // the transaction closes its connection.
            drop(open);
            return Self::new(Outcome::Mistaken(mistake), Verdict::Free, None);
        }
        Self::undone(Outcome::Mistaken(mistake), open).await
    }

    fn not_kept(error: KeepError) -> Self {
        let outcome = match error {
            KeepError::Swallowed => Outcome::Mistaken(Mistake::Swallowed),
            KeepError::Ended => Outcome::Mistaken(Mistake::Ended),
            KeepError::Refused(error) => Outcome::Refused(error),
            KeepError::InDoubt(error) => Outcome::Unknown(error),
            KeepError::Overtaken(error) => Outcome::Unavailable(Arc::new(error)),
        };
        Self::new(outcome, Verdict::Free, None)
    }
}

/// Claims the key; while another process holds it, waits without a connection until `until`.
async fn claim<B: Backend>(
    backend: &B,
    call: &Call,
    until: Instant,
    wanted: impl Fn() -> bool,
) -> Result<Claimed<B::Open>, StoreError> {
    let mut conflicts = 0;
    loop {
        let claimed = match timed(Flight::Claim, backend.claim(call)).await {
            // At SERIALIZABLE even the first statement can fail so. Nothing has run.
            Err(StoreError::Conflict(_)) if conflicts < RUNS => {
                conflicts += 1;
                continue;
            }
            claimed => claimed?,
        };
        let decision = decide(&claimed.found, &call.fingerprint, claimed.locked);
        if !matches!(decision, Decision::Busy) || Instant::now() >= until || !wanted() {
            return Ok(claimed);
        }
        claimed.open.let_go().await;
        sleep(jitter()).await;
    }
}

/// Claims the key to find out what became of a transaction, also while the database restarts.
async fn resolve<B: Backend>(
    backend: &B,
    call: &Call,
    error: KeepError,
) -> Result<Claimed<B::Open>, StoreError> {
    meter::claimed_again(error.cause());
    let cause = error.into_store_error();
    noticed(&cause);
    tracing::debug!(%cause, "in doubt or overtaken: claiming the key again");
    let until = Instant::now() + RESOLVE;
    loop {
        match Box::pin(claim(backend, call, until, || true)).await {
            Err(_) if Instant::now() < until => sleep(jitter()).await,
            known => return known,
        }
    }
}

/// Takes note of an error that means a lost connection.
fn noticed(error: &StoreError) {
    if matches!(error, StoreError::Unreachable(_) | StoreError::TimedOut(_)) {
        backend::lost();
    }
}

/// Spreads the claims of several processes.
fn jitter() -> Duration {
    Duration::from_millis(fastrand::u64(20..80))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{FingerprintInput, Fingerprinting, Identity, Isolation, Key, Scope};

    fn call() -> Call {
        let scope = Scope::of("a").unwrap();
        let input = FingerprintInput::new("POST", "/", b"");
        Call {
            identity: Arc::new(Identity::new(scope, "op", Key::new("k").unwrap())),
            fingerprint: Fingerprinting::Raw.of(&input),
            ttl: Duration::from_secs(60),
            session: Session {
                isolation: Isolation::ReadCommitted,
                timeout: Duration::from_secs(1),
                settings: Vec::new(),
            },
        }
    }

    #[tokio::test]
    async fn a_duplicate_takes_busy_only_from_a_claim_that_began_after_it_came() {
        let (gate, call) = (Arc::new(Gate::default()), call());
        let now = Instant::now();
        let Ok(first) = enter(&gate, &call, now).await else {
            panic!("nobody led");
        };
        // Both come while the first one's claim is on its way.
        let mut one = Box::pin(enter(&gate, &call, now));
        let mut other = Box::pin(enter(&gate, &call, now));
        assert!(futures_util::poll!(&mut one).is_pending());
        assert!(futures_util::poll!(&mut other).is_pending());
        first.end(Verdict::Busy);
        let Ok(second) = one.await else {
            panic!("what may be old news was believed");
        };
        assert!(futures_util::poll!(&mut other).is_pending());
        second.end(Verdict::Busy);
        assert!(matches!(other.await, Err(Outcome::InProgress)));
    }
}
