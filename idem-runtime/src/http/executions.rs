//! Counts the executions that run detached from their connection, so that a stop can wait for them.

use std::{
    collections::BTreeSet,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

/// Knows which executions run.
#[derive(Debug)]
pub(crate) struct Executions {
    running: Arc<Mutex<Running>>,
    ended: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Running {
    next: u64,
    live: BTreeSet<u64>,
}

impl Default for Executions {
    fn default() -> Self {
        Self {
            running: Arc::default(),
            ended: watch::Sender::new(()),
        }
    }
}

impl Executions {
    /// Runs `execution` as one that a stop has to wait for, from now on.
    pub(crate) fn track<F: Future>(
        &self,
        execution: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let number = {
            let mut running = lock(&self.running);
            running.next += 1;
            let number = running.next;
            running.live.insert(number);
            number
        };
        let tracked = Tracked {
            running: Arc::clone(&self.running),
            ended: self.ended.clone(),
            number,
        };
        async move {
            let _tracked = tracked;
            execution.await
        }
    }

    /// Waits until every execution has ended that runs now.
    pub(crate) async fn drained(&self) {
        let mut ended = self.ended.subscribe();
        let last = lock(&self.running).next;
        while lock(&self.running)
            .live
            .first()
            .is_some_and(|first| *first <= last)
        {
            // The sender lives as long as `self`.
            let _ = ended.changed().await;
        }
    }
}

struct Tracked {
    running: Arc<Mutex<Running>>,
    ended: watch::Sender<()>,
    number: u64,
}

impl Drop for Tracked {
    fn drop(&mut self) {
        lock(&self.running).live.remove(&self.number);
        self.ended.send_replace(());
    }
}

fn lock(running: &Mutex<Running>) -> MutexGuard<'_, Running> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn draining_waits_for_what_runs_and_not_for_what_comes_later() {
        let executions = Executions::default();
        let (end, ends) = oneshot::channel::<()>();
        let early = executions.track(ends);
        let mut drained = Box::pin(executions.drained());
        assert!(drained.as_mut().now_or_never().is_none());
        let (_never, later) = oneshot::channel::<()>();
        let _later = executions.track(later);
        end.send(()).unwrap();
        assert!(drained.as_mut().now_or_never().is_none());
        early.await.unwrap();
        drained.await;
    }

    #[tokio::test]
    async fn an_execution_that_is_dropped_has_ended() {
        let executions = Executions::default();
        drop(executions.track(std::future::pending::<()>()));
        executions.drained().await;
    }
}
