//! What an endpoint's attribute says, as a constant, and the fate of an answer by its status.

use std::time::Duration;

use super::Fingerprinting;

/// Holds what one `#[idempotent]` attribute says, with the framework's defaults for the rest.
///
/// Only generated code makes one; the macro has checked what can be checked.
#[derive(Debug)]
pub struct Policy {
    pub(crate) handler: &'static str,
    pub(crate) location: &'static str,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) timeout: Duration,
    pub(crate) max_body: usize,
    pub(crate) max_response: usize,
    pub(crate) operation: Option<&'static str>,
    /// Whether all callers share their keys.
    pub(crate) global: bool,
    pub(crate) key: KeyFrom,
    pub(crate) fingerprint: Fingerprinting,
    pub(crate) isolation: Isolation,
    commit_on: &'static [u16],
    release_on: &'static [u16],
}

/// Says where an endpoint's key comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyFrom {
    /// A header that must be there.
    Header(&'static str),
    /// A header that may be missing: then the handler runs unrecorded.
    OptionalHeader(&'static str),
    /// An expression over the handler's parameters.
    Request,
}

/// Names the isolation level of the transaction that the handler runs in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Each statement sees what was committed before it began. The default.
    #[default]
    ReadCommitted,
    /// All statements see one snapshot.
    RepeatableRead,
    /// As if transactions ran one after another.
    Serializable,
}

/// Says what becomes of a handler's writes and answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The writes are committed together with the answer: the key's effect.
    Commit,
    /// The writes are rolled back, the answer is stored, bound to this request.
    Refuse,
    /// The writes are rolled back and the key is free.
    Release,
}

impl Policy {
    /// Starts from the defaults; `handler` and `location` say in the log which line to change.
    #[must_use]
    pub const fn new(handler: &'static str, location: &'static str) -> Self {
        Self {
            handler,
            location,
            ttl: Duration::from_secs(24 * 60 * 60),
            wait: Duration::ZERO,
            timeout: Duration::from_secs(30),
            max_body: 2 << 20,
            max_response: 1 << 20,
            operation: None,
            global: false,
            key: KeyFrom::Header("Idempotency-Key"),
            fingerprint: Fingerprinting::Meaning,
            isolation: Isolation::ReadCommitted,
            commit_on: &[],
            release_on: &[],
        }
    }

    /// Sets the lifetime of a record in milliseconds.
    #[must_use]
    pub const fn ttl(mut self, milliseconds: u64) -> Self {
        self.ttl = Duration::from_millis(milliseconds);
        self
    }

    /// Sets how long a duplicate waits for the request that runs, in milliseconds.
    #[must_use]
    pub const fn wait(mut self, milliseconds: u64) -> Self {
        self.wait = Duration::from_millis(milliseconds);
        self
    }

    /// Sets the handler's deadline in milliseconds.
    #[must_use]
    pub const fn timeout(mut self, milliseconds: u64) -> Self {
        self.timeout = Duration::from_millis(milliseconds);
        self
    }

    /// Sets the largest body, raw and decoded, in bytes.
    #[must_use]
    pub const fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// Sets the largest answer's body in bytes.
    #[must_use]
    pub const fn max_response(mut self, bytes: usize) -> Self {
        self.max_response = bytes;
        self
    }

    /// Names the operation, so that a renamed route keeps its records.
    #[must_use]
    pub const fn operation(mut self, name: &'static str) -> Self {
        self.operation = Some(name);
        self
    }

    /// Says that all callers share their keys.
    #[must_use]
    pub const fn global(mut self) -> Self {
        self.global = true;
        self
    }

    /// Reads the key from another header.
    #[must_use]
    pub const fn header(mut self, name: &'static str) -> Self {
        self.key = match self.key {
            KeyFrom::OptionalHeader(_) => KeyFrom::OptionalHeader(name),
            KeyFrom::Header(_) | KeyFrom::Request => KeyFrom::Header(name),
        };
        self
    }

    /// Lets requests without a key run unrecorded.
    #[must_use]
    pub const fn optional_key(mut self) -> Self {
        self.key = match self.key {
            KeyFrom::Header(name) | KeyFrom::OptionalHeader(name) => KeyFrom::OptionalHeader(name),
            KeyFrom::Request => KeyFrom::Request,
        };
        self
    }

    /// Takes the key from the handler's parameters.
    #[must_use]
    pub const fn key_from_request(mut self) -> Self {
        self.key = KeyFrom::Request;
        self
    }

    /// Sets how requests are compared.
    #[must_use]
    pub const fn fingerprint(mut self, fingerprinting: Fingerprinting) -> Self {
        self.fingerprint = fingerprinting;
        self
    }

    /// Sets the isolation level of the handler's transaction.
    #[must_use]
    pub const fn isolation(mut self, level: Isolation) -> Self {
        self.isolation = level;
        self
    }

    /// Keeps the writes of answers with these statuses.
    #[must_use]
    pub const fn commit_on(mut self, statuses: &'static [u16]) -> Self {
        self.commit_on = statuses;
        self
    }

    /// Frees the key after answers with these statuses.
    #[must_use]
    pub const fn release_on(mut self, statuses: &'static [u16]) -> Self {
        self.release_on = statuses;
        self
    }

    /// Decides by the status alone: handlers that turn errors into answers must not commit half
    /// their writes.
    pub(crate) fn fate(&self, status: u16) -> Fate {
        match status {
            _ if self.commit_on.contains(&status) => Fate::Commit,
            _ if self.release_on.contains(&status) => Fate::Release,
            200..=399 => Fate::Commit,
            408 | 425 | 429 => Fate::Release,
            #[cfg(feature = "__seeded")]
            400..=499 if crate::seeded::is("refusal-not-stored") => Fate::Release,
            400..=499 => Fate::Refuse,
            _ => Fate::Release,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_decides_what_becomes_of_the_writes() {
        let policy = Policy::new("handler", "file:1");
        for (status, fate) in [
            (200, Fate::Commit),
            (201, Fate::Commit),
            (204, Fate::Commit),
            (303, Fate::Commit),
            (399, Fate::Commit),
            (400, Fate::Refuse),
            (402, Fate::Refuse),
            (404, Fate::Refuse),
            (408, Fate::Release),
            (409, Fate::Refuse),
            (422, Fate::Refuse),
            (425, Fate::Release),
            (429, Fate::Release),
            (499, Fate::Refuse),
            (500, Fate::Release),
            (503, Fate::Release),
            (599, Fate::Release),
            (101, Fate::Release),
            (999, Fate::Release),
        ] {
            assert_eq!(policy.fate(status), fate, "{status}");
        }
    }

    #[test]
    fn the_attribute_can_keep_or_free_a_status() {
        let policy = Policy::new("handler", "file:1")
            .commit_on(&[402])
            .release_on(&[404]);
        assert_eq!(policy.fate(402), Fate::Commit);
        assert_eq!(policy.fate(404), Fate::Release);
        assert_eq!(policy.fate(403), Fate::Refuse);
    }

    #[test]
    fn an_optional_key_keeps_its_header_in_either_order() {
        let one = Policy::new("h", "f").optional_key().header("x-request-id");
        let two = Policy::new("h", "f").header("x-request-id").optional_key();
        assert_eq!(one.key, KeyFrom::OptionalHeader("x-request-id"));
        assert_eq!(one.key, two.key);
    }
}
