//! Counts the executions that run detached from their connection, so that a stop can wait for them.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

/// Knows which executions run.
#[derive(Debug, Default)]
pub(crate) struct Executions {
    live: Arc<Live>,
}

#[derive(Debug, Default)]
struct Live {
    numbers: Mutex<Numbers>,
    /// Tells that one has ended.
    ended: Notify,
}

#[derive(Debug, Default)]
struct Numbers {
    next: u64,
    live: BTreeSet<u64>,
}

impl Executions {
    /// Counts an execution as one that a stop has to wait for, until this is dropped.
    pub(crate) fn begin(&self) -> Running {
        let mut numbers = self.live.numbers();
        numbers.next += 1;
        let number = numbers.next;
        numbers.live.insert(number);
        Running {
            live: Arc::clone(&self.live),
            number,
        }
    }

    /// Waits until every execution has ended that runs now.
    pub(crate) async fn drained(&self) {
        let last = self.live.numbers().next;
        loop {
            // Made before the look, it does not miss what ends behind it.
            let ended = self.live.ended.notified();
            let first = self.live.numbers().live.first().copied();
            if first.is_none_or(|first| first > last) {
                return;
            }
            ended.await;
        }
    }
}

impl Live {
    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An execution that has not ended.
#[derive(Debug)]
pub(crate) struct Running {
    live: Arc<Live>,
    number: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.live.numbers().live.remove(&self.number);
        self.live.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn draining_waits_for_what_runs_and_not_for_what_comes_later() {
        let executions = Executions::default();
        let early = executions.begin();
        let mut drained = Box::pin(executions.drained());
        assert!(drained.as_mut().now_or_never().is_none());
        let _later = executions.begin();
        drop(early);
        drained.await;
    }
}
