//! The contenders: one payment, written down in several ways, each as short as such a handler is.

mod deadpool;
mod sqlite;
mod sqlx;

use actix_web::{
    HttpRequest, HttpResponse,
    error::{ErrorBadRequest, ErrorInternalServerError},
    http::StatusCode,
    post, web,
};
use serde::{Deserialize, Serialize};

pub(crate) use self::{deadpool::SCHEMA, sqlite::SCHEMA as SQLITE_SCHEMA};

/// Names a contender; its path on the service is its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    /// The handler without any database: the ceiling of replays.
    NoDb,
    /// The same handler in a hand-written transaction, unprotected.
    Bare,
    /// `bare`, and the record's INSERT sent with COMMIT: what any exactly-once design must write.
    Floor,
    /// The well-known recipe: insert the key, do the work, update the row, commit, a round trip each.
    Recipe,
    /// The attribute.
    Ours,
    /// The attribute, with effects kept in memory.
    Cached,
    SqlxBare,
    SqlxOurs,
    SqliteBare,
    SqliteOurs,
}

impl Contender {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NoDb => "nodb",
            Self::Bare => "bare",
            Self::Floor => "floor",
            Self::Recipe => "recipe",
            Self::Ours => "ours",
            Self::Cached => "ours, cache",
            Self::SqlxBare => "bare, sqlx",
            Self::SqlxOurs => "ours, sqlx",
            Self::SqliteBare => "bare, SQLite",
            Self::SqliteOurs => "ours, SQLite",
        }
    }

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::NoDb => "/nodb",
            Self::Bare => "/bare",
            Self::Floor => "/floor",
            Self::Recipe => "/recipe",
            Self::Ours => "/ours",
            Self::Cached => "/cached/ours",
            Self::SqlxBare => "/sqlx/bare",
            Self::SqlxOurs => "/sqlx/ours",
            Self::SqliteBare => "/sqlite/bare",
            Self::SqliteOurs => "/sqlite/ours",
        }
    }
}

/// What a client asks for.
#[derive(Deserialize)]
struct NewPayment {
    account: i32,
    /// Less than zero is refused, once the payment has been written.
    amount: i64,
    /// How long the answer's note is to be.
    #[serde(default)]
    note: usize,
}

#[derive(Serialize)]
struct Payment {
    id: i64,
    account: i32,
    amount: i64,
    note: String,
}

impl Payment {
    fn of(id: i64, payment: &NewPayment) -> Self {
        Self {
            id,
            account: payment.account,
            amount: payment.amount,
            // No larger than any that is asked for here.
            note: "x".repeat(payment.note.min(1 << 20)),
        }
    }

    fn answer(&self) -> HttpResponse {
        HttpResponse::Created().json(self)
    }
}

const INSERT: &str = "INSERT INTO payments (account, amount) VALUES ($1, $2) RETURNING id";
const UPDATE: &str = "UPDATE accounts SET balance = balance + $2 WHERE id = $1";

fn refused() -> HttpResponse {
    HttpResponse::new(StatusCode::PAYMENT_REQUIRED)
}

fn failed(error: impl std::error::Error + 'static) -> actix_web::Error {
    ErrorInternalServerError(error)
}

fn key(request: &HttpRequest) -> actix_web::Result<&str> {
    let key = request.headers().get("idempotency-key");
    key.and_then(|value| value.to_str().ok())
        .ok_or_else(|| ErrorBadRequest("no key"))
}

#[post("/nodb")]
async fn nodb(payment: web::Json<NewPayment>) -> HttpResponse {
    Payment::of(1, &payment).answer()
}

/// Mounts all of them.
pub(crate) fn routes(app: &mut web::ServiceConfig, cached: &deadpool::Cached) {
    app.service(nodb)
        .configure(deadpool::routes)
        .service(web::scope("/sqlx").configure(sqlx::routes))
        .service(web::scope("/sqlite").configure(sqlite::routes))
        .service(
            web::scope("/cached")
                .app_data(cached.clone())
                .configure(deadpool::guarded),
        );
}
