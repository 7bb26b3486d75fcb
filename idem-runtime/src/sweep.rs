//! Deletes expired records in batches, as a call and as a background task.

use std::{future::Future, time::Duration};

use tokio::{task::JoinHandle, time::sleep};

use crate::{backend::Backend, error::StoreError, meter};

/// How many records one statement deletes: short transactions that disturb nobody.
const BATCH: u32 = 1_000;

/// The shortest pause between two sweeps: the database has other work.
const SHORTEST: Duration = Duration::from_millis(10);

/// The longest.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Sweeps in the background as long as it lives.
#[derive(Debug)]
pub struct Sweeper {
    task: JoinHandle<()>,
}

/// Deletes batches until one is not full.
pub(crate) async fn all(backend: &impl Backend) -> Result<u64, StoreError> {
    let mut swept = 0;
    loop {
        let batch = backend.sweep(BATCH).await?;
        meter::swept(batch);
        swept += batch;
        if batch < u64::from(BATCH) {
            return Ok(swept);
        }
    }
}

impl Sweeper {
    pub(crate) fn start<F>(interval: Duration, sweep: impl Fn() -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<u64, StoreError>> + Send,
    {
        let interval = interval.clamp(SHORTEST, LONGEST);
        let task = tokio::spawn(async move {
            loop {
                match sweep().await {
                    Ok(records) => tracing::debug!(records, "swept"),
                    Err(error) => tracing::warn!(%error, "the sweep failed, and is tried again"),
                }
                sleep(interval + interval.mul_f64(fastrand::f64() / 10.0)).await;
            }
        });
        Self { task }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}
