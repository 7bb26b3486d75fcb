//! Pure values of the protocol: no async, no IO, no actix, no clock, no database.

mod decision;
mod fingerprint;
mod identity;
mod key;
mod policy;
mod scope;
mod snapshot;

pub(crate) use self::decision::{Decision, Found, Kind, Record, decide};
pub(crate) use self::fingerprint::Fingerprint;
pub use self::fingerprint::{FingerprintInput, Fingerprinting};
pub(crate) use self::identity::Identity;
pub use self::key::{InvalidKey, Key, KeySource};
pub(crate) use self::policy::{Fate, KeyFrom};
pub use self::policy::{Isolation, Policy};
pub(crate) use self::scope::{InvalidScope, Scope};
pub use self::scope::{ScopeKey, ScopeWriter};
pub(crate) use self::snapshot::{Headers, Snapshot, connection_names, is_stored};
