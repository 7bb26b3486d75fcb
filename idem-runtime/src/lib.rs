//! Runs annotated actix-web handlers once, and answers every repeat from the record.
//!
//! A handler under [`#[idempotent]`](idempotent) runs inside a database transaction that the runtime
//! supplies. Its answer is stored in that same transaction and given to every repeat of the request:
//! effect and record commit together or not at all.
//!
//! ```
//! use actix_web::{HttpResponse, post, web};
//! use idem_runtime::{idempotent, postgres::Tx};
//!
//! #[post("/accounts/{account}/payments")]
//! #[idempotent(scope = account)]
//! async fn create_payment(
//!     account: web::Path<String>,
//!     amount: web::Json<i64>,
//!     tx: &Tx,
//! ) -> actix_web::Result<HttpResponse> {
//!     tx.execute("INSERT INTO payments VALUES ($1, $2)", &[&*account, &*amount])
//!         .await
//!         .map_err(actix_web::error::ErrorInternalServerError)?;
//!     Ok(HttpResponse::Created().finish())
//! }
//! ```
//!
//! 1. [`Idempotency`] is made once a process, over the service's pool, and put into the app data.
//! 2. [`Idempotency::migrate`] makes the record table, or
//!    [`MIGRATIONS`](postgres::MIGRATIONS) go into a migration tool of your own.
//! 3. [`#[idempotent]`](idempotent) guards a handler; its page has all options.
//! 4. [`Idempotency::sweep_every`] deletes expired records, [`Idempotency::drain`] comes before a stop.
//!
//! # The promise
//!
//! 2xx and 3xx commit. Everything else rolls back. A 4xx is final for its request; 408, 425, 429 and
//! 5xx free the key. The README has the whole table, and what lies outside of it.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `postgres` | yes | PostgreSQL through deadpool-postgres |
//! | `sqlx-postgres` | no | PostgreSQL through sqlx |
//! | `sqlite` | no | SQLite through sqlx |
//! | `compress` | yes | request bodies in gzip, deflate, brotli and zstd; without it they are answered 415 |
//! | `metrics` | no | counters and histograms through the facade `metrics`; `docs/operations.md` lists them. Install a recorder before the `Idempotency` is built |
//! | `utoipa` | no | [`openapi::Idempotent`]: OpenAPI documents that say what the attributes say |
//! | `uuid` | no | `uuid::Uuid` as a scope and as a key |

#[cfg(not(any(feature = "postgres", feature = "sqlite", feature = "sqlx-postgres")))]
compile_error!(
    "idem-runtime needs a backend: enable the feature `postgres`, `sqlx-postgres` or `sqlite`"
);

mod backend;
mod cache;
mod error;
mod gate;
mod http;
mod meter;
mod model;
#[cfg(feature = "utoipa")]
pub mod openapi;
mod protocol;
#[cfg(feature = "__seeded")]
mod seeded;
mod settings;
mod sweep;

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;

#[cfg(feature = "__bench")]
#[doc(hidden)]
#[path = "bench.rs"]
pub mod __bench;

#[cfg(any(feature = "postgres", feature = "sqlx-postgres"))]
pub mod postgres {
    //! PostgreSQL, through deadpool-postgres or sqlx.

    #[cfg(feature = "postgres")]
    pub use crate::backend::postgres::deadpool::{PoolBuilder, Postgres, Savepoint, Tx, pool};
    #[cfg(feature = "sqlx-postgres")]
    pub use crate::backend::postgres::sqlx::SqlxPostgres;
    pub use crate::backend::postgres::{MIGRATIONS, StatementMode};
}

#[cfg(feature = "sqlite")]
pub mod sqlite {
    //! SQLite through sqlx.

    pub use crate::backend::sqlite::{MIGRATIONS, PoolBuilder, Sqlite, pool};
}

pub mod status {
    //! What has become of a key: a resource that its owner can ask.

    pub use crate::http::status::{global, resource};
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

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
