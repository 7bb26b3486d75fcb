//! The only actix code: from a request to the protocol, and from its outcome to an answer.

mod body;
mod executions;
mod extract;
mod guarded;
mod problem;
mod reply;
mod scopes;
pub(crate) mod status;

pub(crate) use self::executions::Executions;
pub use self::extract::IdempotencyKey;
pub(crate) use self::guarded::Hooks;
pub use self::guarded::{
    authorized, boxed, everyone, global_scope, key, key_in_header, respond, run, scope,
};
pub use self::problem::{Problem, ProblemKind};
#[cfg(feature = "utoipa")]
pub(crate) use self::{problem::MEDIA_TYPE, reply::REPLAYED};
