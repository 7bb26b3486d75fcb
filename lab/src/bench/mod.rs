//! Runs the contenders against each other, in turns, and compares them within each round.

mod compile;
mod contenders;
mod cpu;
mod growth;
mod load;
mod own;
mod plot;
mod report;
mod sections;
mod service;
mod spread;
mod turns;

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use idem_cluster::Cluster;
use idem_tests::relay::Relay;

pub(crate) use self::service::serve;
use self::{
    report::Section,
    service::{Service, Setup},
    turns::Rig,
};
use crate::Fallible;

/// What is asked for.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// All sizes, rates and connections, instead of what the targets need.
    pub(crate) full: bool,
    /// Whether a missed target fails the run.
    pub(crate) check: bool,
    /// Only these sections; empty for all.
    pub(crate) only: Vec<String>,
    /// Where the report is written; its plots go into a folder of its name beside it.
    pub(crate) report: Option<PathBuf>,
}

/// The sections, by the names that `--only` takes.
const SECTIONS: [&str; 10] = [
    "fresh", "kinds", "open", "delays", "trips", "sizes", "writes", "growth", "own", "compile",
];

/// Measures, prints what came of it and a line a target, and tells whether that is good.
///
/// # Errors
///
/// When a contender fails.
pub(crate) fn run(plan: &Plan) -> Fallible<bool> {
    let unknown = plan.only.iter().find(|name| !SECTIONS.contains(&&***name));
    if let Some(name) = unknown {
        return Err(format!(
            "there is no section {name}: they are {}",
            SECTIONS.join(", ")
        )
        .into());
    }
    let folder = plan.report.as_ref().map(|path| path.with_extension(""));
    if folder.is_some() && folder == plan.report {
        return Err("the report needs a name with an ending, like `performance.md`: its plots go into a folder of that name without it".into());
    }
    if let Some(folder) = &folder {
        fs::create_dir_all(folder)?;
    }
    let plots = folder.as_deref();

    // As in production an acknowledged commit has reached the disk, and torn pages are provided for. What would come
    // by itself at any time, a checkpoint or a vacuum, comes between rounds or not at all.
    let cluster = Cluster::builder()
        .setting("fsync", "on")
        .setting("synchronous_commit", "on")
        .setting("full_page_writes", "on")
        .setting("shared_buffers", "512MB")
        .setting("max_wal_size", "32GB")
        .setting("checkpoint_timeout", "1h")
        .setting("maintenance_work_mem", "512MB")
        .setting("autovacuum", "off")
        .start()?;
    cluster.create_database("bench")?;
    let sqlite = cluster.data_dir().with_file_name("bench.sqlite");
    let setup = Setup {
        database: cluster.url("bench"),
        sqlite: sqlite.clone(),
    };
    let service = Service::start(&setup)?;
    let relay = Relay::start(cluster.port(), Duration::ZERO);
    let delayed = Service::start(&Setup {
        database: relay.url("bench"),
        ..setup
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let rounds = if plan.full { 5 } else { 3 };
    let length = Duration::from_secs(1);
    let rig = |service| Rig {
        cluster: &cluster,
        service,
        runtime: &runtime,
        rounds,
        length,
    };
    let near = rig(&service);
    let far = Rig {
        rounds: 3,
        ..rig(&delayed)
    };

    let mut sections = Vec::new();
    for name in SECTIONS {
        if plan.only.is_empty() && !plan.full && matches!(name, "open" | "sizes")
            || !plan.only.is_empty() && plan.only.iter().all(|only| only != name)
        {
            continue;
        }
        let began = Instant::now();
        eprintln!("measuring: {name}");
        let connections: &[usize] = if plan.full { &[1, 16, 64] } else { &[16] };
        let section = match name {
            "fresh" => sections::fresh(&near, connections, plots)?,
            "kinds" => sections::kinds(&near)?,
            "open" => sections::open_loop(&near, plots)?,
            "delays" => sections::delays(&near, &far, &relay, plots)?,
            "trips" => sections::round_trips(&far, &relay)?,
            "sizes" => sections::sizes(&near)?,
            "writes" => sections::writes(&near)?,
            "own" => sections::own()?,
            "compile" => sections::compile(rounds)?,
            _ => growth::growth(
                &cluster,
                &runtime,
                &sqlite,
                plan.full,
                (rounds, length),
                plots,
            )?,
        };
        show(&section, began.elapsed());
        sections.push(section);
    }
    if let Some(path) = &plan.report {
        let server = cluster.run_sql("postgres", "SHOW server_version")?;
        let server = server.split(' ').next().unwrap_or_default();
        fs::write(path, report::document(&plan.command(), server, &sections))?;
    }
    Ok(judge(&sections) || !plan.check)
}

impl Plan {
    /// How this is asked for.
    fn command(&self) -> String {
        let mut words = vec!["cargo run --release -p lab -- bench".to_owned()];
        words.extend(self.full.then(|| "--profile full".to_owned()));
        if !self.only.is_empty() {
            words.push(format!("--only {}", self.only.join(",")));
        }
        let path = self.report.as_ref();
        words.extend(path.map(|path| format!("--report {}", path.display())));
        words.join(" ")
    }
}

fn show(section: &Section, took: Duration) {
    println!(
        "## {} ({:.0} s)\n\n{}",
        section.title,
        took.as_secs_f64(),
        section.text
    );
}

/// Prints the targets and tells whether all were reached.
fn judge(sections: &[Section]) -> bool {
    let targets = || sections.iter().flat_map(|section| &section.targets);
    for target in targets() {
        println!("{target}");
    }
    targets().all(report::Target::is_reached)
}
