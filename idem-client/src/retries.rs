//! The layer itself: prepares an operation, and repeats it until an answer is final or a limit is reached.

use std::fmt;
use std::time::Duration;

use http::{Extensions, HeaderName};
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next, Result};
use tokio::time::{Instant, sleep};

use crate::answer::Attempts;
use crate::attempt::{Attempt, attempt};
use crate::budget::Budget;
use crate::error::{Error, GaveUp, Limit};
use crate::key::KeyHeader;
use crate::pause::Backoff;

/// Repeats operations until there is a final answer, within a deadline and a budget.
///
/// Clones share their budget. One for each service that is called: a budget counts what that service can bear.
#[derive(Clone, Debug)]
pub struct Retries {
    deadline: Duration,
    attempt: Duration,
    backoff: Backoff,
    budget: Budget,
    header: KeyHeader,
}

impl Retries {
    /// Takes the deadline: how long a call may last, with all its attempts and pauses.
    ///
    /// There is no default, since only the caller knows how long somebody waits. A single attempt gets a third of it,
    /// pauses have a ceiling of 100 ms that doubles up to 10 s, the budget is [`Budget::default`].
    #[must_use]
    pub fn within(deadline: Duration) -> Self {
        Self {
            deadline,
            attempt: deadline / 3,
            backoff: Backoff::new(Duration::from_millis(100), Duration::from_secs(10)),
            budget: Budget::default(),
            header: KeyHeader::default(),
        }
    }

    /// Sets how long one attempt may take, up to the last byte of its answer.
    ///
    /// It may well be shorter than the operation: the repeat is told that the first attempt still runs, and waits.
    #[must_use]
    pub fn attempt(mut self, longest: Duration) -> Self {
        self.attempt = longest;
        self
    }

    /// Sets the ceiling of the first pause, which doubles each time, and the ceiling it never passes.
    #[must_use]
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.backoff = Backoff::new(first, longest);
        self
    }

    /// Sets the budget, which others may share.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }

    /// Sets the name of the header that carries the key, in place of `Idempotency-Key`.
    #[must_use]
    pub fn header(mut self, name: HeaderName) -> Self {
        self.header.name = name;
        self
    }

    /// Sends the keys that the layer makes in double quotes, as the IETF draft has them.
    #[must_use]
    pub fn quoted(mut self) -> Self {
        self.header.quoted = true;
        self
    }

    async fn call(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let key = self.header.place(&mut request)?;
        self.budget.deposit();
        let started = Instant::now();
        let mut ceilings = self.backoff.ceilings();
        let mut attempts = 0_u32;
        let mut outcome_unknown = false;
        loop {
            let Some(copy) = request.try_clone() else {
                return Err(Error::BodyStreams.into());
            };
            attempts = attempts.saturating_add(1);
            let time = self.attempt.min(self.left(started));
            let failure = match attempt(copy, next.clone(), extensions, time).await? {
                Attempt::Final(mut response) => {
                    response.extensions_mut().insert(Attempts(attempts));
                    return Ok(response);
                }
                Attempt::Failed(failure) => failure,
            };
            outcome_unknown |= failure.cause.may_have_run() && !request.method().is_safe();

            let pause = ceilings
                .pause()
                .max(failure.retry_after.unwrap_or_default());
            if let Some(limit) = self.limit(pause, started) {
                let call = GaveUp {
                    request: Described(&request).to_string(),
                    attempts,
                    elapsed: started.elapsed(),
                    cause: failure.cause,
                    retry_after: failure.retry_after,
                    limit,
                    outcome_unknown,
                    key,
                };
                return Err(Error::GaveUp(Box::new(call)).into());
            }
            tracing::info!(
                request = %Described(&request),
                attempts,
                cause = %failure.cause,
                pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
                "repeating a request"
            );
            sleep(pause).await;
        }
    }

    /// What forbids another attempt after `pause`, if anything does; else it is taken from the budget.
    fn limit(&self, pause: Duration, started: Instant) -> Option<Limit> {
        if pause >= self.left(started) {
            Some(Limit::Deadline(self.deadline))
        } else if self.budget.withdraw() {
            None
        } else {
            Some(Limit::Budget)
        }
    }

    fn left(&self, started: Instant) -> Duration {
        self.deadline.saturating_sub(started.elapsed())
    }
}

/// Put into a request's extensions, makes the layer leave it alone: no key, no repeat, no deadline, the answer as it
/// comes.
///
/// For endpoints that do not honour keys, and for downloads and streams:
///
/// ```no_run
/// # async fn f(client: reqwest_middleware::ClientWithMiddleware) -> reqwest_middleware::Result<()> {
/// let answer = client.post("https://pay.example/events").with_extension(idem_client::Once).send().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Once;

#[async_trait::async_trait]
impl Middleware for Retries {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        if extensions.get::<Once>().is_some() {
            return next.run(request, extensions).await;
        }
        self.call(request, extensions, next).await
    }
}

/// Shows a request without what may be secret: credentials, query, headers, body.
struct Described<'a>(&'a Request);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.0.url();
        let host = url.host_str().unwrap_or_default();
        write!(f, "{} {}://{host}", self.0.method(), url.scheme())?;
        if let Some(port) = url.port() {
            write!(f, ":{port}")?;
        }
        f.write_str(url.path())
    }
}
