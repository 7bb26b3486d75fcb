//! From an actix request to a call of the protocol, and the order of work around it.

use std::{
    borrow::Cow,
    future::{Future, poll_fn, ready},
    panic::AssertUnwindSafe,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use actix_web::{
    Error, FromRequest, HttpRequest, HttpResponse, Responder,
    dev::Payload,
    error::ErrorServiceUnavailable,
    http::{Method, header::CONTENT_TYPE},
    rt, web,
};
use bytes::Bytes;
use futures_util::{FutureExt, future::LocalBoxFuture};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};
use tracing::{Instrument, Span, field};

use super::{
    body,
    executions::Running,
    extract::IdempotencyKey,
    problem::{Problem, ProblemKind},
    reply,
};
use crate::{
    backend::{Backend, Call, Open, Session, Supply},
    gate::Pass,
    meter,
    model::{
        Fate, Fingerprint, FingerprintInput, Identity, InvalidKey, InvalidScope, Key, KeyFrom,
        KeySource, Policy, Scope, ScopeKey,
    },
    protocol::{self, Handler, Mistake, Outcome, Ran},
    settings::Idempotency,
};

/// Holds what a service hooks into the framework.
pub(crate) struct Hooks {
    pub(crate) render: Box<Render>,
    pub(crate) retryable: Box<Retryable>,
    pub(crate) settings: Box<Settings>,
}

type Render = dyn Fn(&Problem, &HttpRequest) -> HttpResponse + Send + Sync;
type Retryable = dyn Fn(&Error) -> bool + Send + Sync;
type Settings = dyn Fn(&HttpRequest) -> Vec<(String, String)> + Send + Sync;

impl Default for Hooks {
    fn default() -> Self {
        Self {
            render: Box::new(|problem, _| problem.to_response()),
            retryable: Box::new(|_| false),
            settings: Box::new(|_| Vec::new()),
        }
    }
}

/// Runs a guarded handler: what `#[idempotent]` expands to a call of.
pub fn run<A, T, H>(
    policy: &'static Policy,
    request: HttpRequest,
    payload: web::Payload,
    scope: fn(&A) -> Result<Scope, InvalidScope>,
    key: fn(&A) -> Result<Option<Key>, InvalidKey>,
    authorize: fn(&A) -> LocalBoxFuture<'_, Result<(), Error>>,
    handler: H,
) -> impl Future<Output = HttpResponse>
where
    A: FromRequest + 'static,
    T: Supply,
    H: for<'a> Fn(A, T::Ref<'a>, &'a HttpRequest) -> LocalBoxFuture<'a, HttpResponse> + 'static,
{
    let typed = Typed {
        scope,
        key,
        authorize,
        // Takes no memory: the closure captures nothing.
        handler: Box::new(handler),
        parameters: None,
    };
    guard::<T::Backend>(policy, request, payload, Box::new(typed))
}

/// Calls the handler with what was extracted and the transaction it is lent.
type Invoke<A, T> = Box<
    dyn for<'a> Fn(A, <T as Supply>::Ref<'a>, &'a HttpRequest) -> LocalBoxFuture<'a, HttpResponse>,
>;

/// One handler with its types taken away, so that what follows is compiled once a backend and not
/// once a handler.
trait Guarded<O> {
    /// Runs the extractors.
    fn extract<'a>(
        &'a mut self,
        request: &'a HttpRequest,
        body: Bytes,
    ) -> LocalBoxFuture<'a, Result<(), Error>>;

    /// Names the scope and, where it stands in the request, the key.
    fn identify(&self) -> Option<Identified>;

    /// Asks whether the caller may have this, be it run or replayed.
    fn authorize(&self) -> LocalBoxFuture<'_, Result<(), Error>>;

    /// Runs the handler with what was extracted last. `None` where it has run with that already.
    fn call<'a>(
        &'a mut self,
        request: &'a HttpRequest,
        open: &'a mut O,
    ) -> Option<LocalBoxFuture<'a, HttpResponse>>;
}

struct Identified {
    scope: Result<Scope, InvalidScope>,
    key: Result<Option<Key>, InvalidKey>,
}

struct Typed<A, T: Supply> {
    scope: fn(&A) -> Result<Scope, InvalidScope>,
    key: fn(&A) -> Result<Option<Key>, InvalidKey>,
    authorize: fn(&A) -> LocalBoxFuture<'_, Result<(), Error>>,
    handler: Invoke<A, T>,
    parameters: Option<A>,
}

impl<A, T> Guarded<<T::Backend as Backend>::Open> for Typed<A, T>
where
    A: FromRequest + 'static,
    T: Supply,
{
    fn extract<'a>(
        &'a mut self,
        request: &'a HttpRequest,
        body: Bytes,
    ) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let parameters = A::from_request(request, &mut Payload::from(body)).await;
            self.parameters = Some(parameters.map_err(Into::into)?);
            Ok(())
        })
    }

    fn identify(&self) -> Option<Identified> {
        let parameters = self.parameters.as_ref()?;
        Some(Identified {
            scope: (self.scope)(parameters),
            key: (self.key)(parameters),
        })
    }

    fn authorize(&self) -> LocalBoxFuture<'_, Result<(), Error>> {
        match &self.parameters {
            Some(parameters) => (self.authorize)(parameters),
            None => Box::pin(ready(Ok(()))),
        }
    }

    fn call<'a>(
        &'a mut self,
        request: &'a HttpRequest,
        open: &'a mut <T::Backend as Backend>::Open,
    ) -> Option<LocalBoxFuture<'a, HttpResponse>> {
        let parameters = self.parameters.take()?;
        Some((self.handler)(parameters, T::supply(open), request))
    }
}

/// Says why a request is answered without the protocol.
enum Refusal {
    Problem(Problem),
    /// An extractor's or `authorize`'s own answer.
    Own(Error),
    /// What has become of the request is reported already.
    Reported(Problem),
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<ProblemKind> for Refusal {
    fn from(kind: ProblemKind) -> Self {
        Self::Problem(Problem::new(kind))
    }
}

async fn guard<B: Backend>(
    policy: &'static Policy,
    request: HttpRequest,
    payload: web::Payload,
    guarded: Box<dyn Guarded<B::Open>>,
) -> HttpResponse {
    let Some(idempotency) = request.app_data::<web::Data<Idempotency<B>>>() else {
        misconfigured(
            policy,
            "no `Idempotency` for the type of its transaction parameter in the app data: add \
             `.app_data(web::Data::new(idempotency.clone()))` to the `App`",
        );
        meter::answered(|| counted(policy, &request), ProblemKind::Internal.name());
        return Problem::new(ProblemKind::Internal).to_response();
    };
    let idempotency = Idempotency::clone(idempotency);
    let span = tracing::info_span!(
        "idempotent",
        handler = policy.handler,
        operation = field::Empty,
        key = field::Empty,
        outcome = field::Empty,
    );
    let answer = answer(policy, &idempotency, &request, payload, guarded).instrument(span.clone());
    match answer.await {
        Ok(response) => response,
        Err(Refusal::Own(error)) => {
            span.in_scope(|| told(policy, &request, "rejected"));
            // An error renders itself, in code of the service's own.
            let rendered = async { HttpResponse::from_error(error) };
            let rendered = caught(policy, "an error's `error_response`", rendered).await;
            rendered.unwrap_or_else(|_| Problem::new(ProblemKind::Internal).to_response())
        }
        Err(Refusal::Problem(problem)) => {
            span.in_scope(|| told(policy, &request, problem.kind().name()));
            idempotency.render(&problem, &request)
        }
        Err(Refusal::Reported(problem)) => idempotency.render(&problem, &request),
    }
}

/// Names the outcome in the span, and counts it.
fn told(policy: &Policy, request: &HttpRequest, outcome: &'static str) {
    Span::current().record("outcome", outcome);
    meter::answered(|| counted(policy, request), outcome);
}

/// Does the work in its order: what is slow or fails comes before the database is asked.
async fn answer<B: Backend>(
    policy: &'static Policy,
    idempotency: &Idempotency<B>,
    request: &HttpRequest,
    payload: web::Payload,
    mut guarded: Box<dyn Guarded<B::Open>>,
) -> Result<HttpResponse, Refusal> {
    let operation = operation(policy, request)?;
    let span = Span::current();
    span.record("operation", &*operation);
    let key = key_of_header(policy, request)?;

    let limit = policy.max_body;
    let body = body::read(request, payload, limit, idempotency.body_timeout()).await?;
    let body = body.ok_or_else(|| {
        misconfigured(
            policy,
            "a middleware has taken the body out of the request: it has to put it back with \
             `ServiceRequest::set_payload`",
        )
    })?;
    let compared = async { fingerprint(policy, request, &operation, &body) };
    let fingerprint = caught(policy, "the `fingerprint` function", compared).await??;

    let slot =
        (key.is_some() || policy.key == KeyFrom::Request).then(|| IdempotencyKey::reserve(request));
    caught(
        policy,
        "an extractor",
        guarded.extract(request, body.clone()),
    )
    .await?
    .map_err(Refusal::Own)?;
    let identified = async { guarded.identify() };
    let identified = caught(policy, "the `scope` or `key` expression", identified).await?;
    let Identified { scope, key: stated } = identified.ok_or(ProblemKind::Internal)?;
    // The client may have chosen it, in the path for example; or an extractor is broken.
    let scope = scope.map_err(|error| unowned(policy, error))?;
    let key = match policy.key {
        KeyFrom::Request => Some(
            stated
                .map_err(Problem::invalid_key)?
                .ok_or(ProblemKind::KeyMissing)?,
        ),
        KeyFrom::Header(_) | KeyFrom::OptionalHeader(_) => key,
    };
    let identity = key.map(|key| Arc::new(Identity::new(scope, operation, key)));
    if let (Some(slot), Some(identity)) = (slot, &identity) {
        slot.set(identity);
        span.record("key", field::display(identity));
    }
    caught(policy, "`authorize`", guarded.authorize())
        .await?
        .map_err(Refusal::Own)?;

    let settings = async { (idempotency.hooks().settings)(request) };
    let session = Session {
        isolation: policy.isolation,
        timeout: policy.timeout,
        settings: caught(policy, "`transaction_settings`", settings).await?,
    };
    let advertised = identity
        .as_ref()
        .and_then(|_| idempotency.advertised(policy.ttl));
    let rerun_as = identity.clone();
    let work = match identity {
        None => Work::Unkeyed(session),
        Some(identity) => {
            let call = Call {
                identity,
                fingerprint,
                ttl: policy.ttl,
                session,
            };
            if let Some(replay) = known(policy, request, idempotency, &call) {
                return replay;
            }
            let until = Instant::now() + policy.wait;
            match protocol::enter(idempotency.gate(), &call, until).await {
                Ok(pass) => Work::Keyed { call, pass, until },
                Err(outcome) => {
                    let outcome = match outcome {
                        Outcome::Mismatch => contradict(idempotency, call).await?,
                        outcome => outcome,
                    };
                    return settle(report(policy, request, outcome), None, advertised);
                }
            }
        }
    };

    let (sender, answered) = oneshot::channel();
    let runner = Runner {
        policy,
        idempotency: idempotency.clone(),
        guarded,
        identity: rerun_as,
        request: request.clone(),
        body,
        has_run: false,
        answer: None,
        sender,
    };
    // Detached: a client that hangs up neither cancels the work nor loses the record.
    let running = idempotency.executions().begin();
    // Boxed: each step of spawning moves the future.
    let work = Box::pin(execute(work, runner, running));
    rt::spawn(work.instrument(span));
    // Only a worker that is stopped by force ends the task without an answer.
    let (outcome, response) = answered.await.map_err(|_| ProblemKind::StoreUnavailable)?;
    settle(outcome, response, advertised)
}

/// Says that a request names no owner of its key that can be one.
fn unowned(policy: &Policy, error: InvalidScope) -> ProblemKind {
    let Policy {
        handler, location, ..
    } = policy;
    tracing::warn!(handler, location, "the handler did not run: {error}");
    ProblemKind::ScopeInvalid
}

/// Answers a request that contradicts another one. Detached like the work itself: a client that
/// hangs up is not to cost a connection.
async fn contradict<B: Backend>(
    idempotency: &Idempotency<B>,
    call: Call,
) -> Result<Outcome, ProblemKind> {
    let running = idempotency.executions().begin();
    let idempotency = idempotency.clone();
    let (sender, answered) = oneshot::channel();
    let work = async move {
        let outcome = protocol::contradict(idempotency.backend(), &call).await;
        // Its client may have gone.
        let _ = sender.send(outcome);
        drop(running);
    };
    rt::spawn(work.in_current_span());
    // Only a worker that is stopped by force ends the task without an answer.
    answered.await.map_err(|_| ProblemKind::StoreUnavailable)
}

enum Work {
    Keyed {
        call: Call,
        pass: Pass,
        until: Instant,
    },
    Unkeyed(Session),
}

/// Carries the work out, answers, and cleans up behind the answer.
async fn execute<B: Backend>(work: Work, mut runner: Runner<B>, running: Running) {
    let idempotency = runner.idempotency.clone();
    let end = match work {
        Work::Keyed { call, pass, until } => {
            let cache = idempotency.cache();
            protocol::lead(
                idempotency.backend(),
                cache,
                &call,
                pass,
                until,
                &mut runner,
            )
            .await
        }
        Work::Unkeyed(session) => {
            Box::pin(protocol::run_unrecorded(
                idempotency.backend(),
                &session,
                &mut runner,
            ))
            .await
        }
    };
    // Also for a client that has hung up.
    let outcome = report(runner.policy, &runner.request, end.outcome);
    runner.answer(outcome);
    if let Some(open) = end.open {
        open.let_go().await;
    }
    drop(running);
}

/// Runs a handler for the protocol and remembers its own answer.
struct Runner<B: Backend> {
    policy: &'static Policy,
    idempotency: Idempotency<B>,
    guarded: Box<dyn Guarded<B::Open>>,
    /// What the key is looked up by; only a request that has one runs again.
    identity: Option<Arc<Identity>>,
    request: HttpRequest,
    body: Bytes,
    has_run: bool,
    answer: Option<HttpResponse>,
    sender: oneshot::Sender<(Outcome, Option<HttpResponse>)>,
}

impl<B: Backend> Handler<B::Open> for Runner<B> {
    async fn run(&mut self, open: &mut B::Open, last: bool) -> Ran {
        let limit = self.policy.timeout;
        let run = AssertUnwindSafe(self.run_within(open, last)).catch_unwind();
        match timeout(limit, run).await {
            Ok(Ok(Ok(ran))) => ran,
            Ok(Ok(Err(mistake))) => Ran::Failed(mistake),
            Ok(Err(_)) => Ran::Failed(Mistake::Panicked),
            Err(_) => Ran::Failed(Mistake::Deadline(limit)),
        }
    }

    fn is_wanted(&self) -> bool {
        !self.sender.is_closed()
    }
}

impl<B: Backend> Runner<B> {
    /// Answers, if the client is still there, and lets go of the request.
    fn answer(self, outcome: Outcome) {
        let _ = self.sender.send((outcome, self.answer));
    }

    /// Runs the handler; what its status says decides what becomes of its writes.
    async fn run_within(&mut self, open: &mut B::Open, last: bool) -> Result<Ran, Mistake> {
        if self.has_run
            && let Err(error) = self.extract_again().await
        {
            // An extractor that fails in a later run answers for itself, as in the first, and the
            // key is untouched.
            self.answer = Some(HttpResponse::from_error(error));
            return Ok(Ran::Release);
        }
        self.has_run = true;
        let Some(run) = self.guarded.call(&self.request, open) else {
            return Ok(Ran::Release); // without an answer, which is a 500
        };
        let response = run.await;
        let fate = self.policy.fate(response.status().as_u16());
        let retryable = |error| (self.idempotency.hooks().retryable)(error);
        if !last && fate != Fate::Commit && response.error().is_some_and(retryable) {
            self.answer = Some(response);
            return Ok(Ran::Again);
        }
        if fate == Fate::Release {
            self.answer = Some(response);
            return Ok(Ran::Release);
        }
        let (response, snapshot) = reply::collect(response, self.policy.max_response).await?;
        self.answer = Some(response);
        Ok(if fate == Fate::Commit {
            Ran::Commit(snapshot)
        } else {
            Ran::Refuse(snapshot)
        })
    }

    /// Extracts the parameters of a later run. They have to be those of the same owner, who still
    /// has to be allowed.
    async fn extract_again(&mut self) -> Result<(), Error> {
        let body = self.body.clone();
        self.guarded.extract(&self.request, body).await?;
        let scope = self.guarded.identify().and_then(|found| found.scope.ok());
        if scope.as_ref() != self.identity.as_deref().map(Identity::scope) {
            return Err(ErrorServiceUnavailable("the request has changed its owner"));
        }
        self.guarded.authorize().await
    }
}

/// Names the outcome in the span and says in the log what went wrong, whether or not somebody still
/// waits for the answer.
fn report(policy: &Policy, request: &HttpRequest, outcome: Outcome) -> Outcome {
    let Policy {
        handler, location, ..
    } = policy;
    let name = match &outcome {
        Outcome::Answer(Fate::Commit) => "executed",
        Outcome::Answer(Fate::Refuse) => "refused",
        Outcome::Answer(Fate::Release) => "released",
        Outcome::Replay(_) => "replayed",
        Outcome::Mismatch => "key-reused",
        Outcome::InProgress => "in-progress",
        Outcome::Mistaken(mistake) => {
            tracing::error!(handler, location, "{mistake}; nothing is recorded");
            match mistake {
                Mistake::Deadline(_) => "handler-timeout",
                _ => "internal",
            }
        }
        Outcome::Refused(error) => {
            tracing::error!(handler, location, "{error}; nothing is recorded");
            "internal"
        }
        Outcome::Unavailable(error) => {
            tracing::warn!(handler, location, "{error}");
            "store-unavailable"
        }
        Outcome::Unknown(error) => {
            tracing::error!(
                handler,
                location,
                "{error}; without a key nobody can tell whether the transaction was committed"
            );
            "outcome-unknown"
        }
        Outcome::Exhausted => {
            tracing::warn!(
                handler,
                location,
                "gave up after several runs that others overtook"
            );
            "store-unavailable"
        }
    };
    told(policy, request, name);
    outcome
}

/// Answers a repeat of an effect that this process remembers.
fn known<B: Backend>(
    policy: &Policy,
    request: &HttpRequest,
    idempotency: &Idempotency<B>,
    call: &Call,
) -> Option<Result<HttpResponse, Refusal>> {
    let (record, remaining) = idempotency.known(call)?;
    let advertised = idempotency.advertised(remaining);
    told(policy, request, "remembered");
    let replay = settle(Outcome::Replay(record), None, None);
    Some(replay.map(|replay| reply::advertising(replay, advertised)))
}

/// Turns the protocol's outcome into an answer, which says how long its record lives if that is to
/// be `advertised`.
fn settle(
    outcome: Outcome,
    answer: Option<HttpResponse>,
    advertised: Option<Duration>,
) -> Result<HttpResponse, Refusal> {
    // What has become of the request is reported already.
    let internal = || Refusal::Reported(Problem::new(ProblemKind::Internal));
    let problem = match outcome {
        Outcome::Answer(fate) => {
            let answer = answer.ok_or_else(internal)?;
            let kept = advertised.filter(|_| fate != Fate::Release);
            return Ok(reply::advertising(answer, kept));
        }
        Outcome::Replay(record) => {
            let replay = reply::replay(&record.snapshot).ok_or_else(internal)?;
            return Ok(reply::advertising(
                replay,
                advertised.and(Some(record.remaining)),
            ));
        }
        Outcome::Mismatch => ProblemKind::KeyReused,
        Outcome::InProgress => ProblemKind::InProgress,
        Outcome::Mistaken(Mistake::Deadline(_)) => ProblemKind::HandlerTimeout,
        Outcome::Mistaken(_) | Outcome::Refused(_) => ProblemKind::Internal,
        Outcome::Unavailable(_) | Outcome::Exhausted => ProblemKind::StoreUnavailable,
        Outcome::Unknown(_) => ProblemKind::OutcomeUnknown,
    };
    Err(Refusal::Reported(Problem::new(problem)))
}

/// Names what the key is for. Methods that change nothing have no place here.
fn operation(policy: &Policy, request: &HttpRequest) -> Result<Cow<'static, str>, Refusal> {
    let method = request.method();
    if method.is_safe() || method.as_str() == "QUERY" {
        return Err(misconfigured(
            policy,
            &format!(
                "a {method} request needs no idempotency key, since it may change nothing: take \
                 `#[idempotent]` off, or register the handler for POST or PATCH"
            ),
        ));
    }
    named(policy, request).ok_or_else(|| {
        misconfigured(
            policy,
            "the request matched no route pattern that could name the operation: write \
             `operation = \"...\"`",
        )
    })
}

/// The operation as it is counted: a client may make up methods, but no operations.
fn counted(policy: &Policy, request: &HttpRequest) -> Cow<'static, str> {
    let usual = [Method::POST, Method::PATCH, Method::PUT, Method::DELETE];
    let known = policy.operation.is_some() || usual.contains(request.method());
    let named = known.then(|| named(policy, request)).flatten();
    named.unwrap_or(Cow::Borrowed("other"))
}

/// The operation's own name, or method and route pattern.
fn named(policy: &Policy, request: &HttpRequest) -> Option<Cow<'static, str>> {
    if let Some(name) = policy.operation {
        return Some(Cow::Borrowed(name));
    }
    let pattern = request.match_pattern()?;
    Some(Cow::Owned(format!("{} {pattern}", request.method())))
}

fn key_of_header(policy: &Policy, request: &HttpRequest) -> Result<Option<Key>, Refusal> {
    let (name, required) = match policy.key {
        KeyFrom::Header(name) => (name, true),
        KeyFrom::OptionalHeader(name) => (name, false),
        KeyFrom::Request => return Ok(None),
    };
    let mut values = request.headers().get_all(name);
    match (values.next(), values.next()) {
        (Some(value), None) => Ok(Some(
            Key::from_header(value.as_bytes()).map_err(Problem::invalid_key)?,
        )),
        (Some(_), Some(_)) => Err(Problem::key_given_twice().into()),
        (None, _) if required => Err(Problem::key_missing_in(name).into()),
        (None, _) => Ok(None),
    }
}

fn fingerprint(
    policy: &Policy,
    request: &HttpRequest,
    operation: &str,
    body: &Bytes,
) -> Result<Fingerprint, Refusal> {
    let decoded = body::decode(request.headers(), body, policy.max_body)?;
    let media_type = request.headers().get(CONTENT_TYPE);
    let mut input = FingerprintInput::new(request.method().as_str(), request.path(), &decoded);
    input.operation = operation;
    input.query = request.query_string();
    input.content_type = media_type
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    #[cfg(feature = "__seeded")]
    let input = crate::seeded::input(input);
    Ok(policy.fingerprint.of(&input))
}

/// Keeps a panic of the service's code from taking the connection down without an answer.
async fn caught<T>(
    policy: &Policy,
    what: &str,
    work: impl Future<Output = T>,
) -> Result<T, Refusal> {
    AssertUnwindSafe(work)
        .catch_unwind()
        .await
        .map_err(|_| misconfigured(policy, &format!("{what} panicked")))
}

/// Says in the log which line of the service has to change.
fn misconfigured(policy: &Policy, what: &str) -> Refusal {
    let Policy {
        handler, location, ..
    } = policy;
    tracing::error!(handler, location, "the handler did not run: {what}");
    ProblemKind::Internal.into()
}

/// Makes the scope: the closure that the macro writes around the `scope` expression calls it.
///
/// # Errors
///
/// When the value has an empty part or is too long.
pub fn scope(value: &(impl ScopeKey + ?Sized)) -> Result<Scope, InvalidScope> {
    Scope::of(value)
}

/// Makes the scope of `scope = global`.
///
/// # Errors
///
/// Never; it has the signature of [`scope`].
pub fn global_scope() -> Result<Scope, InvalidScope> {
    Ok(Scope::global())
}

/// Makes the key: the closure that the macro writes around the `key` expression calls it.
///
/// # Errors
///
/// When the value is no idempotency key.
pub fn key(value: &(impl KeySource + ?Sized)) -> Result<Option<Key>, InvalidKey> {
    value.to_key()
}

/// Stands where the key is in the header.
///
/// # Errors
///
/// Never; it has the signature of the closure that it replaces.
pub fn key_in_header<A>(_: &A) -> Result<Option<Key>, InvalidKey> {
    Ok(None)
}

/// Stands where the attribute has no `authorize`.
///
/// # Errors
///
/// Never; it has the signature of the closure that it replaces.
#[must_use]
pub fn everyone<A>(_: &A) -> LocalBoxFuture<'_, Result<(), Error>> {
    // Unlike `ready`, it takes no memory.
    Box::pin(poll_fn(|_| Poll::Ready(Ok(()))))
}

/// Boxes the future of a closure that the macro writes, so that what it returns has a type to name.
pub fn boxed<'a, T>(work: impl Future<Output = T> + 'a) -> LocalBoxFuture<'a, T> {
    Box::pin(work)
}

/// Takes what the function of `authorize` returns.
///
/// # Errors
///
/// The function's own.
pub fn authorized<E: Into<Error>>(result: Result<(), E>) -> Result<(), Error> {
    result.map_err(Into::into)
}

/// Makes a response of what the handler returns, while its transaction is still lent.
pub fn respond(responder: impl Responder, request: &HttpRequest) -> HttpResponse {
    responder.respond_to(request).map_into_boxed_body()
}
