//! What a service sets up once: the `Idempotency` that its guarded handlers find in the app data.

use std::{
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use actix_web::{
    Error, HttpRequest, HttpResponse,
    http::header::{HeaderValue, LINK},
};

#[cfg(any(feature = "postgres", feature = "sqlx-postgres"))]
use crate::backend::postgres::{Options, StatementMode};
use crate::{
    backend::{Backend, Call, Pool},
    cache::Cache,
    error::{SettingsError, StoreError},
    gate::Gate,
    http::{Executions, Hooks, Problem, ProblemKind},
    meter,
    model::Record,
    sweep::{self, Sweeper},
};

/// Guards a service's handlers: holds the pool, and what is known of the requests that run.
///
/// Make one a process, before `HttpServer::new`, and put a clone of it into each `App`:
///
/// ```no_run
/// use actix_web::{App, HttpServer, web};
/// use idem_runtime::{Idempotency, postgres};
///
/// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = postgres::pool("postgres://localhost/shop").open()?;
/// let idempotency = Idempotency::new(pool)?;
/// idempotency.migrate().await?;
/// HttpServer::new(move || App::new().app_data(web::Data::new(idempotency.clone())))
///     .bind(("127.0.0.1", 8080))?
///     .run()
///     .await?;
/// # Ok(())
/// # }
/// ```
///
/// Clones share everything. Several databases live in nested `web::scope`s, each with an
/// `Idempotency` of its own in its app data.
pub struct Idempotency<B = Usual> {
    inner: Arc<Inner<B>>,
}

/// What `Idempotency` alone stands for.
#[cfg(feature = "postgres")]
type Usual = crate::backend::postgres::deadpool::Postgres;

/// Without the feature `postgres` it stands for no backend: `Idempotency<B>` has to say which.
#[cfg(not(feature = "postgres"))]
type Usual = ();

struct Inner<B> {
    backend: B,
    gate: Arc<Gate>,
    cache: Option<Cache>,
    executions: Executions,
    hooks: Hooks,
    body_timeout: Duration,
    advertise_lifetime: bool,
    problem_docs: Option<String>,
}

impl<B: Backend> Idempotency<B> {
    /// Builds with the defaults.
    ///
    /// # Errors
    ///
    /// When the pool would let a request wait for ever.
    pub fn new<P: Pool<Backend = B>>(pool: P) -> Result<Self, SettingsError> {
        Self::builder(pool).build()
    }

    /// Begins to build with settings of your own.
    pub fn builder<P: Pool<Backend = B>>(pool: P) -> Builder<P> {
        Builder {
            pool,
            options: P::Options::default(),
            hooks: Hooks::default(),
            body_timeout: Duration::from_secs(30),
            advertise_lifetime: false,
            problem_docs: None,
            cache: None,
        }
    }

    /// Creates the record table, or completes it after an upgrade. Several instances can call it at
    /// once.
    ///
    /// A PostgreSQL server has to take it up within `database_timeout`, and has ten minutes for it
    /// and for the instances before, since a migration may take long for good reason; its COMMIT has
    /// `database_timeout` again. One that failed there may be complete: call it again.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached, or the role may not create tables, or it takes longer
    /// than that: then apply `MIGRATIONS` with a tool of your own.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        self.inner.backend.migrate().await
    }

    /// Checks at start what the protocol relies on: the record table, the role's rights, the
    /// server, and whether the statement mode fits what stands between. It changes nothing. A
    /// PostgreSQL server has to answer within `database_timeout`.
    ///
    /// # Errors
    ///
    /// The first thing that is not as it should be, and what to do about it.
    pub async fn verify_schema(&self) -> Result<(), StoreError> {
        self.inner.backend.verify_schema().await
    }

    /// Deletes all expired records, in batches, and returns how many. Several instances can sweep
    /// at once. An expired record does no harm but takes space: a request with its key replaces it.
    ///
    /// # Errors
    ///
    /// When the database fails; what was deleted until then stays deleted.
    pub async fn sweep(&self) -> Result<u64, StoreError> {
        sweep::all(&self.inner.backend).await
    }

    /// Sweeps in a background task until the handle is dropped, with pauses of `interval` (spread
    /// by up to a tenth, so that instances do not meet). Less than 10 ms counts as 10 ms, more than
    /// a day as a day.
    ///
    /// Call it inside a Tokio runtime that lives as long as the service.
    #[must_use = "dropping the handle ends the task"]
    pub fn sweep_every(&self, interval: Duration) -> Sweeper {
        let inner = Arc::clone(&self.inner);
        Sweeper::start(interval, move || {
            let inner = Arc::clone(&inner);
            async move { sweep::all(&inner.backend).await }
        })
    }

    /// Waits for the executions that run now, also for those whose client has hung up: actix does
    /// not wait for them when it stops, and a stop would undo them.
    ///
    /// Each ends within its `wait`, the pool's wait and its handler's `timeout`; where the handler runs
    /// again, since others came first, within up to three times the latter two, and some seconds
    /// later where a COMMIT is in doubt. Give it a limit of your own if a stop must not take that long.
    /// Drain first, then stop:
    ///
    /// ```no_run
    /// # use actix_web::{App, HttpServer, web};
    /// # async fn terminated() {}
    /// # async fn serve(idempotency: idem_runtime::Idempotency) -> std::io::Result<()> {
    /// let draining = idempotency.clone();
    /// HttpServer::new(move || App::new().app_data(web::Data::new(idempotency.clone())))
    ///     .shutdown_signal(async move {
    ///         terminated().await; // SIGTERM, say
    ///         draining.drain().await;
    ///     })
    ///     .bind(("127.0.0.1", 8080))?
    ///     .run()
    ///     .await
    /// # }
    /// ```
    pub fn drain(&self) -> impl Future<Output = ()> + Send + use<B> {
        let inner = Arc::clone(&self.inner);
        async move { inner.executions.drained().await }
    }

    pub(crate) fn backend(&self) -> &B {
        &self.inner.backend
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.inner.gate
    }

    pub(crate) fn cache(&self) -> Option<&Cache> {
        self.inner.cache.as_ref()
    }

    /// Finds the answer to a repeat of an effect, if this process keeps it.
    pub(crate) fn known(&self, call: &Call) -> Option<(Arc<Record>, Duration)> {
        self.cache()?.get(&call.identity, &call.fingerprint)
    }

    pub(crate) fn executions(&self) -> &Executions {
        &self.inner.executions
    }

    pub(crate) fn hooks(&self) -> &Hooks {
        &self.inner.hooks
    }

    pub(crate) fn body_timeout(&self) -> Duration {
        self.inner.body_timeout
    }

    /// The lifetime, if it is to be said.
    pub(crate) fn advertised(&self, ttl: Duration) -> Option<Duration> {
        self.inner.advertise_lifetime.then_some(ttl)
    }

    pub(crate) fn render(&self, problem: &Problem, request: &HttpRequest) -> HttpResponse {
        let mut response = self.rendered(problem, request);
        if let Some(docs) = &self.inner.problem_docs
            && let Some(link) = description(docs, problem.kind())
        {
            response.headers_mut().append(LINK, link);
        }
        response
    }

    fn rendered(&self, problem: &Problem, request: &HttpRequest) -> HttpResponse {
        let render = AssertUnwindSafe(|| (self.inner.hooks.render)(problem, request));
        // A renderer that panics must not leave the client without an answer.
        catch_unwind(render).unwrap_or_else(|_| {
            tracing::error!("the renderer of problem documents panicked");
            problem.to_response()
        })
    }
}

impl<B> Clone for Idempotency<B> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<B: fmt::Debug> fmt::Debug for Idempotency<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency")
            .field("backend", &self.inner.backend)
            .finish_non_exhaustive()
    }
}

/// Builds an [`Idempotency`]; begun with [`Idempotency::builder`].
#[must_use = "nothing is built before `build`"]
pub struct Builder<P: Pool> {
    pool: P,
    options: P::Options,
    hooks: Hooks,
    body_timeout: Duration,
    advertise_lifetime: bool,
    problem_docs: Option<String>,
    cache: Option<u64>,
}

impl<P: Pool> Builder<P> {
    /// Keeps the answers of effects in memory as well, up to this many bytes (default: none), so
    /// that a repeat of one is answered without the database. The extractors and `authorize` still
    /// run first.
    ///
    /// An answer is kept no longer than its record lives (and, where a machine is suspended, for that
    /// long more). Refusals are never kept, another request
    /// under the key is always decided by the database, and everything is forgotten when any
    /// connection was lost, since the database may have failed over. A connection that nobody uses
    /// is noticed at once where the framework has opened the pool
    /// ([`postgres::pool`](crate::postgres::pool)), with another pool of deadpool once it has been
    /// replaced (not with [`StatementMode::Unnamed`](crate::postgres::StatementMode::Unnamed)), and with sqlx only if it breaks under a request.
    ///
    /// Leave it off where repeats are rare, and where records are deleted by hand (an answer may
    /// come back for the rest of its lifetime). Leave it off behind a database that fails over to an
    /// asynchronous standby, unless that cuts all connections and the framework has opened the pool.
    pub fn cache(mut self, bytes: u64) -> Self {
        self.cache = Some(bytes);
        self
    }

    /// Sets how long a request's body may take to arrive (default 30 s); a slower one is answered
    /// 408. actix has no limit of its own.
    pub fn body_timeout(mut self, limit: Duration) -> Self {
        self.body_timeout = limit;
        self
    }

    /// Makes the handler run again when its error says that a new run may succeed: a serialisation
    /// failure or a deadlock (SQLSTATE 40001, 40P01) that ended up in the service's own error
    /// type. Three runs at most, each in a transaction of its own, with parameters extracted anew. A
    /// request without a key (`key = optional`) runs once only.
    ///
    /// ```
    /// # use idem_runtime::{Idempotency, postgres};
    /// # #[derive(Debug)] struct PaymentError { serialization_failure: bool }
    /// # impl std::fmt::Display for PaymentError { fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { Ok(()) } }
    /// # impl actix_web::ResponseError for PaymentError {}
    /// # fn build(pool: deadpool_postgres::Pool) -> Result<Idempotency, idem_runtime::SettingsError> {
    /// Idempotency::builder(pool)
    ///     .retryable(|error| {
    ///         error.as_error::<PaymentError>().is_some_and(|error| error.serialization_failure)
    ///     })
    ///     .build()
    /// # }
    /// ```
    pub fn retryable(mut self, is: impl Fn(&Error) -> bool + Send + Sync + 'static) -> Self {
        self.hooks.retryable = Box::new(is);
        self
    }

    /// Renders the framework's own answers in another form than `application/problem+json`.
    ///
    /// ```
    /// # use idem_runtime::{Idempotency, postgres};
    /// # fn build(pool: deadpool_postgres::Pool) -> Result<Idempotency, idem_runtime::SettingsError> {
    /// use actix_web::HttpResponse;
    ///
    /// Idempotency::builder(pool)
    ///     .render(|problem, _request| {
    ///         HttpResponse::build(problem.status())
    ///             .insert_header(("x-error", problem.type_uri()))
    ///             .body(problem.detail().to_owned())
    ///     })
    ///     .build()
    /// # }
    /// ```
    pub fn render(
        mut self,
        with: impl Fn(&Problem, &HttpRequest) -> HttpResponse + Send + Sync + 'static,
    ) -> Self {
        self.hooks.render = Box::new(with);
        self
    }

    /// Says on every answer that is stored, and on every repeat of it, for how many seconds it will
    /// be given again: `Idempotency-Lifetime: 86400`. The IETF draft leaves it to each service how
    /// to publish its lifetimes, and knows no header for it.
    pub fn advertise_lifetime(mut self) -> Self {
        self.advertise_lifetime = true;
        self
    }

    /// Leads clients from the framework's own answers to where they are explained:
    /// `Link: <url#key-reused>; rel="describedby"`. The framework's `docs/problems.md` has a
    /// section for each kind, under the name that the type ends with; publish it, or a page of your
    /// own with the same anchors.
    pub fn problem_docs(mut self, url: impl Into<String>) -> Self {
        self.problem_docs = Some(url.into());
        self
    }

    /// Builds.
    ///
    /// # Errors
    ///
    /// When `body_timeout` or `cache` is zero, or `problem_docs` no plain URL without a fragment. On
    /// PostgreSQL also when `schema` is no plain name, `database_timeout` is zero or over an hour,
    /// `connection_check_interval` is over an hour, or a pool of deadpool has no wait timeout.
    pub fn build(self) -> Result<Idempotency<P::Backend>, SettingsError> {
        if self.body_timeout.is_zero() {
            return Err(SettingsError::Zero("`body_timeout`"));
        }
        if let Some(docs) = &self.problem_docs {
            description(docs, ProblemKind::Internal)
                .ok_or_else(|| SettingsError::ProblemDocs(docs.clone()))?;
        }
        if self.cache == Some(0) {
            return Err(SettingsError::Zero("`cache`"));
        }
        meter::describe();
        let inner = Inner {
            backend: self.pool.open(self.options)?,
            gate: Arc::default(),
            cache: self.cache.map(Cache::new),
            executions: Executions::default(),
            hooks: self.hooks,
            body_timeout: self.body_timeout,
            advertise_lifetime: self.advertise_lifetime,
            problem_docs: self.problem_docs,
        };
        Ok(Idempotency {
            inner: Arc::new(inner),
        })
    }
}

/// Leads to a problem's description.
fn description(docs: &str, kind: ProblemKind) -> Option<HeaderValue> {
    let is_plain = docs
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && !b"<>#\"".contains(&byte));
    let link = format!("<{docs}#{}>; rel=\"describedby\"", kind.name());
    is_plain.then(|| HeaderValue::from_str(&link).ok())?
}

impl<P: Pool> fmt::Debug for Builder<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("body_timeout", &self.body_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(any(feature = "postgres", feature = "sqlx-postgres"))]
impl<P: Pool<Options = Options>> Builder<P> {
    /// Makes settings that hold for one request's transaction alone, such as the tenant that
    /// row-level security looks at. They travel with the claim, and cost no round trip (through
    /// sqlx one). A name or value that the server refuses makes the request a 503.
    ///
    /// ```
    /// # use idem_runtime::{Idempotency, postgres};
    /// # fn build(pool: deadpool_postgres::Pool) -> Result<Idempotency, idem_runtime::SettingsError> {
    /// Idempotency::builder(pool)
    ///     .transaction_settings(|request| {
    ///         let tenant = request.headers().get("x-tenant");
    ///         let tenant = tenant.and_then(|value| value.to_str().ok()).unwrap_or_default();
    ///         vec![("app.tenant".to_owned(), tenant.to_owned())]
    ///     })
    ///     .build()
    /// # }
    /// ```
    pub fn transaction_settings(
        mut self,
        of: impl Fn(&HttpRequest) -> Vec<(String, String)> + Send + Sync + 'static,
    ) -> Self {
        self.hooks.settings = Box::new(of);
        self
    }

    /// Puts the record table into another schema (default `idem`): 1 to 63 of `a`-`z`, `0`-`9`,
    /// `_`.
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.options.schema = name.into();
        self
    }

    /// Sets how the framework's own statements are sent (default [`StatementMode::Cached`]).
    pub fn statements(mut self, mode: StatementMode) -> Self {
        self.options.statements = mode;
        self
    }

    /// Sets how long the database may take for one flight of the framework's own statements
    /// (default 5 s). A claim that takes longer is answered 503; a COMMIT that takes longer is in
    /// doubt, and resolved by a new claim.
    ///
    /// The connection of such a COMMIT keeps its place in the pool until the server has answered
    /// it, but no longer than the handler's `timeout` and twice this: while a synchronous standby is
    /// gone, the server is not left with ever more sessions that wait for it. An hour at most.
    ///
    /// A record lives for its `ttl` from when it is written, just before the COMMIT. Keep each `ttl`
    /// longer than the handler's `timeout` and twice this, or a COMMIT that waits may come after its
    /// record's end.
    pub fn database_timeout(mut self, limit: Duration) -> Self {
        self.options.timeout = limit;
        self
    }

    /// Sets how often the server looks, during a long statement, whether the service is still
    /// there (default 250 ms; in whole milliseconds, an hour at most): a key whose process died
    /// inside a statement is free that soon. Zero turns it off, for servers on systems that cannot
    /// look: PostgreSQL 14 can on Linux alone, later releases on macOS, illumos and the BSDs too. On
    /// others anything but zero makes every guarded request a 503 (SQLSTATE 22023 in the log).
    pub fn connection_check_interval(mut self, interval: Duration) -> Self {
        self.options.check_interval = interval;
        self
    }
}
