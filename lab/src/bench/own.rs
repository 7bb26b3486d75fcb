//! What the framework itself takes of a request: CPU time over a backend that takes none.

mod handlers;

use std::time::Duration;

use actix_web::rt::System;
use rustix::time::{ClockId, clock_gettime};

use self::handlers::{BARE, GUARDED, order, requests, send, service};
use super::spread::Spread;
use crate::Fallible;

/// How many times both are measured.
const ROUNDS: usize = 9;

/// How many batches a round has.
const BATCHES: usize = 200;

/// How many requests a batch has. They are made before the clock runs, and no more of them than
/// actix keeps memory for.
const BATCH: usize = 100;

/// CPU time of this process a request, in µs.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) bare: Spread,
    pub(super) guarded: Spread,
    /// The framework's own: guarded less bare, within each round.
    pub(super) difference: Spread,
}

/// Measures the same handler bare and guarded, in turns, in this thread. Nothing else may run in
/// this process meanwhile.
///
/// # Errors
///
/// When a request fails.
pub(super) fn measure() -> Fallible<Own> {
    System::new().block_on(async {
        let (service, order) = (service().await?, order()?);
        let mut rounds = Vec::new();
        // The first is not counted: caches and pools fill.
        for _ in 0..=ROUNDS {
            let (mut bare, mut guarded) = (Duration::ZERO, Duration::ZERO);
            for _ in 0..BATCHES {
                for (path, used) in [(BARE, &mut bare), (GUARDED, &mut guarded)] {
                    let requests = requests(path, &order, BATCH);
                    let before = used_so_far();
                    send(&service, requests).await?;
                    *used += used_so_far().saturating_sub(before);
                }
            }
            rounds.push((a_request(bare), a_request(guarded)));
        }
        rounds.remove(0);
        Ok(Own {
            bare: Spread::of(rounds.iter().map(|(bare, _)| *bare)),
            guarded: Spread::of(rounds.iter().map(|(_, guarded)| *guarded)),
            difference: Spread::of(rounds.iter().map(|(bare, guarded)| guarded - bare)),
        })
    })
}

fn a_request(used: Duration) -> f64 {
    used.as_secs_f64() * 1e6 / (BATCHES * BATCH) as f64
}

fn used_so_far() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}
