//! Runs annotated actix-web handlers once, and answers every repeat from the record.

mod backend;
mod error;
mod gate;
mod http;
mod model;
mod protocol;
mod settings;
mod sweep;

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;

#[cfg(feature = "postgres")]
pub mod postgres {
    //! PostgreSQL through deadpool-postgres.

    pub use crate::backend::postgres::{
        MIGRATIONS, PoolBuilder, Postgres, Savepoint, StatementMode, Tx, pool,
    };
}

pub use idem_macros::{ScopeKey, idempotent};

pub use self::{
    backend::{Backend, Pool, Supply},
    error::{SettingsError, StoreError},
    http::{IdempotencyKey, Problem, ProblemKind},
    model::{FingerprintInput, InvalidKey, Key, KeySource, ScopeKey, ScopeWriter},
    settings::{Builder, Idempotency},
    sweep::Sweeper,
};
