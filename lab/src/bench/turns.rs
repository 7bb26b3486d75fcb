//! Measures cases in turns, round after round, so that what disturbs one disturbs all, and compares them within a round.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use idem_cluster::Cluster;
use tokio::runtime::Runtime;

use super::{
    cpu::Cpu,
    load::{self, Case, Load, Shape},
    service::Service,
    spread::Spread,
};
use crate::Fallible;

/// What measures.
pub(super) struct Rig<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) service: &'a Service,
    pub(super) runtime: &'a Runtime,
    pub(super) rounds: usize,
    pub(super) length: Duration,
}

/// What one case showed in one round. Times are in milliseconds, CPU time in microseconds a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pub(super) per_second: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) service: f64,
    pub(super) database: f64,
}

/// What a case showed in all rounds.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) case: Case,
    pub(super) shown: Vec<Shown>,
}

impl Rig<'_> {
    /// Measures closed loops.
    ///
    /// # Errors
    ///
    /// When a contender fails.
    pub(super) fn closed(&self, what: &str, cases: &[Case]) -> Fallible<Vec<Series>> {
        self.in_turns(what, cases, |case| {
            self.runtime
                .block_on(load::closed(self.service.address, case, self.length))
        })
    }

    /// Measures open loops.
    ///
    /// # Errors
    ///
    /// As [`Self::closed`].
    pub(super) fn open(
        &self,
        what: &str,
        cases: &[Case],
        per_second: f64,
    ) -> Fallible<Vec<Series>> {
        self.in_turns(what, cases, |case| {
            let load = load::open(self.service.address, case, per_second, self.length);
            self.runtime.block_on(load)
        })
    }

    fn in_turns(
        &self,
        what: &str,
        cases: &[Case],
        measure: impl Fn(Case) -> io::Result<Load>,
    ) -> Fallible<Vec<Series>> {
        let mut series: Vec<_> = cases
            .iter()
            .map(|case| Series {
                case: *case,
                shown: Vec::new(),
            })
            .collect();
        for case in cases {
            self.warm(*case)?;
        }
        let count = series.len();
        for round in 0..self.rounds {
            // Not in the middle of anybody's turn.
            self.cluster.run_sql("postgres", "CHECKPOINT")?;
            for turn in 0..count {
                progress(what, round * count + turn + 1, self.rounds * count);
                // Each round begins with another one, so that none has the better place.
                let Some(series) = series.get_mut((turn + round) % count) else {
                    continue;
                };
                let shown = self.show(series.case, &measure)?;
                series.shown.push(shown);
            }
        }
        Ok(series)
    }

    /// Fills statement caches, and makes what is repeated.
    ///
    /// # Errors
    ///
    /// As [`Self::closed`].
    pub(super) fn warm(&self, case: Case) -> Fallible<()> {
        let address = self.service.address;
        if matches!(case.shape, Shape::Repeat | Shape::Conflict | Shape::Mixed) {
            self.runtime.block_on(load::prime(address, case))?;
        }
        if case.shape == Shape::Foreign {
            self.runtime.block_on(load::prime_foreign(address, case))?;
            self.store_foreign()?;
        }
        let length = self.length.min(Duration::from_millis(500));
        self.runtime.block_on(load::closed(address, case, length))?;
        Ok(())
    }

    /// Stores what foreign repeats ask for, for a turn.
    fn store_foreign(&self) -> Fallible<()> {
        // More than any machine answers in that time.
        let count = (self.length.as_secs_f64() * 40_000.0) as u64;
        self.cluster.run_sql("bench", &load::foreign(count))?;
        Ok(())
    }

    fn show(&self, case: Case, measure: impl Fn(Case) -> io::Result<Load>) -> Fallible<Shown> {
        if case.shape == Shape::Foreign {
            self.store_foreign()?;
        }
        let cpu = || Cpu::now(self.service.id(), &self.cluster.data_dir());
        let before = cpu();
        let load = measure(case)?;
        let used = cpu() - before;
        let a_request = |used: Duration| used.as_secs_f64() * 1e6 / load.times.len() as f64;
        Ok(Shown {
            per_second: load.per_second(),
            p50: load.at(0.5),
            p99: load.at(0.99),
            p999: load.at(0.999),
            service: a_request(used.service),
            database: a_request(used.database),
        })
    }
}

impl Series {
    pub(super) fn spread(&self, by: impl Fn(&Shown) -> f64) -> Spread {
        Spread::of(self.shown.iter().map(by))
    }

    /// The ratios to another one's, round by round.
    pub(super) fn beside(&self, other: &Self, by: impl Fn(&Shown) -> f64) -> Spread {
        let pairs = self.shown.iter().zip(&other.shown);
        Spread::of(pairs.map(|(one, other)| by(one) / by(other)))
    }
}

/// Says how far a section is, where somebody watches.
pub(super) fn progress(what: &str, done: usize, of: usize) {
    if io::stderr().is_terminal() {
        let mut stderr = io::stderr();
        // Nothing depends on it.
        let _ = write!(stderr, "\r\x1b[K{what} {done}/{of}");
        let _ = stderr.flush();
        if done == of {
            let _ = write!(stderr, "\r\x1b[K");
        }
    }
}
