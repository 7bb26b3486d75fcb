//! Ordinary customers: fresh keys, duplicates at once, repeats, other requests under a used key, refusals and corrections.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use fastrand::Rng;
use tokio::{task::JoinSet, time::sleep};

use super::{
    client::{Client, Line},
    history::{Outcome, Request},
    trial::{MARK, Trial},
};
use crate::{
    rig::database::ACCOUNTS,
    service::{Order, Step},
};

/// What the customers of a trial send.
#[derive(Clone, Debug)]
pub(crate) struct Mix {
    pub(crate) path: &'static str,
    pub(crate) customers: usize,
    /// Whether accounts are few and locked in any order.
    pub(crate) crowded: bool,
    /// What handlers do once they have written, so that faults meet them there; drawn for each key.
    pub(crate) after: fn(&mut Rng) -> Vec<Step>,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            path: "/pay",
            customers: 8,
            crowded: false,
            after: |rng| match rng.u8(0..4) {
                0 => vec![Step::Sleep(rng.u64(1..8))],
                _ => Vec::new(),
            },
        }
    }
}

/// Customers at work.
#[derive(Debug)]
pub(crate) struct Load {
    stopping: Arc<AtomicBool>,
    customers: JoinSet<()>,
}

impl Load {
    /// Lets them begin.
    pub(crate) fn start(trial: &mut Trial, mix: &Mix) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let mut customers = JoinSet::new();
        for number in 0..mix.customers {
            let customer = Customer {
                client: trial.client.clone(),
                mix: mix.clone(),
                rng: trial.rng.fork(),
                stopping: Arc::clone(&stopping),
            };
            customers.spawn(customer.shop(number));
        }
        Self {
            stopping,
            customers,
        }
    }

    /// Waits until this many requests were sent, or for half a minute.
    pub(crate) async fn until_sent(&self, trial: &Trial, requests: usize) {
        let start = Instant::now();
        while trial.history.requests() < requests && start.elapsed() < Duration::from_secs(30) {
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// Lets them end what they are at.
    pub(crate) async fn stop(mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        while self.customers.join_next().await.is_some() {}
    }
}

struct Customer {
    client: Client,
    mix: Mix,
    rng: Rng,
    stopping: Arc<AtomicBool>,
}

impl Customer {
    async fn shop(mut self, number: usize) {
        let client = self.client.clone();
        let mut lines: Vec<_> = (0..client.targets.len())
            .map(|target| client.line(target))
            .collect();
        for count in 0.. {
            if self.is_stopping() {
                return;
            }
            // Customers use the same keys, each in a scope of their own.
            let request = Request {
                path: self.mix.path,
                query: "",
                scope: format!("{MARK}-scope-{number}"),
                key: format!("{MARK}-key-{count}"),
                body: body(&self.order()),
            };
            self.buy(&mut lines, request).await;
        }
    }

    async fn buy(&mut self, lines: &mut [Line<'_>], request: Request) {
        let request = Arc::new(request);
        let again = self.rng.u8(0..100);
        let answer = if again < 15 {
            let (target, other) = (self.rng.usize(..), Arc::clone(&request));
            let client = self.client.clone();
            let (_, answer) = tokio::join!(
                client.once(target, &other),
                self.until_settled(lines, &request)
            );
            answer
        } else {
            self.until_settled(lines, &request).await
        };
        match (answer.status(), again) {
            // A corrected request under the same key.
            (Some(402), ..60) => {
                let mut corrected = Request::clone(&request);
                corrected.body = body(&Order {
                    amount: 1,
                    ..self.order()
                });
                self.until_settled(lines, &Arc::new(corrected)).await;
            }
            // Another request under a key that had its effect.
            (Some(201), 15..20) => {
                let mut other = Request::clone(&request);
                if self.rng.bool() {
                    other.body = body(&self.order());
                } else {
                    other.query = "?dry_run=1";
                }
                self.until_settled(lines, &Arc::new(other)).await;
            }
            // The answer was lost on the way to the one who asked.
            (Some(_), 20..35) => drop(self.until_settled(lines, &request).await),
            _ => {}
        }
    }

    /// Repeats until the answer is settled, or the faults are over: the rest is for the settle pass.
    async fn until_settled(&mut self, lines: &mut [Line<'_>], request: &Arc<Request>) -> Outcome {
        let mut pause = Duration::from_millis(4);
        loop {
            let at = self.rng.usize(..lines.len().max(1));
            let Some(line) = lines.get_mut(at) else {
                return Outcome::Lost("there is no service".to_owned());
            };
            let outcome = line.attempt(request).await;
            if outcome.is_settled() || self.is_stopping() {
                return outcome;
            }
            sleep(pause.mul_f64(0.5 + self.rng.f64())).await;
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    fn order(&mut self) -> Order {
        let accounts = if self.mix.crowded { 4 } else { ACCOUNTS };
        let payer = self.rng.i32(0..accounts);
        Order {
            payer,
            payee: (payer + self.rng.i32(1..accounts)) % accounts,
            // A seventh is above the limit.
            amount: self.rng.i64(1..1170),
            note: format!("{MARK}-note-{}", self.rng.u32(..)),
            before: vec![Step::Limit],
            after: (self.mix.after)(&mut self.rng),
            unordered: self.mix.crowded,
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// Writes an order as a request's body.
pub(crate) fn body(order: &Order) -> String {
    serde_json::to_string(order).unwrap_or_default()
}

/// The time that this share of the requests stays below; zero without requests.
pub(crate) fn percentile(times: &mut [Duration], share: f64) -> Duration {
    times.sort_unstable();
    let index = (times.len() as f64 * share) as usize;
    times
        .get(index.min(times.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}
