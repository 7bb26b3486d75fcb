//! The layer itself: prepares an operation, and repeats it until an answer is final or a limit is reached.

use std::time::Duration;

use http::{Extensions, HeaderName, HeaderValue, Method};
use reqwest::{Request, Response, Url};
use reqwest_middleware::{Middleware, Next, Result};
use tokio::time::{Instant, sleep};

use crate::answer::Attempts;
use crate::ask::{AskFirst, Told};
use crate::attempt::{Attempt, Failure, attempt};
use crate::budget::Budget;
use crate::error::{Error, GaveUp, Limit};
use crate::key::KeyHeader;
use crate::pause::{Backoff, Ceilings};

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
        let ask = extensions.get::<AskFirst>().cloned();
        if ask.is_some() && !request.headers().contains_key(&self.header.name) {
            return Err(Error::KeyMissing.into());
        }
        let key = self.header.place(&mut request)?;
        let question = ask.zip(key.as_ref());
        let question = question.map(|(ask, key)| ask.question(&request, &self.header.name, key));
        let question = question.transpose()?;
        // Before anything is sent, a question included.
        copy(&request)?;
        self.budget.deposit();
        let mut call = Call {
            limits: self,
            started: Instant::now(),
            ceilings: self.backoff.ceilings(),
            attempts: 0,
            // What is asked about may have been done before this call.
            outcome_unknown: question.is_some(),
            key,
        };
        if let Some(question) = question {
            loop {
                let time = call.begin_attempt();
                match question.ask(next.clone(), extensions, time).await? {
                    Told::Stored(response) => return Ok(call.end(response)),
                    Told::Unknown => break,
                    Told::Failed(failure) => call.pause(&question.described, failure).await?,
                }
            }
        }
        let shown = described(request.method(), request.url(), request.url().path());
        loop {
            let time = call.begin_attempt();
            match attempt(copy(&request)?, next.clone(), extensions, time).await? {
                Attempt::Final(response) => return Ok(call.end(response)),
                Attempt::Failed(failure) => {
                    call.outcome_unknown |=
                        failure.cause.may_have_run() && !request.method().is_safe();
                    call.pause(&shown, failure).await?;
                }
            }
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

/// What all attempts of one call share.
struct Call<'a> {
    limits: &'a Retries,
    started: Instant,
    ceilings: Ceilings,
    attempts: u32,
    outcome_unknown: bool,
    key: Option<HeaderValue>,
}

impl Call<'_> {
    /// Counts an attempt, and returns how long it may take.
    fn begin_attempt(&mut self) -> Duration {
        self.attempts = self.attempts.saturating_add(1);
        self.limits.attempt.min(self.limits.left(self.started))
    }

    /// Waits for the next attempt, or fails if a limit forbids it.
    async fn pause(&mut self, request: &str, failure: Failure) -> std::result::Result<(), Error> {
        let Failure { cause, retry_after } = failure;
        let pause = self.ceilings.pause().max(retry_after.unwrap_or_default());
        if let Some(limit) = self.limits.limit(pause, self.started) {
            return Err(Error::GaveUp(Box::new(GaveUp {
                request: request.to_owned(),
                attempts: self.attempts,
                elapsed: self.started.elapsed(),
                cause,
                retry_after,
                limit,
                outcome_unknown: self.outcome_unknown,
                key: self.key.clone(),
            })));
        }
        tracing::info!(
            %request,
            attempts = self.attempts,
            %cause,
            pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
            "repeating a request"
        );
        sleep(pause).await;
        Ok(())
    }

    fn end(&self, mut response: Response) -> Response {
        response.extensions_mut().insert(Attempts(self.attempts));
        response
    }
}

fn copy(request: &Request) -> std::result::Result<Request, Error> {
    request.try_clone().ok_or(Error::BodyStreams)
}

/// Put into a request's extensions, makes the layer leave it alone: no key, no repeat, no deadline, the answer as it
/// comes.
///
/// For endpoints that do not honour keys, and for downloads and streams:
///
/// ```no_run
/// # async fn f(client: reqwest_middleware::ClientWithMiddleware) -> reqwest_middleware::Result<()> {
/// let answer = client.post("https://pay.example/events").with_extension(idem_client::Bypass).send().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Bypass;

#[async_trait::async_trait]
impl Middleware for Retries {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        if extensions.get::<Bypass>().is_some() {
            return next.run(request, extensions).await;
        }
        self.call(request, extensions, next).await
    }
}

/// Shows a request without what may be secret: credentials, query, headers, body, and of the path what is not `path`.
pub(crate) fn described(method: &Method, url: &Url, path: &str) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}"));
    let port = port.unwrap_or_default();
    format!("{method} {}://{host}{port}{path}", url.scheme())
}
