//! Duplicates inside one process meet here, in memory, before they ask the database.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::watch;

use crate::{
    error::StoreError,
    model::{Fingerprint, Identity, Record},
};

type Digest = [u8; 32];

/// Lets one request a key through; the others watch how it ends.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    live: Mutex<HashMap<Digest, Live>>,
    recorded: Recorded,
}

/// What the gate knows of a key at work.
#[derive(Debug)]
struct Live {
    state: State,
    /// Where followers watch the state; the first of them makes it, since most keys have none.
    watched: Option<watch::Sender<State>>,
}

/// Says which side of the gate a request is on.
#[derive(Debug)]
pub(crate) enum Entered {
    /// The first: it may ask the database.
    Leader(Pass),
    /// A duplicate: it watches the first.
    Follower(watch::Receiver<State>),
}

/// Says how far the leader has come.
#[derive(Clone, Debug)]
pub(crate) enum State {
    /// It asks the database about the key.
    Claiming,
    /// Its handler runs, for the request with this fingerprint.
    Running(Fingerprint),
    /// It is over.
    Ended(Verdict),
}

/// Says what the leader's end means for its followers.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// The key has this record.
    Recorded(Arc<Record>),
    /// Another process holds the key.
    Busy,
    /// The store did not do its part, and would not do it for the followers either.
    Unavailable(Arc<StoreError>),
    /// Nothing is known: whoever wants to may try.
    Free,
}

impl Gate {
    /// Enters the gate for this key.
    pub(crate) fn enter(self: &Arc<Self>, identity: &Identity) -> Entered {
        match self.live().entry(*identity.digest()) {
            Entry::Occupied(mut entry) => {
                let Live { state, watched } = entry.get_mut();
                let watched = watched.get_or_insert_with(|| watch::Sender::new(state.clone()));
                Entered::Follower(watched.subscribe())
            }
            Entry::Vacant(entry) => {
                entry.insert(Live {
                    state: State::Claiming,
                    watched: None,
                });
                Entered::Leader(Pass {
                    gate: Arc::clone(self),
                    digest: *identity.digest(),
                    ended: false,
                })
            }
        }
    }

    /// Whether a request of this process is at work on the key.
    pub(crate) fn is_live(&self, identity: &Identity) -> bool {
        self.live().contains_key(identity.digest())
    }

    fn live(&self) -> MutexGuard<'_, HashMap<Digest, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Remembers the keys that had a record last: a repeat of theirs can look before it claims. No more
/// than a hint, so that a place holds one key, and the next one takes it.
struct Recorded(Box<[AtomicU64]>);

/// How many keys are remembered, at eight bytes each: the retries of minutes.
const PLACES: usize = 1 << 16;

impl Default for Recorded {
    fn default() -> Self {
        Self((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Recorded {
    fn add(&self, digest: &Digest) {
        if let Some((place, mark)) = self.place(digest) {
            place.store(mark, Ordering::Relaxed);
        }
    }

    fn holds(&self, digest: &Digest) -> bool {
        self.place(digest)
            .is_some_and(|(place, mark)| place.load(Ordering::Relaxed) == mark)
    }

    /// A key's place, and what stands there for it.
    fn place(&self, digest: &Digest) -> Option<(&AtomicU64, u64)> {
        let mark = u64::from_le_bytes(*digest.first_chunk()?);
        let place = usize::try_from(mark % PLACES as u64).ok()?;
        Some((self.0.get(place)?, mark))
    }
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded").finish_non_exhaustive()
    }
}

/// Holds the gate for one key. Dropping it without a verdict frees the key.
#[derive(Debug)]
pub(crate) struct Pass {
    gate: Arc<Gate>,
    digest: Digest,
    ended: bool,
}

impl Pass {
    /// Whether the key is likely to have a record.
    pub(crate) fn expects_record(&self) -> bool {
        self.gate.recorded.holds(&self.digest)
    }

    /// Tells the followers that the handler runs.
    pub(crate) fn running(&self, fingerprint: Fingerprint) {
        let state = State::Running(fingerprint);
        let watched = self.gate.live().get_mut(&self.digest).and_then(|live| {
            live.state = state.clone();
            live.watched.clone()
        });
        // Behind the lock, which all keys share: there may be many to wake.
        if let Some(watched) = watched {
            watched.send_replace(state);
        }
    }

    /// Opens the gate for the next and tells the followers how it ended.
    pub(crate) fn end(mut self, verdict: Verdict) {
        self.open(verdict);
    }

    fn open(&mut self, verdict: Verdict) {
        // After `end` the entry may already be the next leader's.
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if let Verdict::Recorded(_) = verdict {
            self.gate.recorded.add(&self.digest);
        }
        let live = self.gate.live().remove(&self.digest);
        if let Some(watched) = live.and_then(|live| live.watched) {
            watched.send_replace(State::Ended(verdict));
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.open(Verdict::Free);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;
    use crate::model::{FingerprintInput, Fingerprinting, Headers, Key, Kind, Scope, Snapshot};

    fn identity(key: &str) -> Identity {
        Identity::new(Scope::of("a").unwrap(), "op", Key::new(key).unwrap())
    }

    fn record() -> Arc<Record> {
        Arc::new(Record {
            kind: Kind::Effect,
            fingerprint: Box::default(),
            snapshot: Snapshot {
                status: 201,
                headers: Headers::default(),
                body: Bytes::new(),
            },
            remaining: Duration::ZERO,
        })
    }

    fn lead(gate: &Arc<Gate>, key: &str) -> Pass {
        match gate.enter(&identity(key)) {
            Entered::Leader(pass) => pass,
            Entered::Follower(_) => panic!("somebody leads"),
        }
    }

    fn follow(gate: &Arc<Gate>, key: &str) -> watch::Receiver<State> {
        match gate.enter(&identity(key)) {
            Entered::Follower(watched) => watched,
            Entered::Leader(_) => panic!("nobody leads"),
        }
    }

    #[test]
    fn the_first_of_a_key_leads_and_other_keys_do_not_matter() {
        let gate = Arc::new(Gate::default());
        let one = lead(&gate, "one");
        let _two = lead(&gate, "two");
        let watched = follow(&gate, "one");
        assert!(matches!(*watched.borrow(), State::Claiming));
        drop(one);
        assert!(matches!(*watched.borrow(), State::Ended(Verdict::Free)));
        drop(lead(&gate, "one"));
    }

    #[test]
    fn a_pass_that_has_ended_does_not_open_the_next_ones_gate() {
        let gate = Arc::new(Gate::default());
        let first = lead(&gate, "one");
        let watched = follow(&gate, "one");
        first.end(Verdict::Busy);
        assert!(matches!(*watched.borrow(), State::Ended(Verdict::Busy)));
        let _second = lead(&gate, "one");
        follow(&gate, "one");
    }

    #[test]
    fn who_comes_while_the_handler_runs_sees_that_it_runs() {
        let gate = Arc::new(Gate::default());
        let pass = lead(&gate, "one");
        let fingerprint = Fingerprinting::Raw.of(&FingerprintInput::new("POST", "/", b""));
        pass.running(fingerprint);
        for _ in 0..2 {
            // The first is gone when the second comes.
            let watched = follow(&gate, "one");
            assert!(matches!(*watched.borrow(), State::Running(other) if other == fingerprint));
        }
        let watched = follow(&gate, "one");
        pass.end(Verdict::Busy);
        assert!(matches!(*watched.borrow(), State::Ended(Verdict::Busy)));
    }

    #[test]
    fn a_record_that_was_seen_is_expected_at_the_next_request() {
        let gate = Arc::new(Gate::default());
        for verdict in [Verdict::Busy, Verdict::Free] {
            let pass = lead(&gate, "one");
            assert!(!pass.expects_record());
            pass.end(verdict);
        }
        let pass = lead(&gate, "one");
        assert!(!pass.expects_record());
        pass.end(Verdict::Recorded(record()));
        assert!(lead(&gate, "one").expects_record());
        assert!(!lead(&gate, "two").expects_record());
    }

    #[test]
    fn nothing_is_left_behind() {
        let gate = Arc::new(Gate::default());
        lead(&gate, "one").end(Verdict::Free);
        drop(lead(&gate, "two"));
        assert!(gate.live().is_empty());
    }
}
