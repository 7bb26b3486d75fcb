//! One trial: a fresh database, a proxy, services, a history; and at its end the settle pass and the verdict.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use fastrand::Rng;
use futures_util::{StreamExt, stream};
use rustix::process::Signal;
use tokio::time::sleep;

use super::{
    Lab,
    checker::{self, Evidence, Identity, Violation},
    client::Client,
    history::{History, Request, Told},
    load::body,
};
use crate::{
    Fallible,
    rig::{
        database::{ACCOUNTS, Database, LOCKS, SERVICE_SESSIONS},
        process::Service,
        proxy::Proxy,
    },
    service::{Order, Setup},
};

/// Stands in every key, scope and note, and must stand in no log.
pub(crate) const MARK: &str = "qz7";

/// How long everything may take to settle once the faults have stopped.
pub(crate) const SETTLE: Duration = Duration::from_secs(10);

/// What is special about a trial.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) instances: usize,
    pub(crate) workers: usize,
    pub(crate) pool: usize,
    pub(crate) database_timeout: Duration,
    pub(crate) head_timeout: Duration,
    pub(crate) pool_wait: Duration,
    pub(crate) sweep: Option<Duration>,
    /// Another server than the lab's own, by its port.
    pub(crate) server: Option<u16>,
    /// A pooler between proxy and server: behind it statements are sent unnamed.
    pub(crate) pooler: Option<u16>,
    pub(crate) wrapper: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            instances: 1,
            workers: 2,
            pool: 4,
            database_timeout: Duration::from_secs(2),
            // As actix has it.
            head_timeout: Duration::from_secs(5),
            pool_wait: Duration::from_secs(5),
            sweep: None,
            server: None,
            pooler: None,
            wrapper: Vec::new(),
            environment: Vec::new(),
        }
    }
}

/// What a fault works with.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) database: Database,
    pub(crate) proxy: Proxy,
    pub(crate) services: Vec<Service>,
    pub(crate) client: Client,
    pub(crate) history: History,
    pub(crate) rng: Rng,
    pub(crate) plan: Plan,
    /// What the fault itself found wrong.
    complaints: Vec<Violation>,
    /// What is worth telling.
    notes: Vec<String>,
    setup: Setup,
}

/// A request of an ordinary customer, with a key of its own.
pub(crate) fn fresh(rng: &mut Rng, path: &'static str, order: Order) -> Arc<Request> {
    let payer = rng.i32(0..ACCOUNTS / 2);
    Arc::new(Request {
        path,
        query: "",
        scope: format!("{MARK}-scope"),
        key: format!("{MARK}-key-{:016x}", rng.u64(..)),
        body: body(&Order {
            payer,
            payee: payer + ACCOUNTS / 2,
            amount: rng.i64(1..1000),
            note: format!("{MARK}-note"),
            ..order
        }),
    })
}

/// What a trial has shown.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) faults: u64,
    pub(crate) requests: usize,
    pub(crate) keys: usize,
    /// Requests in flight, summed over all faults.
    pub(crate) struck: u64,
    /// Attempts whose outcome the client could not know.
    pub(crate) unknown: usize,
    /// Acknowledgements that a server which may lose them has lost.
    pub(crate) lost: usize,
    pub(crate) settled: Duration,
    pub(crate) violations: Vec<Violation>,
    pub(crate) notes: Vec<String>,
    /// Where the history is.
    pub(crate) history: PathBuf,
}

impl Verdict {
    /// Joins the verdicts of two trials of one fault.
    pub(crate) fn and(mut self, other: Self) -> Self {
        if self.violations.is_empty() {
            self.history = other.history;
        }
        self.faults += other.faults;
        self.requests += other.requests;
        self.keys += other.keys;
        self.struck += other.struck;
        self.unknown += other.unknown;
        self.lost += other.lost;
        self.settled = self.settled.max(other.settled);
        self.violations.extend(other.violations);
        self.notes.extend(other.notes);
        self
    }
}

/// What the verdict has to allow for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allowing {
    /// Whether the server may have lost its last commits.
    pub(crate) lossy: bool,
}

impl Trial {
    /// Sets everything up.
    ///
    /// # Errors
    ///
    /// When a part of it does not start.
    pub(crate) async fn begin(lab: &Lab, name: &str, plan: Plan) -> Fallible<Self> {
        let number = lab.next_trial();
        let history = History::begin(&lab.folder.join(format!("{name}-{number}.jsonl")))?;
        let database = Database {
            port: plan.server.unwrap_or(lab.cluster.port()),
            name: format!("trial_{number}"),
        };
        database.create().await?;
        let told = history.clone();
        let server = plan.pooler.unwrap_or(database.port);
        let proxy = Proxy::start(server, lab.seed, move |cut| told.fault(cut)).await?;
        let setup = Setup {
            database: Database {
                port: proxy.port,
                name: database.name.clone(),
            }
            .url(),
            port: 0,
            workers: plan.workers,
            pool: plan.pool,
            unnamed: plan.pooler.is_some(),
            pool_wait: plan.pool_wait,
            database_timeout: plan.database_timeout,
            head_timeout: plan.head_timeout,
            sweep: plan.sweep,
            executions: lab.folder.join(format!("{name}-{number}.executions")),
        };
        let mut services = Vec::new();
        for instance in 0..plan.instances {
            let log = lab.folder.join(format!("{name}-{number}-{instance}.log"));
            let (wrapper, environment) = (plan.wrapper.clone(), plan.environment.clone());
            let service = Service::start(setup.clone(), log, wrapper, environment).await?;
            services.push(service);
        }
        let client = Client {
            targets: services.iter().map(|service| service.address).collect(),
            history: history.clone(),
        };
        Ok(Self {
            database,
            proxy,
            services,
            client,
            history,
            rng: Rng::with_seed(lab.seed ^ number),
            plan,
            complaints: Vec::new(),
            notes: Vec::new(),
            setup,
        })
    }

    /// A request with a key of its own.
    pub(crate) fn fresh(&mut self, path: &'static str, order: Order) -> Arc<Request> {
        fresh(&mut self.rng, path, order)
    }

    /// Sends a signal to an instance.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub(crate) fn signal(&self, instance: usize, signal: Signal) -> Fallible<()> {
        self.services
            .get(instance)
            .ok_or("no such instance")?
            .signal(signal)
    }

    /// Waits until an instance has ended by itself, and tells whether it did well.
    ///
    /// # Errors
    ///
    /// When it does not end in time.
    pub(crate) async fn ended(&mut self, instance: usize) -> Fallible<bool> {
        self.services
            .get_mut(instance)
            .ok_or("no such instance")?
            .ended()
            .await
    }

    /// Starts an instance again.
    ///
    /// # Errors
    ///
    /// When it does not listen in time.
    pub(crate) async fn restart(&mut self, instance: usize) -> Fallible<()> {
        self.services
            .get_mut(instance)
            .ok_or("no such instance")?
            .restart()
            .await
    }

    /// What an instance has logged.
    pub(crate) fn log(&self, instance: usize) -> String {
        self.services
            .get(instance)
            .map(Service::log)
            .unwrap_or_default()
    }

    /// The attempts whose handler has begun.
    pub(crate) fn executed(&self) -> HashSet<usize> {
        checker::executed(&self.setup.executions)
    }

    /// Waits until the handlers of these attempts have begun.
    ///
    /// # Errors
    ///
    /// When they do not in time.
    pub(crate) async fn until_executed(&self, attempts: &[usize]) -> Fallible<()> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            let executed = self.executed();
            if attempts.iter().all(|attempt| executed.contains(attempt)) {
                return Ok(());
            }
            sleep(Duration::from_millis(5)).await;
        }
        Err("handlers did not begin within 5 s".into())
    }

    /// Complains if a key whose handler has begun has no effect, though nobody has repeated its request: for faults
    /// that strike clients only.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub(crate) async fn expect_done(&mut self) -> Fallible<()> {
        let still = format!("SELECT count(*) = 0 FROM {LOCKS}");
        self.database.until(&still, SETTLE).await?;
        let done = self
            .database
            .query("SELECT DISTINCT scope, operation, key FROM effects")
            .await?;
        let done: HashSet<_> = done
            .iter()
            .map(|row| Identity {
                scope: row.get(0),
                operation: row.get(1),
                key: row.get(2),
            })
            .collect();
        let attempts = self.history.attempts();
        for number in self.executed() {
            let request = attempts.get(number).map(|attempt| &attempt.request);
            if let Some(request) = request
                && !done.contains(&Identity::of(request))
            {
                let lost = "its handler had begun, its client hung up, and its work is lost";
                self.complaints.push(Violation::of("I2", request, lost));
            }
        }
        Ok(())
    }

    /// The attempts that were in flight at a moment, or executed at any, and came to nothing: for faults that may
    /// refuse requests and lose none.
    pub(crate) fn failed_in_flight(&self, at: Duration) -> Vec<String> {
        let executed = self.executed();
        let attempts = self.history.attempts();
        let returned = attempts.iter().enumerate().filter_map(|(number, attempt)| {
            let (returned, outcome) = attempt.returned.as_ref()?;
            let in_flight = attempt.invoked < at && *returned > at;
            (in_flight || executed.contains(&number)).then_some(outcome)
        });
        returned
            .filter(|outcome| outcome.told() == Told::Unknown)
            .map(|outcome| format!("{outcome:?}"))
            .collect()
    }

    /// Complains about a rule that the fault itself checks.
    pub(crate) fn expect(&mut self, holds: bool, what: impl Into<String>) {
        if !holds {
            self.complaints.push(Violation::new("rule", what));
        }
    }

    /// Complains about a bound of time, which a machine that does other things may miss.
    pub(crate) fn expect_in_time(&mut self, holds: bool, what: impl Into<String>) {
        if !holds {
            self.complaints.push(Violation::new("bound", what));
        }
    }

    /// Tells something in the report.
    pub(crate) fn note(&mut self, what: impl Into<String>) {
        self.notes.push(what.into());
    }

    /// Lets everything settle, compares, and takes everything down.
    ///
    /// # Errors
    ///
    /// When the evidence cannot be had.
    pub(crate) async fn end(mut self, allowing: Allowing) -> Fallible<Verdict> {
        let faults = self.history.faults();
        let Asked {
            open,
            answered,
            unknown,
        } = self.asked();
        let began = Instant::now();
        let mut violations = std::mem::take(&mut self.complaints);
        violations.extend(self.settle(open).await);
        let settled = began.elapsed();
        // A repeat of everything else: what was answered once is answered so again.
        violations.extend(self.settle(answered).await);
        violations.extend(self.leaks().await?);

        let attempts = self.history.attempts();
        let evidence = Evidence::gather(&self.database, attempts, &self.setup.executions).await?;
        let checked = checker::check(&evidence, allowing);
        violations.extend(checked.violations);
        for service in &self.services {
            let log = service.log();
            if let Some(line) = log.lines().find(|line| line.contains(MARK)) {
                violations.push(Violation::new("I10", format!("a log says: {line}")));
            }
        }
        Ok(Verdict {
            faults,
            requests: evidence.attempts.len(),
            keys: checked.keys,
            struck: self.history.struck(),
            unknown,
            lost: checked.lost,
            settled,
            violations,
            notes: self.notes,
            history: self.history.flush()?,
        })
    }

    /// Sorts the requests by whether they have a settled answer, and counts the attempts that have none.
    fn asked(&self) -> Asked {
        let mut unknown = 0;
        let mut requests: HashMap<Arc<Request>, bool> = HashMap::new();
        for attempt in self.history.attempts() {
            let returned = attempt.returned.as_ref();
            let settled = returned.is_some_and(|(_, outcome)| outcome.is_settled());
            unknown +=
                usize::from(returned.is_none_or(|(_, outcome)| outcome.told() == Told::Unknown));
            *requests.entry(attempt.request).or_default() |= settled;
        }
        let (answered, open): (Vec<_>, Vec<_>) =
            requests.into_iter().partition(|(_, settled)| *settled);
        let requests = |list: Vec<(Arc<Request>, bool)>| {
            list.into_iter().map(|(request, _)| request).collect()
        };
        Asked {
            open: requests(open),
            answered: requests(answered),
            unknown,
        }
    }

    /// Repeats each request until its answer is settled; brings those whose answer is not.
    async fn settle(&self, requests: Vec<Arc<Request>>) -> Vec<Violation> {
        let ended = stream::iter(requests).map(|request| {
            let mut rng = Rng::with_seed(self.history.requests() as u64);
            async move {
                let outcome = self.client.finish(&request, SETTLE, &mut rng).await;
                (!outcome.is_settled()).then(|| {
                    Violation::of(
                        "I6",
                        &request,
                        format!("not settled within 10 s: {outcome:?}"),
                    )
                })
            }
        });
        let ended: Vec<_> = ended.buffer_unordered(16).collect().await;
        ended.into_iter().flatten().collect()
    }

    /// Looks for what is left over: sessions in transactions, locks, connections, descriptors.
    async fn leaks(&self) -> Fallible<Vec<Violation>> {
        let start = Instant::now();
        loop {
            let left = self.left_over().await?;
            if left.is_empty() || start.elapsed() > SETTLE {
                let leaks = left.into_iter();
                return Ok(leaks.map(|leak| Violation::new("I7", leak)).collect());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn left_over(&self) -> Fallible<Vec<String>> {
        let mut left = Vec::new();
        let open = format!("SELECT count(*) FROM {SERVICE_SESSIONS} AND state <> 'idle'");
        let open = self.database.number(&open).await?;
        if open > 0 {
            left.push(format!("{open} sessions are not idle"));
        }
        let locks = self
            .database
            .number(&format!("SELECT count(*) FROM {LOCKS}"))
            .await?;
        if locks > 0 {
            left.push(format!("{locks} advisory locks are held"));
        }
        let pools = i64::try_from(self.plan.pool * self.services.len())?;
        // A pooler keeps sessions of its own.
        let sessions = format!("SELECT count(*) FROM {SERVICE_SESSIONS}");
        let sessions = self.database.number(&sessions).await?;
        if sessions > pools {
            left.push(format!("{sessions} sessions for pools of {pools}"));
        }
        for service in &self.services {
            let [size, available, waiting] = service.pool_status().await?;
            if size != available || waiting > 0 || size > self.plan.pool {
                left.push(format!(
                    "a pool with {size} connections, of which {available} are there, and {waiting} that wait"
                ));
            }
            // Connections to the database, the question for the pool's status, and what runtimes open late.
            let more = service.more_descriptors();
            if more > size + 8 {
                left.push(format!("{more} descriptors more than at the start"));
            }
        }
        Ok(left)
    }
}

struct Asked {
    open: Vec<Arc<Request>>,
    answered: Vec<Arc<Request>>,
    unknown: usize,
}
