//! The retry budget: what all calls together may add to a service's load.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What one repeat costs; a call deposits a percentage of it.
const REPEAT: u64 = 100;

/// How long it takes until a repeat is there that no call paid for.
const REFILL: Duration = Duration::from_secs(1);

/// Limits the repeats of all calls that share it, so that a failing service is not drowned in them.
///
/// A bucket of repeats. It begins full; every call adds a percentage of a repeat, every second adds a whole one, every
/// repeat takes one, and no more than the reserve is ever in it. So, over any stretch of time, there are no more repeats
/// than the reserve, that percentage of the calls, and one a second.
///
/// Clones are the same bucket.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    deposit: u64,
    capacity: u64,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    tokens: u64,
    refilled: Instant,
}

impl Budget {
    /// Takes how many repeats a hundred calls pay for, and how many can be saved up.
    ///
    /// With `Budget::new(0, 0)` nothing is ever repeated.
    #[must_use]
    pub fn new(percent: u32, reserve: u32) -> Self {
        let capacity = u64::from(reserve) * REPEAT;
        Self(Arc::new(Shared {
            deposit: u64::from(percent),
            capacity,
            bucket: Mutex::new(Bucket {
                tokens: capacity,
                refilled: Instant::now(),
            }),
        }))
    }

    /// Counts a call.
    pub(crate) fn deposit(&self) {
        let deposit = self.0.deposit;
        self.change(|tokens| (tokens + deposit, ()));
    }

    /// Takes a repeat, if there is one.
    pub(crate) fn withdraw(&self) -> bool {
        self.change(|tokens| match tokens.checked_sub(REPEAT) {
            Some(rest) => (rest, true),
            None => (tokens, false),
        })
    }

    fn change<T>(&self, change: impl FnOnce(u64) -> (u64, T)) -> T {
        // What it guards is whole at every moment.
        let mut bucket = self.0.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = bucket.refilled.elapsed().as_secs();
        if seconds > 0 {
            bucket.refilled += REFILL * u32::try_from(seconds).unwrap_or(u32::MAX);
        }
        let refilled = bucket.tokens.saturating_add(seconds.saturating_mul(REPEAT));
        let (tokens, result) = change(refilled.min(self.0.capacity));
        bucket.tokens = tokens.min(self.0.capacity);
        result
    }
}

impl Default for Budget {
    /// Twenty repeats for a hundred calls, and fifty in reserve.
    fn default() -> Self {
        Self::new(20, 50)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn withdrawn(budget: &Budget) -> usize {
        (0..1000).take_while(|_| budget.withdraw()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn calls_pay_for_their_percentage_of_repeats() {
        let budget = Budget::new(20, 50);
        assert_eq!(withdrawn(&budget), 50);
        (0..4).for_each(|_| budget.deposit());
        assert_eq!(withdrawn(&budget), 0);
        (0..96).for_each(|_| budget.deposit());
        assert_eq!(withdrawn(&budget), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_the_reserve_is_saved_up() {
        let budget = Budget::new(20, 50);
        (0..10_000).for_each(|_| budget.deposit());
        tokio::time::advance(Duration::from_secs(10_000)).await;
        assert_eq!(withdrawn(&budget), 50);
    }

    #[tokio::test(start_paused = true)]
    async fn one_repeat_a_second_comes_back_by_itself() {
        let budget = Budget::new(0, 50);
        withdrawn(&budget);
        tokio::time::advance(Duration::from_millis(2500)).await;
        assert_eq!(withdrawn(&budget), 2);
        // The half second is not lost.
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(withdrawn(&budget), 1);
    }

    #[test]
    fn an_empty_budget_repeats_nothing() {
        let budget = Budget::new(0, 0);
        budget.deposit();
        assert!(!budget.withdraw());
    }
}
