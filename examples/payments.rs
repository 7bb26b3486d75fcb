//! A payments service: money moves once, however often the client asks.
//!
//! ```text
//! cargo run --example payments              serves on http://127.0.0.1:8080
//! cargo run --example payments -- --demo    serves, pays itself, prints what came of it
//!
//! curl -i http://127.0.0.1:8080/payments -H 'Authorization: Bearer acct_1' \
//!      -H 'Idempotency-Key: order-7' --json '{"to":"acct_2","amount":1999,"currency":"usd"}'
//! curl http://127.0.0.1:8080/accounts/acct_1 -H 'Authorization: Bearer acct_1'
//! curl http://127.0.0.1:8080/idempotency/payments.create/order-7 -H 'Authorization: Bearer acct_1'
//! curl http://127.0.0.1:8080/openapi.json
//! ```
//!
//! `DATABASE_URL` names the PostgreSQL database; without it, a private one is started from the
//! installed server and removed at the end. `BIND` is the address (default `127.0.0.1:8080`).

use std::{env, error::Error, fmt, io, process::ExitCode, time::Duration};

use actix_web::{
    App, FromRequest, HttpRequest, HttpResponse, HttpServer, Responder, ResponseError,
    dev::Payload,
    get,
    http::{StatusCode, header},
    post, web,
};
use deadpool_postgres::{
    Pool,
    tokio_postgres::{self, error::SqlState},
};
use idem_cluster::Cluster;
use idem_examples::demo;
use idem_runtime::{
    Idempotency, ScopeKey, idempotent,
    openapi::Idempotent,
    postgres::{self, Postgres, Tx},
    status,
};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use utoipa::{
    Modify, OpenApi, ToSchema,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS accounts (
        id text PRIMARY KEY, balance bigint NOT NULL CHECK (balance >= 0), currency text NOT NULL
    );
    CREATE TABLE IF NOT EXISTS payments (
        id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
        payer text NOT NULL REFERENCES accounts, payee text NOT NULL REFERENCES accounts,
        amount bigint NOT NULL CHECK (amount > 0), currency text NOT NULL
    );
    INSERT INTO accounts
    SELECT id, 1000000, 'usd' FROM unnest(ARRAY['acct_1', 'acct_2']) AS id
     WHERE NOT EXISTS (SELECT FROM accounts);";

/// The caller: `Authorization: Bearer <account id>` stands for a real token.
#[derive(ScopeKey)]
struct Account {
    id: String,
}

#[derive(Deserialize, ToSchema)]
struct NewPayment {
    #[schema(example = "acct_2")]
    to: String,
    #[schema(example = 1)]
    amount: i64,
    #[schema(example = "usd")]
    currency: String,
}

#[derive(Serialize, ToSchema)]
struct Payment {
    id: i64,
    from: String,
    to: String,
    amount: i64,
    currency: String,
}

#[derive(Serialize, ToSchema)]
struct AccountView {
    id: String,
    balance: i64,
    currency: String,
}

/// Why a request was refused.
#[derive(Serialize, ToSchema)]
struct Refusal {
    error: String,
}

/// The contract. What it says about idempotency comes from the attributes.
#[derive(OpenApi)]
#[openapi(
    info(title = "Payments", version = "1"),
    paths(create_payment, show_payment, show_account),
    modifiers(&Idempotent, &Bearer)
)]
struct Contract;

/// How callers say who they are.
struct Bearer;

impl Modify for Bearer {
    fn modify(&self, contract: &mut utoipa::openapi::OpenApi) {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let components = contract.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    }
}

/// Moves money from the caller's account to another.
#[utoipa::path(
    security(("bearer" = [])),
    responses(
        (status = 201, body = Payment, description = "The money has moved.",
         headers(("Location" = String, description = "Where the payment can be seen."))),
        (status = 400, body = Refusal, description = "This is no payment."),
        (status = 401, body = Refusal, description = "The caller is unknown."),
        (status = 402, body = Refusal, description = "The account holds too little money."),
        (status = 404, body = Refusal, description = "One of the accounts does not exist."),
        (status = 503, body = Refusal, description = "Nothing has happened; a repeat is safe."),
    )
)]
#[post("/payments")]
#[idempotent(scope = account, ttl = "24h", operation = "payments.create")]
async fn create_payment(
    account: Account,
    payment: web::Json<NewPayment>,
    tx: &Tx,
) -> Result<HttpResponse, PaymentError> {
    let NewPayment {
        to,
        amount,
        currency,
    } = payment.into_inner();
    if amount <= 0 || to == account.id {
        return Err(PaymentError::Invalid);
    }
    // Locked in one order, so that payments in both directions do not block each other.
    let lock =
        "SELECT id, balance, currency FROM accounts WHERE id IN ($1, $2) ORDER BY id FOR UPDATE";
    let lock = tx.prepare_cached(lock).await?;
    let accounts = tx.query(&lock, &[&account.id, &to]).await?;
    let find = |id: &str| accounts.iter().find(|row| row.get::<_, &str>("id") == id);
    let payer = find(&account.id).ok_or(PaymentError::NoSuchAccount)?;
    let payee = find(&to).ok_or(PaymentError::NoSuchAccount)?;
    if [payer, payee]
        .iter()
        .any(|row| row.get::<_, &str>("currency") != currency)
    {
        return Err(PaymentError::Invalid);
    }

    let insert = "INSERT INTO payments (payer, payee, amount, currency) VALUES ($1, $2, $3, $4) RETURNING id";
    let insert = tx.prepare_cached(insert).await?;
    let id = tx
        .query_one(&insert, &[&account.id, &to, &amount, &currency])
        .await?
        .get("id");
    // The payment stands in its table by now: the runtime takes it back with the refusal.
    if payer.get::<_, i64>("balance") < amount {
        return Err(PaymentError::NotEnoughMoney);
    }
    let update = "UPDATE accounts SET balance = balance + $2 WHERE id = $1";
    let update = tx.prepare_cached(update).await?;
    tx.execute(&update, &[&account.id, &-amount]).await?;
    tx.execute(&update, &[&to, &amount]).await?;

    Ok(HttpResponse::Created()
        .insert_header((header::LOCATION, format!("/payments/{id}")))
        .json(Payment {
            id,
            from: account.id,
            to,
            amount,
            currency,
        }))
}

/// Shows a payment to its payer and its payee. A GET changes nothing and needs no attribute.
#[utoipa::path(
    security(("bearer" = [])),
    responses(
        (status = 200, body = Payment, description = "The payment."),
        (status = 401, body = Refusal, description = "The caller is unknown."),
        (status = 404, description = "The caller has neither made nor got such a payment."),
        (status = 503, body = Refusal, description = "A repeat may succeed."),
    )
)]
#[get("/payments/{id}")]
async fn show_payment(
    account: Account,
    id: web::Path<i64>,
    pool: web::Data<Pool>,
) -> Result<web::Json<Payment>, PaymentError> {
    let client = pool.get().await.map_err(|_| PaymentError::Unavailable)?;
    let select = "SELECT * FROM payments WHERE id = $1 AND $2 IN (payer, payee)";
    let row = client.query_opt(select, &[&*id, &account.id]).await?;
    let row = row.ok_or(PaymentError::NoSuchPayment)?;
    Ok(web::Json(Payment {
        id: row.get("id"),
        from: row.get("payer"),
        to: row.get("payee"),
        amount: row.get("amount"),
        currency: row.get("currency"),
    }))
}

/// Shows the caller's own account.
#[utoipa::path(
    security(("bearer" = [])),
    responses(
        (status = 200, body = AccountView, description = "The account."),
        (status = 401, body = Refusal, description = "The caller is unknown."),
        (status = 404, body = Refusal, description = "The caller has no such account."),
        (status = 503, body = Refusal, description = "A repeat may succeed."),
    )
)]
#[get("/accounts/{id}")]
async fn show_account(
    account: Account,
    id: web::Path<String>,
    pool: web::Data<Pool>,
) -> Result<web::Json<AccountView>, PaymentError> {
    if *id != account.id {
        return Err(PaymentError::NoSuchAccount);
    }
    let client = pool.get().await.map_err(|_| PaymentError::Unavailable)?;
    let row = client
        .query_opt("SELECT * FROM accounts WHERE id = $1", &[&*id])
        .await?;
    let row = row.ok_or(PaymentError::NoSuchAccount)?;
    Ok(web::Json(AccountView {
        id: row.get("id"),
        balance: row.get("balance"),
        currency: row.get("currency"),
    }))
}

async fn contract() -> impl Responder {
    web::Json(Contract::openapi())
}

impl FromRequest for Account {
    type Error = PaymentError;
    type Future = std::future::Ready<Result<Self, PaymentError>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let header = request.headers().get(header::AUTHORIZATION);
        let token = header.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let id = token
            .filter(|id| !id.is_empty())
            .ok_or(PaymentError::Unauthorized);
        std::future::ready(id.map(|id| Self { id: id.to_owned() }))
    }
}

#[derive(Debug)]
enum PaymentError {
    Unauthorized,
    Invalid,
    NotEnoughMoney,
    NoSuchAccount,
    NoSuchPayment,
    /// Two payments met in the database: a new run may succeed.
    Conflict,
    Unavailable,
}

impl ResponseError for PaymentError {
    fn status_code(&self) -> StatusCode {
        match self {
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Invalid => StatusCode::BAD_REQUEST,
            Self::NotEnoughMoney => StatusCode::PAYMENT_REQUIRED,
            Self::NoSuchAccount | Self::NoSuchPayment => StatusCode::NOT_FOUND,
            Self::Conflict | Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn error_response(&self) -> HttpResponse {
        HttpResponse::build(self.status_code()).json(Refusal {
            error: self.to_string(),
        })
    }
}

impl fmt::Display for PaymentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unauthorized => "say who you are: `Authorization: Bearer <account id>`",
            Self::Invalid => "a payment takes a positive amount in the currency of both accounts, to another account",
            Self::NotEnoughMoney => "not enough money",
            Self::NoSuchAccount => "no such account",
            Self::NoSuchPayment => "no such payment",
            Self::Conflict | Self::Unavailable => "try again later",
        })
    }
}

impl From<tokio_postgres::Error> for PaymentError {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.code() {
            Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED) => {
                Self::Conflict
            }
            // A text with a NUL, which PostgreSQL does not take.
            Some(&SqlState::CHARACTER_NOT_IN_REPERTOIRE) => Self::Invalid,
            _ => Self::Unavailable,
        }
    }
}

#[actix_web::main]
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .init();
    match serve(env::args().any(|argument| argument == "--demo")).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("payments: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until it is told to stop; in a demonstration, until that is over.
async fn serve(demonstrate: bool) -> Result<bool, Box<dyn Error>> {
    // Kept until the end, since it is removed when dropped.
    let (url, _cluster) = if let Ok(url) = env::var("DATABASE_URL") {
        (url, None)
    } else {
        let cluster = Cluster::start()?;
        cluster.create_database("payments")?;
        (cluster.url("payments"), Some(cluster))
    };
    let pool = postgres::pool(&url).open()?;
    let conflict =
        |error: &actix_web::Error| matches!(error.as_error(), Some(PaymentError::Conflict));
    let idempotency = Idempotency::builder(pool.clone())
        .retryable(conflict)
        .build()?;
    idempotency.migrate().await?;
    pool.get().await?.batch_execute(SCHEMA).await?;
    let _sweeper = idempotency.sweep_every(Duration::from_secs(60));

    let (draining, stop) = (idempotency.clone(), tokio::sync::oneshot::channel::<()>());
    let (stop, stopped) = stop;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let service = HttpServer::new(move || {
        App::new()
            .app_data(web::Data::new(idempotency.clone()))
            .app_data(web::Data::new(pool.clone()))
            .app_data(web::JsonConfig::default().error_handler(|_, _| PaymentError::Invalid.into()))
            .service(create_payment)
            .service(show_payment)
            .service(show_account)
            .service(status::resource::<Account, Postgres>("/idempotency"))
            .route("/openapi.json", web::get().to(contract))
    })
    .shutdown_signal(async move {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
            Ok(()) = stopped => {}
        }
        // First what runs for clients that have hung up, then the server.
        draining.drain().await;
    })
    .bind(env::var("BIND").unwrap_or_else(|_| {
        // A demonstration is not to fail because somebody else listens there.
        if demonstrate {
            "127.0.0.1:0"
        } else {
            "127.0.0.1:8080"
        }
        .to_owned()
    }))?;
    let address = service
        .addrs()
        .first()
        .map(|address| format!("http://{address}"));
    let address = address.unwrap_or_default();
    println!("payments: serving on {address}");

    let server = service.run();
    if !demonstrate {
        server.await?;
        return Ok(true);
    }
    let server = actix_web::rt::spawn(server);
    let demonstrated = demo::payments(&address).await;
    let _ = stop.send(());
    server.await??;
    demonstrated
}
