//! Checks the protocol within bounds of choice: `cargo run --release -p idem-model -- --help` names them.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    error::Error,
    process::ExitCode,
    time::Instant,
};

use idem_model::{Level, Protocol, Request, State, Without, narrate, settle};
use stateright::{
    Checker, HasDiscoveries, Model, Property,
    report::{ReportData, ReportDiscovery, Reporter},
};

const USAGE: &str = "usage: idem-model [OPTION]...
  --clients N      how many clients ask (2)
  --others N       how many of them send the other request (1)
  --repeatable N   how many work at REPEATABLE READ (0)
  --expiries N     how many records may expire, at most 4 (1)
  --unswept        without a sweeper
  --threads N      how many threads search (2)
  --without RULE   a rule that is left out, to see what breaks:
                   ";

fn main() -> ExitCode {
    match Plan::read(env::args().skip(1)).map(Plan::run) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Holds what the command line asks for.
struct Plan {
    protocol: Protocol,
    threads: usize,
}

impl Plan {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let usage = || USAGE.to_owned() + &Without::ALL.map(|(name, _)| name).join(", ");
        let (mut clients, mut others, mut repeatable) = (2, 1, 0);
        let (mut expiries, mut threads) = (1, 2);
        let (mut without, mut sweeper) = (None, true);
        while let Some(option) = arguments.next() {
            let number = match option.as_str() {
                "--clients" => &mut clients,
                "--others" => &mut others,
                "--repeatable" => &mut repeatable,
                "--expiries" => &mut expiries,
                "--threads" => &mut threads,
                "--unswept" => {
                    sweeper = false;
                    continue;
                }
                "--without" => {
                    let wanted = arguments.next().unwrap_or_default();
                    let rule = Without::ALL.iter().find(|(name, _)| *name == wanted);
                    without = Some(rule.ok_or_else(usage)?.1);
                    continue;
                }
                _ => return Err(usage().into()),
            };
            let value = arguments.next().unwrap_or_default();
            *number = value
                .parse()
                .map_err(|_| format!("{option} takes a number"))?;
        }
        // The two requests and the two levels meet in all combinations that the numbers allow.
        let client = |number| {
            let request = if number < others {
                Request::B
            } else {
                Request::A
            };
            let level = if clients - number <= repeatable {
                Level::Repeatable
            } else {
                Level::Committed
            };
            (request, level)
        };
        if expiries > 4 {
            return Err(usage().into());
        }
        let protocol = Protocol {
            clients: (0..clients).map(client).collect(),
            expiries,
            sweeper,
            without,
        };
        Ok(Self { protocol, threads })
    }

    /// Checks every property and reports; says whether all hold.
    fn run(self) -> bool {
        let Self { protocol, threads } = self;
        println!("{protocol:?}");
        let checked = protocol
            .clone()
            .checker()
            .threads(threads)
            .spawn_bfs()
            .join_and_report(&mut Progress);
        let broken = checked.discoveries();
        for property in protocol.properties() {
            if broken.contains_key(property.name) {
                println!("BROKEN: {}", property.name);
                explain(&protocol, &property);
            } else {
                println!("holds: {}", property.name);
            }
        }
        let began = Instant::now();
        let settling = settle(&protocol);
        let settles = settling.stuck_on_success == 0 && settling.stuck_on_refusal == 0;
        println!(
            "{}: every key settles",
            if settles { "holds" } else { "BROKEN" }
        );
        println!("  {settling:?} {:.1} s", began.elapsed().as_secs_f64());
        broken.is_empty() && settles
    }
}

/// Prints a short way to a state that does not have the property.
fn explain(protocol: &Protocol, property: &Property<Protocol>) {
    let only = HasDiscoveries::AnyOf(BTreeSet::from([property.name]));
    let checked = protocol
        .clone()
        .checker()
        .finish_when(only)
        .spawn_bfs()
        .join();
    let Some(path) = checked.discovery(property.name) else {
        return;
    };
    let holds = |state: &State| (property.condition)(protocol, state);
    for (number, line) in narrate(protocol, path, holds).iter().enumerate() {
        println!("  {:2}. {line}", number + 1);
    }
}

struct Progress;

impl Reporter<Protocol> for Progress {
    fn report_checking(&mut self, data: ReportData) {
        println!(
            "{} states, {} steps, depth {}, {:.1} s{}",
            data.unique_states,
            data.total_states,
            data.max_depth,
            data.duration.as_secs_f64(),
            if data.done { ", done" } else { "" }
        );
    }

    fn report_discoveries(
        &mut self,
        _: &Protocol,
        _: BTreeMap<&'static str, ReportDiscovery<Protocol>>,
    ) {
    }
}
