//! The status of a key: what has become of it, for whoever owns it.

use actix_web::{
    FromRequest, HttpRequest, HttpResponse, Resource,
    http::header::{CACHE_CONTROL, HeaderValue, RETRY_AFTER},
    rt, web,
};
use serde::Serialize;

use super::{Problem, ProblemKind, reply};
use crate::{
    backend::{Backend, Dated, Seen},
    model::{Identity, InvalidScope, Key, Kind, Scope, ScopeKey},
    settings::Idempotency,
};

/// Makes the resource that tells a key's owner what has become of it, so that a client that lost
/// an answer can ask before it sends again: `GET <path>/<operation>/<key>`.
///
/// The operation is what the handler's attribute calls it (`operation = "payments.create"`), or
/// method and route pattern (`POST /payments`). It and the key are percent-encoded:
/// `/idempotency/POST%20%2Fpayments/order-7`. `B` is the handlers' backend, and `S` the extractor that
/// names the caller. As a scope, `S` has to be what the handlers' `scope` expression is, part for part:
/// with `scope = account` that is the type of `account`. With `scope = (account.tenant, account.id)`
/// it is an extractor of your own whose `ScopeKey` has these two parts; any other `S` finds nothing,
/// and a client is told `key-unknown`. `web::Path` is no such extractor: here the path names operation
/// and key.
///
///
/// ```
/// use actix_web::{App, web};
/// use idem_runtime::{Idempotency, postgres::Postgres, status};
///
/// # type Account = web::ReqData<String>;
/// # fn app(idempotency: Idempotency) {
/// App::new()
///     .app_data(web::Data::new(idempotency))
///     .service(status::resource::<Account, Postgres>("/idempotency"));
/// # }
/// ```
///
/// The answer is a JSON document:
///
/// | `state` | what it means |
/// |---|---|
/// | `executed` | the key has had its effect; `status`, `created`, `expires` and `lifetime` (the seconds left) are those of its record |
/// | `running` | a request is at work on it; `Retry-After` says when to ask again |
/// | `refused` | no effect; the same members tell of the latest refusal. A corrected request may still run |
///
/// With `?answer=true` it is the stored answer itself in place of its record, marked with
/// `Idempotent-Replayed: true`. All else is a problem document, first of all `key-unknown` (404):
/// nothing runs and nothing is stored, so the request may be sent, or sent again, with this key.
/// Another owner's key is unknown in the same way.
///
/// Asking waits for no request and keeps none waiting. It says `running` of a request in any
/// process, with SQLite only of one in this process.
///
/// Whoever `S` lets in can see the answers stored in its scope: a handler's `authorize` is not
/// asked. Put a guard or a middleware around the resource where that matters.
#[must_use]
pub fn resource<S, B>(path: &str) -> Resource
where
    S: FromRequest + ScopeKey + 'static,
    B: Backend,
{
    at(path).route(
        web::get().to(async |owner: S, request: HttpRequest| {
            respond::<B>(Scope::of(&owner), &request).await
        }),
    )
}

/// Makes the resource for the operations under `scope = global`; see [`resource`]. Whoever knows a
/// key can see its answer.
#[must_use]
pub fn global<B: Backend>(path: &str) -> Resource {
    at(path).route(
        web::get()
            .to(async |request: HttpRequest| respond::<B>(Ok(Scope::global()), &request).await),
    )
}

/// What follows the path is taken as a whole, so that a question that is not understood is told so.
const ASKED: &str = "asked";

fn at(path: &str) -> Resource {
    web::resource(format!("{}/{{{ASKED}:.*}}", path.trim_end_matches('/')))
}

/// Answers, and keeps caches from answering in its place.
async fn respond<B: Backend>(
    scope: Result<Scope, InvalidScope>,
    request: &HttpRequest,
) -> HttpResponse {
    let mut response = if let Some(idempotency) = request.app_data::<web::Data<Idempotency<B>>>() {
        let answer = answer(idempotency, scope, request).await;
        answer.unwrap_or_else(|problem| idempotency.render(&problem, request))
    } else {
        tracing::error!(
            "no `Idempotency` for the resource of keys' status in the app data: add \
             `.app_data(web::Data::new(idempotency.clone()))` to the `App`"
        );
        Problem::new(ProblemKind::Internal).to_response()
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn answer<B: Backend>(
    idempotency: &Idempotency<B>,
    scope: Result<Scope, InvalidScope>,
    request: &HttpRequest,
) -> Result<HttpResponse, Problem> {
    let scope = scope.map_err(|error| {
        tracing::warn!("a key's status: {error}");
        Problem::new(ProblemKind::ScopeInvalid)
    })?;
    let not_understood = || Problem::new(ProblemKind::QueryInvalid);
    let with_answer = match request.query_string() {
        "" | "answer=false" => false,
        "answer=true" => true,
        _ => return Err(not_understood()),
    };
    let (operation, key) = asked(request).ok_or_else(not_understood)?;
    let key = Key::new(&key).map_err(Problem::invalid_key)?;
    let identity = Identity::new(scope, operation, key);

    // Before the database is asked: a record is there before its request leaves the gate.
    let runs_here = idempotency.gate().is_live(&identity);
    // Detached: a client that hangs up is not to cost a connection.
    let asking = idempotency.clone();
    let asked = rt::spawn(async move { asking.backend().status(&identity).await });
    // Only a worker that is stopped by force ends the task without an answer.
    let unavailable = || Problem::new(ProblemKind::StoreUnavailable);
    let Seen { held, record } = asked.await.map_err(|_| unavailable())?.map_err(|error| {
        tracing::warn!("a key's status: {error}");
        unavailable()
    })?;
    match record {
        Some(effect) if effect.record.kind == Kind::Effect => {
            show("executed", &effect, with_answer)
        }
        _ if runs_here || held => Ok(running()),
        Some(refusal) => show("refused", &refusal, with_answer),
        None => Err(Problem::new(ProblemKind::KeyUnknown)),
    }
}

/// What is asked for: an operation and a key.
///
/// The router has already decoded what it shows, with an eye on slashes only. So its path tells how
/// many segments there are, and the request's own what they are.
fn asked(request: &HttpRequest) -> Option<(String, String)> {
    let segments = request.match_info().get(ASKED)?.split('/').count();
    let mut path = request.uri().path().rsplitn(3, '/');
    let (key, operation) = (path.next()?, path.next()?);
    (segments == 2).then_some(())?;
    Some((decode(operation)?, decode(key)?))
}

/// Undoes percent-encoding.
fn decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? << 4 | digit()?).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

/// The members of the document.
#[derive(Serialize)]
struct Document<'a> {
    state: &'a str,
    #[serde(flatten)]
    record: Option<Shown<'a>>,
}

#[derive(Serialize)]
struct Shown<'a> {
    status: u16,
    created: &'a str,
    expires: &'a str,
    lifetime: u64,
}

fn show(state: &str, dated: &Dated, with_answer: bool) -> Result<HttpResponse, Problem> {
    if with_answer {
        let replay = reply::replay(&dated.record.snapshot);
        return replay.ok_or_else(|| Problem::new(ProblemKind::Internal));
    }
    let record = Shown {
        status: dated.record.snapshot.status,
        created: &dated.created,
        expires: &dated.expires,
        lifetime: dated.record.remaining.as_secs(),
    };
    Ok(HttpResponse::Ok().json(Document {
        state,
        record: Some(record),
    }))
}

/// Not 202: what was asked for here, the status, is complete.
fn running() -> HttpResponse {
    HttpResponse::Ok()
        .insert_header((RETRY_AFTER, "1"))
        .json(Document {
            state: "running",
            record: None,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_encoding_is_undone_once_and_only_where_it_is_right() {
        for (text, decoded) in [
            ("POST%20%2Fpayments", Some("POST /payments")),
            ("a%2541+b", Some("a%41+b")),
            ("%c3%B6", Some("ö")),
            ("%", None),
            ("%4", None),
            ("%zz", None),
            ("%+1", None),
            ("%ff", None),
        ] {
            assert_eq!(decode(text).as_deref(), decoded, "{text}");
        }
    }
}
