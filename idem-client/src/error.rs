//! How a call ends without a final answer: what was tried, how often, what came last, and whether it may have worked.

use std::fmt;
use std::time::Duration;

use http::{HeaderValue, StatusCode};

/// Says why a call has no final answer.
///
/// Both `Display` and `Debug` show method, host and path; neither shows keys, bodies, queries or credentials.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request's body is a stream, which cannot be sent twice. Nothing was sent.
    #[error(
        "the body is a stream, which cannot be sent again after a failure; nothing was sent. Give the whole body, or \
         send the request once, with the extension `idem_client::Bypass`"
    )]
    BodyStreams,
    /// The request has more than one header line with a key. Nothing was sent.
    #[error(
        "the request carries more than one idempotency key; nothing was sent. Set the header once"
    )]
    KeyGivenTwice,
    /// The request's key is empty, or not ASCII. Nothing was sent.
    #[error(
        "the request's idempotency key is empty or not ASCII text; nothing was sent. Set another, or none"
    )]
    KeyMalformed,
    /// The request was to be asked about first, and has no key. Nothing was sent.
    #[error(
        "there is no idempotency key to ask about; nothing was sent. Set the key that was stored with the operation, or \
         send the request without `idem_client::AskFirst`"
    )]
    KeyMissing,
    /// The answer to the question what has become of the key does not tell. The request was not sent.
    #[error(
        "{question}: {status} does not tell what has become of the key; the request was not sent. Check the status \
         resource's URL, the operation's name and the credentials"
    )]
    #[non_exhaustive]
    Unclear {
        /// The question, without its key.
        question: String,
        /// The status of the answer to it.
        status: StatusCode,
    },
    /// The request was sent, or asked about, and a limit ended the call before an answer was final.
    #[error(transparent)]
    GaveUp(Box<GaveUp>),
}

impl Error {
    /// Finds the layer's error in what a call returned.
    #[must_use]
    pub fn of(error: &reqwest_middleware::Error) -> Option<&Self> {
        match error {
            reqwest_middleware::Error::Middleware(error) => error.downcast_ref(),
            reqwest_middleware::Error::Reqwest(_) => None,
        }
    }
}

impl From<Error> for reqwest_middleware::Error {
    fn from(error: Error) -> Self {
        Self::middleware(error)
    }
}

/// Describes a call that reached a limit before it had a final answer.
#[derive(Debug)]
pub struct GaveUp {
    pub(crate) request: String,
    pub(crate) attempts: u32,
    pub(crate) elapsed: Duration,
    pub(crate) cause: Cause,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) limit: Limit,
    pub(crate) outcome_unknown: bool,
    // Marked as sensitive, so that `Debug` does not print it.
    pub(crate) key: Option<HeaderValue>,
}

impl GaveUp {
    /// Returns how often the request was sent, or tried to be; questions about it count too.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns how long the call took.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Returns what became of the last attempt.
    #[must_use]
    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    /// Returns how long the service asked to wait, the last time.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns which limit ended the call.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// Tells whether the service may have done what it was asked, in any of the attempts.
    ///
    /// If so, ask again later with the same key: a new one could do it a second time. An answer with 429, or with
    /// 408 because the body came too slowly, says that nothing was done; one with 503 does not: what was done may not
    /// have been acknowledged. Never true of GET, HEAD, OPTIONS and TRACE, which change nothing;
    /// always of a call that [asks first](crate::AskFirst), since what it asks about may have been done before.
    #[must_use]
    pub fn outcome_is_unknown(&self) -> bool {
        self.outcome_unknown
    }

    /// Returns the header value that carried the key, given or made: with it, a later call is the same operation.
    ///
    /// `None` for methods that need none.
    #[must_use]
    pub fn key(&self) -> Option<&HeaderValue> {
        self.key.as_ref()
    }
}

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = if self.attempts == 1 {
            "attempt"
        } else {
            "attempts"
        };
        write!(
            f,
            "{}: no final answer after {} {times} in {:.1?}; the last: {}; {}",
            self.request, self.attempts, self.elapsed, self.cause, self.limit
        )?;
        if let Some(time) = self.retry_after {
            write!(f, " (the service asks to wait {time:?})")?;
        }
        f.write_str(match (self.outcome_unknown, &self.key) {
            (false, _) => "; nothing was changed",
            (true, Some(_)) => {
                "; it may have been done: repeat it with the same key, not with a new one"
            }
            (true, None) => "; it may have been done",
        })
    }
}

impl std::error::Error for GaveUp {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            Cause::Network(error) => Some(error),
            Cause::Timeout | Cause::Running | Cause::Status(_) => None,
        }
    }
}

/// What made an attempt worth a repeat.
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// No connection, or one that broke before the answer was complete.
    Network(reqwest::Error),
    /// No complete answer in the time of one attempt.
    Timeout,
    /// An earlier request with the same key runs: the answer to a question about it.
    Running,
    /// An answer that is not final.
    Status(StatusCode),
}

impl Cause {
    /// Whether the service may have done what it was asked.
    pub(crate) fn may_have_run(&self) -> bool {
        match self {
            Self::Network(error) => !error.is_connect(),
            Self::Timeout | Self::Running => true,
            Self::Status(status) => !matches!(
                *status,
                StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS
            ),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(error) => {
                let mut cause: &dyn std::error::Error = error;
                // The outermost says no more than that it did not work.
                while let Some(source) = cause.source() {
                    cause = source;
                }
                write!(f, "{error}: {cause}")
            }
            Self::Timeout => f.write_str("no answer in time"),
            Self::Running => f.write_str("a request with this key runs"),
            Self::Status(status) => write!(f, "{status}"),
        }
    }
}

/// What ended a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Another attempt would have come after this time, the call's deadline.
    Deadline(Duration),
    /// The retry budget was used up: too much fails at once.
    Budget,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline(deadline) => {
                write!(f, "another would pass the deadline of {deadline:?}")
            }
            Self::Budget => f.write_str("the retry budget is used up"),
        }
    }
}
