//! A payments service that pays once, however often the client asks, with nothing to install: its database is a file.
//!
//! ```text
//! cargo run --example quickstart              serves on http://127.0.0.1:8080, and says what to send
//! cargo run --example quickstart -- --demo    serves, pays itself, prints what came of it
//! ```
//!
//! `BIND` is the address. The file is a temporary one, and removed at the end.

use std::{
    env,
    error::Error,
    fs, io,
    path::PathBuf,
    process::{self, ExitCode},
};

use actix_web::{
    App, FromRequest, HttpRequest, HttpResponse, HttpServer,
    dev::Payload,
    error::{
        ErrorBadRequest, ErrorInternalServerError, ErrorNotFound, ErrorPaymentRequired,
        ErrorUnauthorized,
    },
    get,
    http::header,
    post, rt, web,
};
use idem_examples::demo;
use idem_runtime::{Idempotency, ScopeKey, idempotent, sqlite};
use serde::Deserialize;
use serde_json::json;
use sqlx::{SqliteConnection, SqlitePool, query, query_scalar, raw_sql};
use tokio::signal;
#[cfg(unix)]
use tokio::signal::unix::SignalKind;

const SCHEMA: &str = "
    CREATE TABLE accounts (id TEXT PRIMARY KEY, balance INTEGER NOT NULL);
    CREATE TABLE payments (id INTEGER PRIMARY KEY, payer TEXT NOT NULL, payee TEXT NOT NULL, amount INTEGER NOT NULL);
    INSERT INTO accounts VALUES ('acct_1', 1000000), ('acct_2', 1000000);";

/// The caller: `Authorization: Bearer <account id>` stands for a real token.
#[derive(ScopeKey)]
struct Account {
    id: String,
}

#[derive(Deserialize)]
struct NewPayment {
    to: String,
    amount: i64,
}

/// Moves money from the caller's account to another.
#[post("/payments")]
#[idempotent(scope = account, ttl = "24h")]
async fn create_payment(
    account: Account,
    payment: web::Json<NewPayment>,
    tx: &mut SqliteConnection,
) -> actix_web::Result<HttpResponse> {
    let NewPayment { to, amount } = payment.into_inner();
    if amount <= 0 {
        return Err(ErrorBadRequest("a payment takes a positive amount"));
    }
    let insert = "INSERT INTO payments (payer, payee, amount) VALUES ($1, $2, $3) RETURNING id";
    let insert = query_scalar(insert)
        .bind(&account.id)
        .bind(&to)
        .bind(amount);
    let id: i64 = insert.fetch_one(&mut *tx).await.map_err(failed)?;

    // The payment stands in its table by now: the runtime takes it back with each of these refusals.
    let take = "UPDATE accounts SET balance = balance - $2 WHERE id = $1 AND balance >= $2";
    let take = query(take).bind(&account.id).bind(amount);
    if take
        .execute(&mut *tx)
        .await
        .map_err(failed)?
        .rows_affected()
        == 0
    {
        return Err(ErrorPaymentRequired("not enough money"));
    }
    let give = "UPDATE accounts SET balance = balance + $2 WHERE id = $1";
    let give = query(give).bind(&to).bind(amount);
    if give
        .execute(&mut *tx)
        .await
        .map_err(failed)?
        .rows_affected()
        == 0
    {
        return Err(ErrorNotFound("no such account"));
    }
    let payment = json!({ "id": id, "from": account.id, "to": to, "amount": amount });
    Ok(HttpResponse::Created().json(payment))
}

/// Shows the caller's own account. A GET changes nothing and needs no attribute.
#[get("/accounts/{id}")]
async fn show_account(
    account: Account,
    id: web::Path<String>,
    pool: web::Data<SqlitePool>,
) -> actix_web::Result<HttpResponse> {
    let select = query_scalar("SELECT balance FROM accounts WHERE id = $1 AND id = $2");
    let select = select.bind(&*id).bind(&account.id);
    let balance: Option<i64> = select.fetch_optional(&**pool).await.map_err(failed)?;
    let balance = balance.ok_or_else(|| ErrorNotFound("no such account"))?;
    Ok(HttpResponse::Ok().json(json!({ "id": account.id, "balance": balance })))
}

impl FromRequest for Account {
    type Error = actix_web::Error;
    type Future = std::future::Ready<actix_web::Result<Self>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let header = request.headers().get(header::AUTHORIZATION);
        let id = header.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        std::future::ready(match id {
            Some(id) if !id.is_empty() => Ok(Self { id: id.to_owned() }),
            _ => Err(ErrorUnauthorized(
                "say who you are: `Authorization: Bearer acct_1`",
            )),
        })
    }
}

fn failed(error: sqlx::Error) -> actix_web::Error {
    ErrorInternalServerError(error)
}

/// Serves until it is told to stop; in a demonstration, until that is over.
#[actix_web::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let demonstrate = env::args().any(|argument| argument == "--demo");
    let folder = Folder::new()?;
    let pool = sqlite::pool(folder.0.join("shop.db")).open().await?;
    raw_sql(SCHEMA).execute(&pool).await?;
    let idempotency = Idempotency::new(pool.clone())?;
    idempotency.migrate().await?;

    let (draining, serving) = (idempotency.clone(), pool.clone());
    let server = HttpServer::new(move || {
        App::new()
            .app_data(web::Data::new(idempotency.clone()))
            .app_data(web::Data::new(serving.clone()))
            .service(create_payment)
            .service(show_account)
    });
    // A demonstration is not to fail because somebody else listens there.
    let default = if demonstrate {
        "127.0.0.1:0"
    } else {
        "127.0.0.1:8080"
    };
    let server = server.bind(env::var("BIND").unwrap_or_else(|_| default.to_owned()))?;
    let address = server.addrs().first().ok_or("no address")?.to_string();
    println!("quickstart: serving on http://{address}");

    let right = if demonstrate {
        let server = server.disable_signals().run();
        let (handle, server) = (server.handle(), rt::spawn(server));
        let demonstrated = demo::payments(&format!("http://{address}")).await;
        handle.stop(true).await;
        server.await??;
        demonstrated?
    } else {
        explain(&address);
        let stop = async move {
            told_to_stop().await;
            // First what runs for clients that have hung up, then the server.
            draining.drain().await;
        };
        server.shutdown_signal(stop).run().await?;
        true
    };
    // The file has to be closed before it can be removed everywhere.
    pool.close().await;
    Ok(ExitCode::from(u8::from(!right)))
}

/// Waits for Ctrl-C or, where there is one, SIGTERM.
async fn told_to_stop() {
    #[cfg(unix)]
    if let Ok(mut terminated) = signal::unix::signal(SignalKind::terminate()) {
        tokio::select! {
            _ = signal::ctrl_c() => {}
            _ = terminated.recv() => {}
        }
        return;
    }
    let _ = signal::ctrl_c().await;
}

/// Says what to send: a payment, the same again, and another one under its key.
fn explain(address: &str) {
    for (what, amount) in [
        ("pays", 1999),
        (
            "the same again: the same answer, and no second payment",
            1999,
        ),
        ("another amount under that key: refused", 2999),
    ] {
        println!(
            "\n# {what}\ncurl -i http://{address}/payments -H 'Authorization: Bearer acct_1' \
             -H 'Idempotency-Key: order-7' --json '{{\"to\":\"acct_2\",\"amount\":{amount}}}'"
        );
    }
}

/// A folder of this process, removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> io::Result<Self> {
        let folder = env::temp_dir().join(format!("idem-quickstart-{}", process::id()));
        fs::create_dir(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("quickstart: {} is left behind: {error}", self.0.display());
        }
    }
}
