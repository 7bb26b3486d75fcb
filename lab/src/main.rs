//! Measures what the promise costs: `cargo run --release -p lab -- bench [--seconds N] [--rounds N] [--connections N]`.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures of a benchmark"
)]

mod bench;
mod contenders;
mod cpu;
mod load;

use std::{env, error::Error, process::ExitCode};

use bench::Plan;

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

fn run() -> Result<bool, Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    if arguments.next().as_deref() != Some("bench") {
        return Err("usage: lab bench [--seconds N] [--rounds N] [--connections N]".into());
    }
    let mut plan = Plan::default();
    while let Some(option) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        let value: usize = value
            .parse()
            .map_err(|_| format!("{option} takes a number"))?;
        match option.as_str() {
            "--seconds" => plan.seconds = value.max(1),
            "--rounds" => plan.rounds = value.max(1),
            "--connections" => plan.connections = value.max(1),
            _ => return Err(format!("unknown option {option}").into()),
        }
    }
    bench::run(&plan)
}
