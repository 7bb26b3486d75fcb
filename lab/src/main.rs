//! Shows what the framework holds and costs: `lab faults`, `lab checker` and `lab bench`.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures of measurements"
)]

mod bench;
mod faults;
mod rig;
mod service;

use std::{env, error::Error, process::ExitCode};

/// What anything here may fail with.
type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

const USAGE: &str = "usage:
  lab faults [--only F3,F8] [--seed N] [--profile short|long] [--minutes M] [--report FILE] [--lenient]
      injects faults and checks the promise; `short` takes about 4 minutes, `long` about 40; with `--lenient` a fault that this machine
      has no tool for is listed as not run, and neither it nor a missed bound of time fails the run
  lab checker [--seed N]
      shows that the checks catch faults that are planted in the framework; needs a build with
      `--features seeded`
  lab bench [--profile quick|full] [--only fresh,kinds,open,delays,trips,sizes,writes,growth,own,compile]
            [--check] [--report FILE]
      measures what the promise costs, and prints a line a target; `full` takes about 20 minutes; with `--check` a
      target that is missed fails the run; plots go beside the report";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lab: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Fallible<bool> {
    let mut arguments = env::args().skip(1);
    match arguments.next().as_deref() {
        Some("bench") => bench::run(&bench_plan(arguments)?),
        Some("faults") => {
            let plan = faults_plan(arguments)?;
            runtime()?.block_on(faults::run(plan))
        }
        Some("checker") => {
            let plan = faults_plan(arguments)?;
            runtime()?.block_on(faults::check(plan))
        }
        Some("serve-contenders") => {
            bench::serve(&arguments.next().unwrap_or_default())?;
            Ok(true)
        }
        Some("serve") => {
            service::serve(&arguments.next().unwrap_or_default())?;
            Ok(true)
        }
        _ => Err(USAGE.into()),
    }
}

fn runtime() -> Fallible<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Ok(builder.worker_threads(2).enable_all().build()?)
}

fn faults_plan(mut arguments: impl Iterator<Item = String>) -> Fallible<faults::Plan> {
    let mut plan = faults::Plan::default();
    while let Some(option) = arguments.next() {
        if option == "--lenient" {
            plan.lenient = true;
            continue;
        }
        let value = arguments.next().unwrap_or_default();
        match (&*option, &*value) {
            ("--only", names) => plan.only = names.split(',').map(ToOwned::to_owned).collect(),
            ("--seed", seed) => plan.seed = Some(seed.parse()?),
            ("--minutes", minutes) => plan.minutes = Some(minutes.parse()?),
            ("--profile", "short") => plan.long = false,
            ("--profile", "long") => plan.long = true,
            ("--report", path) => plan.report = Some(path.into()),
            _ => return Err(USAGE.into()),
        }
    }
    Ok(plan)
}

fn bench_plan(mut arguments: impl Iterator<Item = String>) -> Fallible<bench::Plan> {
    let mut plan = bench::Plan::default();
    while let Some(option) = arguments.next() {
        if option == "--check" {
            plan.check = true;
            continue;
        }
        let value = arguments.next().unwrap_or_default();
        match (&*option, &*value) {
            ("--profile", "quick") => plan.full = false,
            ("--profile", "full") => plan.full = true,
            ("--only", names) => plan.only = names.split(',').map(ToOwned::to_owned).collect(),
            ("--report", path) if !path.is_empty() => plan.report = Some(path.into()),
            _ => return Err(USAGE.into()),
        }
    }
    Ok(plan)
}
