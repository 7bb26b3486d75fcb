//! What makes two requests the same operation: scope, operation and key, and what is derived from them.

use std::fmt;

use sha2::{Digest, Sha256};

use super::{Key, Scope};

/// Identifies one logical operation: at most one effect belongs to it within its lifetime.
#[derive(Clone)]
pub struct Identity {
    scope: Scope,
    operation: Box<str>,
    key: Key,
    digest: [u8; 32],
}

impl Identity {
    /// Joins the three parts.
    pub(crate) fn new(scope: Scope, operation: impl Into<Box<str>>, key: Key) -> Self {
        #[cfg(feature = "__seeded")]
        let scope = crate::seeded::scope(scope);
        let operation = operation.into();
        let digest = digest(
            b"idem identity 1",
            &[scope.as_str(), &operation, key.as_str()],
        );
        Self {
            scope,
            operation,
            key,
            digest,
        }
    }

    /// The owner of the key.
    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    /// What the key is for: `POST /payments`, or the name that the attribute gives.
    pub(crate) fn operation(&self) -> &str {
        &self.operation
    }

    /// The idempotency key.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// SHA-256 over the three parts, length-prefixed: stands for them in locks and maps.
    pub(crate) fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The first eight bytes of the digest as a number.
    pub(crate) fn number(&self) -> u64 {
        self.digest
            .first_chunk()
            .copied()
            .map_or(0, u64::from_be_bytes)
    }

    /// A name that is the same for every run of this operation and differs from any other's.
    ///
    /// It has the form of a UUID (version 8), which the key fields of other services accept.
    pub(crate) fn derive(&self, label: &str) -> String {
        let digest = digest(
            b"idem derive 1",
            &[
                self.scope.as_str(),
                &self.operation,
                self.key.as_str(),
                label,
            ],
        );
        let half = |half: Option<&[u8; 8]>| half.copied().map_or(0, u64::from_be_bytes);
        let (high, low) = (half(digest.first_chunk()), half(digest.last_chunk()));
        // Version and variant, as RFC 9562 wants them.
        let (high, low) = (high & !0xf000 | 0x8000, low << 2 >> 2 | 1 << 63);
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }
}

/// Prints eight hex digits of the digest, never the scope or the key.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.number() >> 32)
    }
}

/// Prints the operation and what `Display` prints.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({} {self})", self.operation)
    }
}

fn digest(domain: &[u8], parts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(domain);
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn identity(scope: &str, operation: &str, key: &str) -> Identity {
        Identity::new(Scope::of(scope).unwrap(), operation, Key::new(key).unwrap())
    }

    #[test]
    fn every_part_tells_operations_apart() {
        let one = identity("a", "b", "c");
        for other in [
            identity("x", "b", "c"),
            identity("a", "x", "c"),
            identity("a", "b", "x"),
        ] {
            assert_ne!(one.digest(), other.digest());
            assert_ne!(one.derive("charge"), other.derive("charge"));
        }
        assert_eq!(one.digest(), identity("a", "b", "c").digest());
    }

    #[test]
    fn a_derived_key_is_stable_and_looks_like_a_uuid() {
        // A change of this value makes other services charge twice over an upgrade.
        assert_eq!(
            identity("acct_1", "payments.create", "k-1").derive("charge"),
            "4a6b0f94-cd42-8a1f-b99d-7d4c77f8e86a"
        );
        assert_ne!(
            identity("a", "b", "c").derive("one"),
            identity("a", "b", "c").derive("two")
        );
    }

    #[test]
    fn neither_debug_nor_display_prints_scope_or_key() {
        let shown = format!("{0:?} {0}", identity("scopevalue", "op", "keyvalue"));
        assert!(
            !shown.contains("scopevalue") && !shown.contains("keyvalue"),
            "{shown}"
        );
    }

    proptest! {
        #[test]
        fn moving_characters_between_parts_changes_the_digest(text in "[a-z]{3,12}", at in 1_usize..11, to in 1_usize..11) {
            let (at, to) = (at % (text.len() - 1) + 1, to % (text.len() - 1) + 1);
            prop_assume!(at != to);
            let split = |at: usize| *identity(&text[..at], &text[at..], "k").digest();
            prop_assert_ne!(split(at), split(to));
        }
    }
}
