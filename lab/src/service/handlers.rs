//! The handler under test, under the attributes that the faults need.

use std::{
    convert::Infallible,
    fmt,
    future::{Ready, ready},
    time::{Duration, SystemTime},
};

use actix_web::{
    FromRequest, HttpRequest, HttpResponse, Responder, ResponseError,
    body::BoxBody,
    dev::Payload,
    http::StatusCode,
    web::{self, Bytes},
};
use deadpool_postgres::Pool;
use futures_util::stream;
use idem_runtime::{IdempotencyKey, ScopeKey, idempotent, postgres::Tx};
use serde_json::json;
use tokio_postgres::types::{ToSql, Type};

use super::{Executions, Order, Step};

/// The caller, as the header `x-caller` names it, unless `x-revoked` says that it is nobody any more.
#[derive(ScopeKey)]
struct Caller(String);

impl FromRequest for Caller {
    type Error = Failure;
    type Future = Ready<Result<Self, Failure>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let header = |name| {
            let value = request.headers().get(name)?;
            value.to_str().ok().map(ToOwned::to_owned)
        };
        assert!(
            header("x-panic").is_none(),
            "the request wants its extractor to panic"
        );
        let caller = header("x-caller").filter(|_| header("x-revoked").is_none());
        ready(caller.map(Self).ok_or_else(|| Failure::status(403)))
    }
}

/// An error of the service's own.
#[derive(Debug)]
struct Failure {
    status: StatusCode,
    /// The database's SQLSTATE, if it was the database.
    code: Option<String>,
}

impl Failure {
    fn status(status: u16) -> Self {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { status, code: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}",
            self.status,
            self.code.as_deref().unwrap_or_default()
        )
    }
}

impl ResponseError for Failure {
    fn status_code(&self) -> StatusCode {
        self.status
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        let code = error.code().map(|code| code.code().to_owned());
        Self {
            code,
            ..Self::status(500)
        }
    }
}

/// Says which errors of the handler mean that a new run may succeed.
pub(super) fn is_retryable(error: &actix_web::Error) -> bool {
    let code = error
        .as_error::<Failure>()
        .and_then(|failure| failure.code.as_deref());
    matches!(code, Some("40001" | "40P01"))
}

/// A made answer, or one that panics while it is made.
enum Answer {
    Made(HttpResponse),
    Panics,
}

impl Responder for Answer {
    type Body = BoxBody;

    #[expect(clippy::panic, reason = "the request wants it")]
    fn respond_to(self, _: &HttpRequest) -> HttpResponse {
        match self {
            Self::Made(response) => response,
            Self::Panics => panic!("the request wants its answer to panic"),
        }
    }
}

/// Moves the money: one effect, two accounts, two counts, and a body that no other execution has.
async fn transfer(
    caller: &Caller,
    key: &str,
    order: &Order,
    request: &HttpRequest,
    tx: &Tx,
    pool: &Pool,
) -> Result<Answer, Failure> {
    let began = tx.query_typed_one("SELECT clock_timestamp()", &[]).await?;
    let began: SystemTime = began.get(0);
    steps(&order.before, order, tx, pool).await?;
    let operation = request.match_pattern().unwrap_or_default();
    let insert = "INSERT INTO effects (scope, operation, key, payer, payee, amount, began) \
                  VALUES ($1, 'POST ' || $2, $3, $4, $5, $6, $7) RETURNING execution::text";
    // Never prepared by name: the same handler runs behind poolers.
    let row = tx
        .query_typed_one(
            insert,
            &[
                (&caller.0, Type::TEXT),
                (&operation, Type::TEXT),
                (&key, Type::TEXT),
                (&order.payer, Type::INT4),
                (&order.payee, Type::INT4),
                (&order.amount, Type::INT8),
                (&began, Type::TIMESTAMPTZ),
            ],
        )
        .await?;
    let execution: String = row.get(0);
    let mut moves = [
        (order.payer, -order.amount, 1_i64),
        (order.payee, order.amount, 0),
    ];
    if !order.unordered {
        moves.sort_unstable();
    }
    for (account, amount, count) in moves {
        let update = "UPDATE accounts SET balance = balance + $2, moves = moves + $3 WHERE id = $1";
        let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
            (&account, Type::INT4),
            (&amount, Type::INT8),
            (&count, Type::INT8),
        ];
        tx.query_typed(update, &parameters).await?;
    }
    steps(&order.after, order, tx, pool).await?;
    Ok(answer(caller, order, &execution))
}

async fn steps(steps: &[Step], order: &Order, tx: &Tx, pool: &Pool) -> Result<(), Failure> {
    for step in steps {
        match step {
            Step::Sleep(milliseconds) => {
                tokio::time::sleep(Duration::from_millis(*milliseconds)).await;
            }
            Step::Sql(sql) => tx.batch_execute(sql).await?,
            Step::Try(sql) => drop(tx.batch_execute(sql).await),
            Step::Limit => {
                let limit = "SELECT amount FROM limits WHERE id = $1";
                let rows = tx.query_typed(limit, &[(&order.payer, Type::INT4)]).await?;
                let limit: i64 = rows.first().map_or(0, |row| row.get(0));
                if order.amount > limit {
                    return Err(Failure::status(402));
                }
            }
            Step::Fail(status) => return Err(Failure::status(*status)),
            #[expect(clippy::panic, reason = "the request wants it")]
            Step::Panic => panic!("the request wants its handler to panic"),
            Step::SecondConnection => {
                drop(pool.get().await.map_err(|_| Failure::status(503))?);
            }
            Step::LeakStream => {
                let none: [&str; 0] = [];
                let rows = "SELECT repeat('x', 10000) FROM generate_series(1, 1000)";
                std::mem::forget(Box::pin(tx.query_raw(rows, none).await?));
            }
            // These are about the answer.
            Step::PanicInAnswer | Step::Long(_) | Step::Stream | Step::Cookies => {}
        }
    }
    Ok(())
}

fn answer(caller: &Caller, order: &Order, execution: &str) -> Answer {
    let body = json!({ "execution": execution, "caller": caller.0, "note": order.note });
    let mut response = HttpResponse::Created();
    response.insert_header(("x-execution", execution));
    for step in &order.after {
        match step {
            Step::PanicInAnswer => return Answer::Panics,
            Step::Long(bytes) => return Answer::Made(response.body("x".repeat(*bytes))),
            Step::Stream => {
                let text = body.to_string();
                let chunks: Vec<_> = text
                    .as_bytes()
                    .chunks(16)
                    .map(|chunk| Ok::<_, Infallible>(Bytes::copy_from_slice(chunk)))
                    .collect();
                return Answer::Made(response.streaming(stream::iter(chunks)));
            }
            Step::Cookies => drop(response.append_header(("set-cookie", "session=of-this-run"))),
            _ => {}
        }
    }
    Answer::Made(response.json(body))
}

#[allow(
    dead_code,
    reason = "named so that no handler takes a `web::Data<Pool>`"
)]
type Shared = web::Data<Pool>;

macro_rules! guarded {
    ($caller:ident; $($name:ident [$($options:tt)*])*) => {$(
        #[idempotent($($options)*)]
        async fn $name(
            $caller: Caller,
            key: IdempotencyKey,
            order: web::Json<Order>,
            request: HttpRequest,
            shared: Shared,
            executions: web::Data<Executions>,
            tx: &Tx,
        ) -> Result<Answer, Failure> {
            let attempt = request.headers().get("x-attempt");
            let attempt = attempt.and_then(|value| value.to_str().ok()).unwrap_or_default();
            executions.note(attempt).map_err(|_| Failure::status(500))?;
            let mut order = order.into_inner();
            order.before.extend(extra(&request, "x-before"));
            order.after.extend(extra(&request, "x-after"));
            transfer(&$caller, key.as_str(), &order, &request, tx, &shared).await
        }
    )*};
}

guarded! { caller;
    pay [scope = caller, timeout = "5s"]
    waiting [scope = caller, timeout = "5s", wait = "5s"]
    brief [scope = caller, ttl = "1s", timeout = "900ms"]
    hurried [scope = caller, timeout = "300ms"]
    serializable [scope = caller, timeout = "5s", isolation = "serializable"]
}

/// Reads steps that an attempt brings in a header: they are no part of its request, and its repeats need not have them.
fn extra(request: &HttpRequest, header: &str) -> Vec<Step> {
    let value = request.headers().get(header);
    let steps = value.and_then(|value| serde_json::from_slice(value.as_bytes()).ok());
    steps.unwrap_or_default()
}

/// Tells how full the pool is: open connections, idle ones, requests that wait.
async fn pool_status(pool: web::Data<Pool>) -> HttpResponse {
    let status = pool.status();
    HttpResponse::Ok().json([status.size, status.available, status.waiting])
}

/// Routes of all handlers.
pub(super) fn routes(app: &mut web::ServiceConfig) {
    app.route("/pay", web::post().to(pay))
        .route("/waiting", web::post().to(waiting))
        .route("/brief", web::post().to(brief))
        .route("/hurried", web::post().to(hurried))
        .route("/serializable", web::post().to(serializable))
        .route("/pool", web::get().to(pool_status));
}
