//! Counts the executions that run detached from their connection, so that a stop can wait for them.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

/// Knows which executions run.
#[derive(Debug)]
pub(crate) struct Executions {
    numbers: Arc<Mutex<Numbers>>,
    ended: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Numbers {
    next: u64,
    live: BTreeSet<u64>,
}

impl Default for Executions {
    fn default() -> Self {
        Self {
            numbers: Arc::default(),
            ended: watch::Sender::new(()),
        }
    }
}

impl Executions {
    /// Counts an execution as one that a stop has to wait for, until this is dropped.
    pub(crate) fn begin(&self) -> Running {
        let number = {
            let mut numbers = lock(&self.numbers);
            numbers.next += 1;
            let number = numbers.next;
            numbers.live.insert(number);
            number
        };
        Running {
            numbers: Arc::clone(&self.numbers),
            ended: self.ended.clone(),
            number,
        }
    }

    /// Waits until every execution has ended that runs now.
    pub(crate) async fn drained(&self) {
        let mut ended = self.ended.subscribe();
        let last = lock(&self.numbers).next;
        while lock(&self.numbers)
            .live
            .first()
            .is_some_and(|first| *first <= last)
        {
            // The sender lives as long as `self`.
            let _ = ended.changed().await;
        }
    }
}

/// An execution that has not ended.
#[derive(Debug)]
pub(crate) struct Running {
    numbers: Arc<Mutex<Numbers>>,
    ended: watch::Sender<()>,
    number: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.numbers).live.remove(&self.number);
        self.ended.send_replace(());
    }
}

fn lock(numbers: &Mutex<Numbers>) -> MutexGuard<'_, Numbers> {
    numbers.lock().unwrap_or_else(PoisonError::into_inner)
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
