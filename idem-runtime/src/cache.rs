//! Effects that this process has seen, kept in memory so that a repeat need not ask the database.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use quick_cache::{Weighter, sync};

use crate::{
    backend,
    model::{Fingerprint, Identity, Record},
};

/// Holds answers of effects, never of refusals: whether one of those still binds, only the
/// database knows.
pub(crate) struct Cache {
    effects: sync::Cache<Digest, Known, ByBytes>,
}

type Digest = [u8; 32];

/// Says since when something is known. Taken before the database is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Since {
    moment: Instant,
    losses: u64,
}

#[derive(Clone)]
struct Known {
    record: Arc<Record>,
    until: Instant,
    losses: u64,
}

impl Cache {
    /// Keeps up to so many bytes.
    pub(crate) fn new(bytes: u64) -> Self {
        let typical = usize::try_from(bytes / 1024).unwrap_or(usize::MAX);
        Self {
            effects: sync::Cache::with_weighter(typical.clamp(16, 1 << 20), bytes, ByBytes),
        }
    }

    /// Finds the effect of this very request. What is known of another request under the key only
    /// the database can say: it may have a refusal of its own. With what remains of its lifetime.
    pub(crate) fn get(
        &self,
        identity: &Identity,
        fingerprint: &Fingerprint,
    ) -> Option<(Arc<Record>, Duration)> {
        let known = self.effects.get(identity.digest())?;
        if known.losses != backend::losses() || known.until <= Instant::now() {
            self.effects.remove(identity.digest());
            return None;
        }
        let same = *known.record.fingerprint == *fingerprint.as_bytes();
        let remaining = known.until.saturating_duration_since(Instant::now());
        same.then_some((known.record, remaining))
    }

    /// Remembers an effect for what the database has left it of its lifetime.
    pub(crate) fn put(&self, identity: &Identity, record: &Arc<Record>, since: Since) {
        let Some(until) = since.moment.checked_add(record.remaining) else {
            return;
        };
        let known = Known {
            record: Arc::clone(record),
            until,
            losses: since.losses,
        };
        self.effects.insert(*identity.digest(), known);
    }
}

impl Since {
    pub(crate) fn now() -> Self {
        Self {
            moment: Instant::now(),
            losses: backend::losses(),
        }
    }
}

#[derive(Clone)]
struct ByBytes;

/// What an entry takes beside its answer, about.
const OVERHEAD: usize = 256;

impl Weighter<Digest, Known> for ByBytes {
    fn weight(&self, _: &Digest, known: &Known) -> u64 {
        let snapshot = &known.record.snapshot;
        (OVERHEAD + snapshot.headers.as_bytes().len() + snapshot.body.len()) as u64
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("bytes", &self.effects.weight())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{FingerprintInput, Fingerprinting, Headers, Key, Kind, Scope, Snapshot};

    fn identity(key: &str) -> Identity {
        Identity::new(Scope::of("a").unwrap(), "op", Key::new(key).unwrap())
    }

    fn fingerprint(body: &str) -> Fingerprint {
        Fingerprinting::Raw.of(&FingerprintInput::new("POST", "/", body.as_bytes()))
    }

    fn effect(body: &str, size: usize, remaining: Duration) -> Arc<Record> {
        Arc::new(Record {
            kind: Kind::Effect,
            fingerprint: fingerprint(body).as_bytes().as_slice().into(),
            snapshot: Snapshot {
                status: 201,
                headers: Headers::default(),
                body: vec![b'x'; size].into(),
            },
            remaining,
        })
    }

    /// What one test loses, another would miss.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn an_effect_is_found_by_its_own_request_alone_and_within_its_lifetime() {
        let _alone = ALONE.lock();
        let cache = Cache::new(1 << 20);
        cache.put(&identity("k"), &effect("mine", 9, HOUR), Since::now());
        assert!(cache.get(&identity("k"), &fingerprint("mine")).is_some());
        assert!(cache.get(&identity("k"), &fingerprint("other")).is_none());
        assert!(cache.get(&identity("l"), &fingerprint("mine")).is_none());
        let brief = effect("mine", 9, Duration::from_millis(20));
        cache.put(&identity("k"), &brief, Since::now());
        std::thread::sleep(Duration::from_millis(30));
        assert!(cache.get(&identity("k"), &fingerprint("mine")).is_none());
    }

    #[test]
    fn what_was_known_before_a_connection_was_lost_is_not_known_any_more() {
        let _alone = ALONE.lock();
        let cache = Cache::new(1 << 20);
        let early = Since::now();
        cache.put(&identity("k"), &effect("mine", 9, HOUR), early);
        backend::lost();
        assert!(cache.get(&identity("k"), &fingerprint("mine")).is_none());
        // An answer that was on its way is of the same time.
        cache.put(&identity("k"), &effect("mine", 9, HOUR), early);
        assert!(cache.get(&identity("k"), &fingerprint("mine")).is_none());
    }

    #[test]
    fn it_holds_no_more_bytes_than_it_may() {
        let cache = Cache::new(100_000);
        for number in 0..1_000 {
            let key = identity(&format!("k{number}"));
            cache.put(&key, &effect("mine", 10_000, HOUR), Since::now());
            assert!(cache.effects.weight() <= 100_000);
        }
        assert!(cache.effects.len() > 2);
        let huge = effect("mine", 200_000, HOUR);
        cache.put(&identity("huge"), &huge, Since::now());
        assert!(cache.effects.weight() <= 100_000);
    }
}
