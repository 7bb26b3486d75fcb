//! How long to wait before a repeat: by the layer's own backoff, and by what the service asks for.

use std::time::{Duration, SystemTime};

use backon::{BackoffBuilder, ExponentialBuilder};
use http::{HeaderMap, HeaderValue, header};

/// Exponential backoff with full jitter: each pause is random between nothing and a ceiling that doubles.
///
/// Full jitter spreads those who failed at the same moment over the whole time, which a fixed part would not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first: first.min(longest),
            longest,
        }
    }

    /// The ceilings of one call, in order.
    pub(crate) fn ceilings(self) -> Ceilings {
        // Its own jitter only lengthens a pause.
        let ceilings = ExponentialBuilder::new()
            .with_min_delay(self.first)
            .with_max_delay(self.longest)
            .without_max_times()
            .build();
        Ceilings {
            ceilings,
            longest: self.longest,
        }
    }
}

pub(crate) struct Ceilings {
    ceilings: <ExponentialBuilder as BackoffBuilder>::Backoff,
    longest: Duration,
}

impl Ceilings {
    /// The pause before the next repeat.
    pub(crate) fn pause(&mut self) -> Duration {
        let ceiling = self.ceilings.next().unwrap_or(self.longest);
        ceiling.mul_f64(fastrand::f64())
    }
}

/// Reads how long the service asks to wait: a number of seconds, or a date.
///
/// A date counts from the answer's own `Date`, so that clocks that differ do not matter; from `received` where there is
/// none. What is neither is ignored.
pub(crate) fn retry_after(headers: &HeaderMap, received: SystemTime) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // More digits than fit are longer than anybody waits.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    let from = headers.get(header::DATE).and_then(date);
    // A date in the past asks for no wait at all.
    Some(
        until
            .duration_since(from.unwrap_or(received))
            .unwrap_or_default(),
    )
}

fn date(value: &HeaderValue) -> Option<SystemTime> {
    httpdate::parse_http_date(value.to_str().ok()?).ok()
}
