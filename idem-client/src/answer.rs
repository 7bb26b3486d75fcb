//! What the layer and the service say about an answer beside its content.

use reqwest::Response;

/// Tells how an answer came about.
pub trait Answer {
    /// Returns whether the service answered from its record: the operation was done by an earlier request.
    fn is_replay(&self) -> bool;

    /// Returns how often the request was sent, or tried to be, until this answer, questions about it included; 1 for one that did not pass
    /// [`Retries`](crate::Retries).
    fn attempts(&self) -> u32;
}

impl Answer for Response {
    fn is_replay(&self) -> bool {
        let header = self.headers().get("idempotent-replayed");
        header.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"))
    }

    fn attempts(&self) -> u32 {
        self.extensions()
            .get::<Attempts>()
            .map_or(1, |attempts| attempts.0)
    }
}

/// How many attempts a call took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempts(pub(crate) u32);
