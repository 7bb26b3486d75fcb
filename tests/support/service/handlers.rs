//! One scripted handler, under the attributes that the tests need, written once for every backend.

use std::{
    fmt,
    fs::File,
    future::{Ready, ready},
    time::Duration,
};

use actix_web::{
    FromRequest, HttpRequest, HttpResponse, ResponseError, dev::Payload, http::StatusCode, web,
};
use idem_runtime::ScopeKey;

use super::{
    Executions,
    db::Db,
    script::{Script, Step},
};
use crate::kinds::Kind;

/// The caller, as the header `x-account` names it. `revoked` is nobody any more, `leaver` since the first execution;
/// the error of `unrenderable` is.
#[derive(Clone, Debug, ScopeKey)]
pub struct Account(pub String);

impl FromRequest for Account {
    type Error = Failure;
    type Future = Ready<Result<Self, Failure>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let header = request.headers().get("x-account");
        let account = header.and_then(|value| value.to_str().ok());
        let runs = request.app_data::<Runs>().map_or(0, |runs| runs.get());
        ready(match account {
            Some("revoked") => Err(Failure::status(403)),
            Some("unrenderable") => Err(Failure::status(UNRENDERABLE)),
            Some("leaver") if runs > 0 => Err(Failure::status(403)),
            Some(account) => Ok(Self(account.to_owned())),
            None => Err(Failure::status(401)),
        })
    }
}

/// An error of the service's own. One with the status [`UNRENDERABLE`] panics when it is to become an answer.
#[derive(Debug)]
pub struct Failure {
    /// The status that it answers with.
    pub status: StatusCode,
    /// The database's SQLSTATE, if it was the database.
    pub code: Option<String>,
}

impl Failure {
    pub(crate) fn status(status: u16) -> Self {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { status, code: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failure {} {:?}", self.status, self.code)
    }
}

impl std::error::Error for Failure {}

/// The status of an error that cannot be rendered.
pub const UNRENDERABLE: u16 = 599;

impl ResponseError for Failure {
    fn status_code(&self) -> StatusCode {
        assert_ne!(self.status.as_u16(), UNRENDERABLE, "the test wants it");
        self.status
    }
}

/// Writes an effect, goes through the script, answers with a body that differs at every run.
///
/// # Errors
/// Where the script wants one.
pub async fn play<K: Kind>(
    account: &Account,
    script: &Script,
    mut db: impl Db,
    executions: &Executions,
    pool: &K::Pool,
) -> Result<HttpResponse, Failure> {
    executions.count();
    let execution = db.effect(&account.0, &script.note).await?;
    for step in &script.steps {
        let step = match step {
            Step::Once(file, step) if File::create_new(file).is_ok() => step,
            Step::Once(..) => continue,
            step => step,
        };
        match step {
            Step::Sleep(milliseconds) => {
                tokio::time::sleep(Duration::from_millis(*milliseconds)).await;
            }
            Step::Sql(sql) => db.run(sql).await?,
            Step::Try(sql) => drop(db.run(sql).await),
            Step::Savepoint(sql) => db.try_below_a_savepoint(sql).await?,
            Step::Need(id, status) => {
                if db.amount(id).await? < 1 {
                    return Err(Failure::status(*status));
                }
            }
            Step::Fail(status) => return Err(Failure::status(*status)),
            Step::SecondConnection => drop(K::ask(pool, "SELECT '1'").await?),
            #[expect(clippy::panic, reason = "the script wants it")]
            Step::Once(..) | Step::Panic => panic!("the script wants it"),
            Step::LeakStream => db.leak_rows().await?,
        }
    }
    if script.error {
        return Err(Failure::status(script.status));
    }
    let status = StatusCode::from_u16(script.status).unwrap_or(StatusCode::IM_A_TEAPOT);
    let mut response = HttpResponse::build(status);
    for (name, value) in &script.headers {
        response.append_header((name.as_str(), value.as_str()));
    }
    Ok(match script.length {
        0 => response.json(serde_json::json!({ "execution": execution, "note": script.note })),
        length => response.body("x".repeat(length)),
    })
}

/// The body of a scripted request.
pub type Scripted = web::Json<Script>;
/// Counts executions.
pub type Runs = web::Data<Executions>;

pub(super) fn by_note(input: &idem_runtime::FingerprintInput<'_>) -> Vec<u8> {
    let script: Script = serde_json::from_slice(input.body).expect("a script");
    script.note.into_bytes()
}

pub(super) async fn may_act<S>(
    account: &Account,
    script: &Scripted,
    runs: &Runs,
    _: &S,
) -> Result<(), Failure> {
    assert_ne!(script.note, "panic", "the script wants it");
    if script.note == "unrenderable" {
        return Err(Failure::status(UNRENDERABLE));
    }
    // Revoked after the first execution.
    if account.0 == "once" && runs.get() > 0 {
        return Err(Failure::status(403));
    }
    Ok(())
}

/// Writes the scripted handler under each list of options.
macro_rules! scripted {
    // The names of the parameters come from outside, or the options could not name them.
    ($kind:ty, $tx:ty; $account:ident $script:ident; $($(#[$docs:meta])* $name:ident [$($options:tt)*])*) => {$(
        $(#[$docs])*
        #[idempotent($($options)*)]
        pub async fn $name(
            $account: Account,
            $script: Scripted,
            runs: Runs,
            shared: Shared,
            tx: $tx,
        ) -> Result<HttpResponse, Failure> {
            play::<$kind>(&$account, &$script, tx, &runs, &shared).await
        }
    )*};
}
pub(super) use scripted;

/// Writes all handlers, with the transaction parameter of one backend.
macro_rules! handlers {
    ($kind:ty, $tx:ty) => {
        use actix_web::{HttpRequest, HttpResponse, web};
        use bytes::Bytes;
        use idem_runtime::{IdempotencyKey, idempotent, status};

        use $crate::{
            kinds::Kind,
            service::{
                handlers::{Account, Failure, Runs, Scripted, by_note, may_act, play, scripted},
                unscripted::{Form, chunks, unscripted, wanted_status, write_effect},
            },
        };

        // Named so that no handler takes a `web::Data<Pool>`.
        type Shared = web::Data<<$kind as Kind>::Pool>;
        type Backend = <$kind as Kind>::Backend;

        scripted! { $kind, $tx; account script;
            /// The usual attribute.
            effects [scope = account, ttl = "24h"]
            /// Duplicates wait.
            waiting [scope = account, wait = "10s"]
            /// Duplicates wait, but not long.
            impatient [scope = account, wait = "300ms"]
            /// Records live for a moment.
            brief [scope = account, ttl = "2s", timeout = "1s"]
            /// The handler has little time.
            hurried [scope = account, timeout = "1s"]
            /// The handler has some time.
            limited [scope = account, timeout = "2s"]
            /// Small bodies, small answers.
            small [scope = account, max_body = "1KiB", max_response = "1KiB"]
            /// The key may be missing.
            optional [scope = account, key = optional]
            /// The key is in another header.
            renamed [scope = account, header = "X-Request-Id"]
            /// The operation has a name of its own.
            named [scope = account, operation = "effects.named"]
            /// Bodies are compared by their bytes.
            raw [scope = account, fingerprint = raw]
            /// Bodies are compared by their note alone.
            custom [scope = account, fingerprint = by_note]
            /// A deliberate 402 keeps its writes.
            committing [scope = account, commit_on = [402]]
            /// A 404 frees the key.
            releasing [scope = account, release_on = [404]]
            /// Runs as if alone.
            serializable [scope = account, isolation = "serializable"]
            /// Runs on one snapshot.
            repeatable [scope = account, isolation = "repeatable read"]
            /// All callers share their keys.
            global [scope = global]
            /// The key stands in the body.
            keyed_by_note [scope = account, key = script.note]
            /// Not everybody may.
            authorized [scope = account, authorize = may_act]
        }

        unscripted! { $tx }

        /// Routes of all handlers.
        pub fn configure(app: &mut web::ServiceConfig) {
            app.route("/effects", web::post().to(effects))
                .route("/effects", web::get().to(effects))
                .route("/effects", web::head().to(effects))
                .route("/effects", web::patch().to(effects))
                .route("/orders/{id}", web::post().to(effects))
                .route("/waiting", web::post().to(waiting))
                .route("/impatient", web::post().to(impatient))
                .route("/brief", web::post().to(brief))
                .route("/hurried", web::post().to(hurried))
                .route("/limited", web::post().to(limited))
                .route("/small", web::post().to(small))
                .route("/optional", web::post().to(optional))
                .route("/renamed", web::post().to(renamed))
                .route("/named/old", web::post().to(named))
                .route("/named/new", web::post().to(named))
                .route("/raw", web::post().to(raw))
                .route("/custom", web::post().to(custom))
                .route("/committing", web::post().to(committing))
                .route("/releasing", web::post().to(releasing))
                .route("/serializable", web::post().to(serializable))
                .route("/repeatable", web::post().to(repeatable))
                .route("/global", web::post().to(global))
                .route("/keyed", web::post().to(keyed_by_note))
                .route("/authorized", web::post().to(authorized))
                .service(status::resource::<Account, Backend>("/idempotency"))
                .service(status::global::<Backend>("/idempotency-of-everybody"))
                .configure(configure_unscripted);
        }
    };
}
pub(super) use handlers;
