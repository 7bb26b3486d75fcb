//! Injects faults into the real thing and compares what clients were told with what the database holds.

mod checker;
mod client;
mod cuts;
mod handlers;
mod hangups;
mod history;
mod kills;
mod lifetimes;
mod load;
mod report;
mod seeded;
mod servers;
mod stops;
mod storms;
mod trial;

use std::{
    env, fs,
    io::{IsTerminal, Write},
    path::PathBuf,
    pin::Pin,
    process,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use idem_cluster::Cluster;

pub(crate) use self::seeded::check;
use self::{report::Row, trial::Verdict};
use crate::Fallible;

/// What is asked for.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Only these faults; empty for all.
    pub(crate) only: Vec<String>,
    pub(crate) seed: Option<u64>,
    pub(crate) minutes: Option<f64>,
    pub(crate) long: bool,
    /// Whether faults that this machine has no tool for may be left out, and bounds of time missed.
    pub(crate) lenient: bool,
    /// Where the report is written.
    pub(crate) report: Option<PathBuf>,
}

/// What the faults share.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) cluster: Cluster,
    /// Holds histories and logs.
    pub(crate) folder: PathBuf,
    pub(crate) seed: u64,
    long: bool,
    /// How much longer or shorter than usual everything takes.
    scale: f64,
    trials: AtomicU64,
}

/// How long the profiles take, about, in minutes.
const SHORT: f64 = 4.0;
const LONG: f64 = 40.0;

/// One kind of fault.
struct Fault {
    name: &'static str,
    what: &'static str,
    run: Run,
}

type Injecting<'a> = Pin<Box<dyn Future<Output = Fallible<Verdict>> + 'a>>;

enum Run {
    Here(for<'a> fn(&'a Lab) -> Injecting<'a>),
    /// Shown by a test of this name.
    Elsewhere(&'static str),
}

macro_rules! here {
    ($run:path) => {
        Run::Here(|lab| Box::pin($run(lab)))
    };
}

const FAULTS: &[Fault] = &[
    Fault {
        name: "F1",
        what: "service killed at a random point",
        run: here!(kills::service_killed),
    },
    Fault {
        name: "F2",
        what: "sessions terminated, cancelled or killed, also inside COMMIT",
        run: here!(kills::sessions_killed),
    },
    Fault {
        name: "F3",
        what: "connection cut around COMMIT",
        run: here!(cuts::commit_cut),
    },
    Fault {
        name: "F4",
        what: "black hole between service and database",
        run: here!(cuts::black_hole),
    },
    Fault {
        name: "F5",
        what: "frozen service goes on after another has served its keys",
        run: here!(stops::zombie),
    },
    Fault {
        name: "F6",
        what: "backend that holds a key frozen",
        run: here!(stops::frozen_backend),
    },
    Fault {
        name: "F7",
        what: "disk full: that of the tables, that of the log",
        run: here!(servers::disk_full),
    },
    Fault {
        name: "F8",
        what: "failover to an asynchronous and to a synchronous standby",
        run: here!(servers::failover),
    },
    Fault {
        name: "F9",
        what: "COMMIT waiting for a lost standby cancelled",
        run: here!(servers::cancelled_commit),
    },
    Fault {
        name: "F10",
        what: "PgBouncer in transaction mode, smaller than the pool",
        run: here!(servers::pooler),
    },
    Fault {
        name: "F11",
        what: "client hangs up, at ten points in three ways",
        run: here!(hangups::hang_ups),
    },
    Fault {
        name: "F12",
        what: "storm of 1,000 duplicates over one to three instances",
        run: here!(storms::storm),
    },
    Fault {
        name: "F13",
        what: "500 clients that send a byte a second",
        run: here!(hangups::slow_clients),
    },
    Fault {
        name: "F14",
        what: "panic, or no answer before the deadline",
        run: here!(handlers::panics),
    },
    Fault {
        name: "F15",
        what: "body truncated, endless, ambiguous, too large or missing",
        run: here!(hangups::bodies),
    },
    Fault {
        name: "F16",
        what: "repeats around the end of a lifetime, both sweeping",
        run: here!(lifetimes::expiry),
    },
    Fault {
        name: "F17",
        what: "service's clock a day off",
        run: here!(lifetimes::wrong_clock),
    },
    Fault {
        name: "F18",
        what: "execution dropped after every poll",
        run: Run::Elsewhere("tests/acceptance"),
    },
    Fault {
        name: "F19",
        what: "graceful stop under load, rolling restart",
        run: here!(stops::graceful_stop),
    },
    Fault {
        name: "F20",
        what: "handler that misbehaves",
        run: here!(handlers::misbehaviour),
    },
    Fault {
        name: "F21",
        what: "serialisation failure, deadlock, constraint failing at COMMIT",
        run: here!(handlers::conflicts),
    },
    Fault {
        name: "F22",
        what: "equal keys of 50 owners, revoked callers, spellings of a key",
        run: here!(storms::scopes),
    },
    Fault {
        name: "F23",
        what: "refused, corrected and late requests while limits change",
        run: here!(handlers::refusals),
    },
    Fault {
        name: "F24",
        what: "client gone before a graceful stop",
        run: here!(stops::stop_after_hanging_up),
    },
];

/// Runs what is asked for, prints a line a fault and the result, and tells whether everything held.
///
/// # Errors
///
/// When the lab itself cannot work.
pub(crate) async fn run(plan: Plan) -> Fallible<bool> {
    let unknown = plan
        .only
        .iter()
        .find(|name| FAULTS.iter().all(|fault| fault.name != **name));
    if let Some(name) = unknown {
        return Err(format!("there is no fault {name}: they are F1 to F24").into());
    }
    let lab = Lab::open(&plan)?;
    println!("seed {}, histories in {}", lab.seed, lab.folder.display());
    let mut rows = Vec::new();
    for fault in FAULTS {
        if !plan.only.is_empty() && plan.only.iter().all(|name| name != fault.name) {
            continue;
        }
        let began = Instant::now();
        if std::io::stdout().is_terminal() {
            print!("{:<4}{} …\r", fault.name, fault.what);
            std::io::stdout().flush()?;
        }
        let result = match fault.run {
            Run::Here(inject) => report::Result::of(inject(&lab).await),
            Run::Elsewhere(place) => report::Result::Elsewhere(place),
        };
        let row = Row {
            name: fault.name,
            what: fault.what,
            took: began.elapsed(),
            result,
        };
        println!("{row}");
        rows.push(row);
    }
    let summary = report::Summary::of(&lab, rows).await?;
    if let Some(path) = &plan.report {
        fs::write(path, summary.document(&plan))?;
    }
    let clean = summary.is_clean(plan.lenient);
    summary.print_first_violation()?;
    if clean {
        fs::remove_dir_all(&lab.folder)?;
    }
    println!("{summary}");
    Ok(clean)
}

impl Lab {
    fn open(plan: &Plan) -> Fallible<Self> {
        let folder = env::temp_dir().join(format!("idem-lab-{}", process::id()));
        fs::create_dir_all(&folder)?;
        let cluster = Cluster::builder()
            .setting("max_connections", "200")
            .setting("deadlock_timeout", "50ms")
            // Killed backends restart the server; that shall not wait for anything.
            .setting("checkpoint_timeout", "1h")
            .start()?;
        let usual = if plan.long { LONG } else { SHORT };
        Ok(Self {
            cluster,
            folder,
            seed: plan.seed.unwrap_or_else(|| fastrand::u64(..1_000_000)),
            long: plan.long,
            scale: plan.minutes.map_or(1.0, |minutes| minutes / usual),
            trials: AtomicU64::new(1),
        })
    }

    /// How long something goes on, in the short profile and in the long one.
    fn time(&self, short: f64, long: f64) -> Duration {
        Duration::from_secs_f64(if self.long { long } else { short } * self.scale)
    }

    /// How often something is done, in the short profile and in the long one.
    fn times(&self, short: usize, long: usize) -> usize {
        let times = if self.long { long } else { short };
        ((times as f64 * self.scale).round() as usize).max(1)
    }

    fn next_trial(&self) -> u64 {
        self.trials.fetch_add(1, Ordering::Relaxed)
    }
}

/// Whether this machine has a program, also where only root's path leads.
fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .any(|folder| folder.join(program).is_file())
}
