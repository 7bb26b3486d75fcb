//! Pure values of the protocol: no async, no IO, no actix, no clock, no database.

mod decision;
mod fingerprint;
mod identity;
mod key;
mod policy;
mod scope;
mod snapshot;

pub(crate) use self::decision::{Decision, Found, Kind, Record, decide};
pub use self::fingerprint::{Fingerprint, FingerprintInput, Fingerprinting};
pub use self::identity::Identity;
pub use self::key::{InvalidKey, Key, KeySource};
pub(crate) use self::policy::{Fate, KeyFrom};
pub use self::policy::{Isolation, Policy};
pub use self::scope::{InvalidScope, Scope, ScopeKey, ScopeWriter};
pub(crate) use self::snapshot::{Headers, Snapshot, connection_names, is_stored};
