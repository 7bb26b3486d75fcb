//! What the lab's benchmarks call: a backend that costs nothing, and a record's way to the database and back.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    backend::{
        Backend, Call, Claimed, Entry, KeepError, Open, Pool, Seen, Session, Stored, Supply,
    },
    error::{SettingsError, StoreError},
    model::{Found, Headers, Identity, Snapshot},
};

/// A backend without a database: every key is free, every record is kept, nothing is remembered.
#[derive(Clone, Copy, Debug)]
pub struct Instant;

/// A transaction of [`Instant`].
#[derive(Clone, Copy, Debug)]
pub struct Tx;

impl Pool for Instant {
    type Backend = Self;
    type Options = ();

    fn open(self, (): ()) -> Result<Self, SettingsError> {
        Ok(self)
    }
}

impl Backend for Instant {
    type Open = Tx;

    async fn look(&self, _: &Call) -> Result<Found, StoreError> {
        Ok(Found::default())
    }

    async fn claim(&self, _: &Call) -> Result<Claimed<Tx>, StoreError> {
        Claimed::new(Tx, true, [])
    }

    async fn status(&self, _: &Identity) -> Result<Seen, StoreError> {
        Ok(Seen {
            held: false,
            record: None,
        })
    }

    async fn begin(&self, _: &Session) -> Result<Tx, StoreError> {
        Ok(Tx)
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn verify_schema(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn sweep(&self, _: u32) -> Result<u64, StoreError> {
        Ok(0)
    }
}

impl Open for Tx {
    async fn keep(self, _: &Call, _: Entry<'_>) -> Result<(), KeepError> {
        Ok(())
    }

    async fn again(self, _: &Call) -> Result<Claimed<Self>, KeepError> {
        Claimed::new(self, true, []).map_err(KeepError::Overtaken)
    }

    async fn commit(self) -> Result<(), KeepError> {
        Ok(())
    }

    async fn give_up(self) {}
}

impl Supply for &'static Tx {
    type Backend = Instant;
    type Ref<'a> = &'a Tx;

    fn supply(open: &mut Tx) -> &Tx {
        open
    }
}

/// An answer that is to be stored.
#[derive(Debug)]
pub struct Answer(Snapshot);

impl Answer {
    /// Collects an answer with status 201. `None` where a header is none.
    #[must_use]
    pub fn new(headers: &[(&str, &str)], body: Bytes) -> Option<Self> {
        let mut stored = Headers::new();
        for (name, value) in headers {
            stored.push(name, value.as_bytes()).ok()?;
        }
        Some(Self(Snapshot {
            status: 201,
            headers: stored,
            body,
        }))
    }

    /// Writes the columns of its record, and reads them as the claim of a repeat does.
    #[must_use]
    pub fn stored_and_read(&self) -> Option<Self> {
        let row = Stored {
            request: &[],
            fingerprint: &[1; 33],
            status: self.0.status.try_into().ok()?,
            headers: self.0.headers.as_bytes(),
            body: &self.0.body,
            remaining: Duration::from_secs(1),
        };
        Some(Self(row.record().ok()?.snapshot))
    }
}
