//! What to do with a request, from what the database holds under its key: a pure function.

use std::{sync::Arc, time::Duration};

use super::{Fingerprint, Snapshot};

/// Says what a claim leads to.
#[derive(Debug)]
pub(crate) enum Decision {
    /// Answer from the record.
    Replay(Arc<Record>),
    /// The key had this effect, through another request.
    Mismatch(Arc<Record>),
    /// Nothing is known and the key is ours: run the handler.
    Run,
    /// Nothing is known and somebody else holds the key.
    Busy,
}

/// Holds what a claim found under a key, within its lifetime.
#[derive(Debug, Default)]
pub struct Found {
    /// The key's one effect.
    pub(crate) effect: Option<Arc<Record>>,
    /// The refusal of this very request.
    pub(crate) refusal: Option<Arc<Record>>,
}

/// Holds one stored answer.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    /// As stored: another release may have written it.
    pub(crate) fingerprint: Box<[u8]>,
    pub(crate) snapshot: Snapshot,
    /// What the database has left it of its lifetime.
    pub(crate) remaining: Duration,
}

/// Tells the key's effect from a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The answer that was committed with the writes.
    Effect,
    /// A final answer without writes, bound to its request.
    Refusal,
}

/// Decides by the first row that fits; `locked` says that the key is ours until the transaction
/// ends.
///
/// | live records of the key | lock | decision |
/// |---|---|---|
/// | the effect, with this fingerprint | | replay |
/// | a refusal with this fingerprint | | replay |
/// | the effect, with another fingerprint | | mismatch |
/// | none of these | got | run |
/// | none of these | not got | busy |
pub(crate) fn decide(found: &Found, fingerprint: &Fingerprint, locked: bool) -> Decision {
    let other = |record: &Record| fingerprint.differs_from(&record.fingerprint);
    match (&found.effect, &found.refusal) {
        (Some(effect), _) if !other(effect) => Decision::Replay(Arc::clone(effect)),
        (_, Some(refusal)) if !other(refusal) => Decision::Replay(Arc::clone(refusal)),
        (Some(effect), _) => Decision::Mismatch(Arc::clone(effect)),
        (None, _) if locked => Decision::Run,
        (None, _) => Decision::Busy,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{FingerprintInput, Fingerprinting, Headers},
        *,
    };

    fn fingerprint(body: &str) -> Fingerprint {
        Fingerprinting::Raw.of(&FingerprintInput::new("POST", "/", body.as_bytes()))
    }

    fn record(kind: Kind, body: &str) -> Arc<Record> {
        Arc::new(Record {
            kind,
            fingerprint: fingerprint(body).as_bytes().as_slice().into(),
            snapshot: Snapshot {
                status: 201,
                headers: Headers::default(),
                body: "".into(),
            },
            remaining: Duration::ZERO,
        })
    }

    #[derive(Debug, PartialEq)]
    enum Told {
        Effect,
        Refusal,
        Mismatch,
        Run,
        Busy,
    }

    fn told(effect: Option<Arc<Record>>, refusal: Option<Arc<Record>>, locked: bool) -> Told {
        match decide(&Found { effect, refusal }, &fingerprint("mine"), locked) {
            Decision::Replay(record) if record.kind == Kind::Effect => Told::Effect,
            Decision::Replay(_) => Told::Refusal,
            Decision::Mismatch(_) => Told::Mismatch,
            Decision::Run => Told::Run,
            Decision::Busy => Told::Busy,
        }
    }

    #[test]
    fn the_first_row_that_fits_decides() {
        let effect = |body| Some(record(Kind::Effect, body));
        let refusal = |body| Some(record(Kind::Refusal, body));
        for locked in [true, false] {
            assert_eq!(told(effect("mine"), None, locked), Told::Effect);
            assert_eq!(told(effect("mine"), refusal("mine"), locked), Told::Effect);
            assert_eq!(
                told(effect("other"), refusal("mine"), locked),
                Told::Refusal
            );
            assert_eq!(told(None, refusal("mine"), locked), Told::Refusal);
            assert_eq!(told(effect("other"), None, locked), Told::Mismatch);
        }
        assert_eq!(told(None, None, true), Told::Run);
        assert_eq!(told(None, None, false), Told::Busy);
    }

    #[test]
    fn a_record_of_another_fingerprint_version_is_never_a_mismatch() {
        let mut effect = Arc::unwrap_or_clone(record(Kind::Effect, "other"));
        effect.fingerprint[0] = 99;
        assert_eq!(told(Some(Arc::new(effect)), None, true), Told::Effect);
    }
}
