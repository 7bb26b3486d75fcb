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
/// A date counts from the answer's own `Date`, so that clocks that differ do not matter; from now where there is none.
/// What is neither is ignored.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    asked_wait(headers, received_at())
}

/// The time of an answer that does not say its own.
#[expect(
    clippy::disallowed_methods,
    reason = "a date in an answer without `Date` can be compared with nothing else"
)]
fn received_at() -> SystemTime {
    SystemTime::now()
}

fn asked_wait(headers: &HeaderMap, received: SystemTime) -> Option<Duration> {
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

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    const SAMPLES: usize = 10_000;
    const BINS: usize = 10;

    #[test]
    fn pauses_spread_evenly_under_ceilings_that_double_up_to_the_longest() {
        let backoff = Backoff::new(Duration::from_millis(125), Duration::from_secs(2));
        let ceilings = [125, 250, 500, 1000, 2000, 2000].map(Duration::from_millis);
        let mut bins = [[0_usize; BINS]; 6];
        let mut sums = [0_f64; 6];
        fastrand::seed(7);
        for _ in 0..SAMPLES {
            let mut pauses = backoff.ceilings();
            for ((ceiling, bins), sum) in ceilings.iter().zip(&mut bins).zip(&mut sums) {
                let pause = pauses.pause();
                assert!(pause < *ceiling, "{pause:?} under {ceiling:?}");
                let share = pause.div_duration_f64(*ceiling);
                *sum += share;
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_precision_loss,
                    clippy::cast_sign_loss,
                    reason = "a share of ten bins"
                )]
                let bin = (share * BINS as f64) as usize;
                bins[bin] += 1;
            }
        }
        for ((ceiling, bins), sum) in ceilings.iter().zip(&bins).zip(&sums) {
            println!("up to {ceiling:?}:");
            for (bin, count) in bins.iter().enumerate() {
                let from = *ceiling * u32::try_from(bin).unwrap() / 10;
                println!("{from:>8.1?} {count:>5} {}", "#".repeat(count / 25));
            }
            #[expect(clippy::cast_precision_loss, reason = "a small number")]
            let mean = sum / SAMPLES as f64;
            println!("    mean {mean:.3} of the ceiling\n");
            assert!((0.48..0.52).contains(&mean), "{mean}");
            let even = SAMPLES / BINS;
            assert!(
                bins.iter().all(|count| count.abs_diff(even) < even / 5),
                "{bins:?}"
            );
        }
    }

    #[test]
    fn retry_after_is_a_number_of_seconds_or_a_date() {
        let date = |seconds| httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds));
        let received = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let own = 2_000_000;
        for (text, own_date, expected) in [
            ("0".to_owned(), None, Some(0)),
            ("120".to_owned(), None, Some(120)),
            (" 7 ".to_owned(), None, Some(7)),
            ("99999999999999999999999".to_owned(), None, Some(u64::MAX)),
            (date(1_000_030), None, Some(30)),
            (date(2_000_030), Some(own), Some(30)),
            (date(1_000_030), Some(own), Some(0)),
            (date(999_000), None, Some(0)),
            // The two older forms of a date.
            ("Monday, 12-Jan-70 13:46:45 GMT".to_owned(), None, Some(5)),
            ("Mon Jan 12 13:46:45 1970".to_owned(), None, Some(5)),
            (String::new(), None, None),
            ("-1".to_owned(), None, None),
            ("+1".to_owned(), None, None),
            ("1.5".to_owned(), None, None),
            ("1 s".to_owned(), None, None),
            ("soon".to_owned(), None, None),
            ("Mon, 12 Jan 1970".to_owned(), None, None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, text.parse().unwrap());
            if let Some(seconds) = own_date {
                headers.insert(header::DATE, date(seconds).parse().unwrap());
            }
            let expected = expected.map(Duration::from_secs);
            assert_eq!(asked_wait(&headers, received), expected, "{text:?}");
        }
        assert_eq!(asked_wait(&HeaderMap::new(), received), None);
    }
}
