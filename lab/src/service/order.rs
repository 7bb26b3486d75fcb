//! What a request tells the handler under test to do.

use serde::{Deserialize, Serialize};

/// Describes one transfer of money, and what goes wrong on the way.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Order {
    pub(crate) payer: i32,
    pub(crate) payee: i32,
    pub(crate) amount: i64,
    /// Goes into the answer.
    pub(crate) note: String,
    /// What happens before anything is written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) before: Vec<Step>,
    /// What happens once everything is written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) after: Vec<Step>,
    /// Whether the accounts are locked in the order given, which invites deadlocks.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) unordered: bool,
}

impl Order {
    /// Sleeps once everything is written, for milliseconds.
    pub(crate) fn sleeping(milliseconds: u64) -> Self {
        Self {
            after: vec![Step::Sleep(milliseconds)],
            ..Self::default()
        }
    }

    /// Sleeps before anything is written, so that it holds its key and nothing else.
    pub(crate) fn hesitating(milliseconds: u64) -> Self {
        Self {
            before: vec![Step::Sleep(milliseconds)],
            ..Self::default()
        }
    }
}

/// One thing that a handler does beside its work.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    /// Sleeps in Rust, for milliseconds.
    Sleep(u64),
    /// Runs SQL, which must succeed.
    Sql(String),
    /// Runs SQL and goes on when it fails.
    Try(String),
    /// Refuses with 402 if the payer's limit is below the amount.
    Limit,
    /// Ends with this status, as an `Err`.
    Fail(u16),
    /// Panics.
    Panic,
    /// Panics when the answer is made.
    PanicInAnswer,
    /// Answers with a body of this many bytes.
    Long(usize),
    /// Answers with a stream.
    Stream,
    /// Sets cookies in the answer.
    Cookies,
    /// Takes a second connection from the same pool.
    SecondConnection,
    /// Leaves a row stream behind that nobody reads.
    LeakStream,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde calls"
)]
fn is_false(value: &bool) -> bool {
    !*value
}
