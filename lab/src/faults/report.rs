//! What the lab says: a line a fault, the sentence, and the document.

use std::{
    collections::BTreeMap,
    fmt::{self, Write},
    fs,
    time::Duration,
};

use super::{
    Lab, Plan,
    checker::{Identity, Violation},
    trial::Verdict,
};
use crate::{Fallible, rig::database::Database};

/// How one fault went.
#[derive(Debug)]
pub(crate) enum Result {
    Ran(Verdict),
    /// What is missing on this machine, and how to get it.
    NotRun(String),
    /// A test shows it.
    Elsewhere(&'static str),
    /// The lab itself failed.
    Failed(String),
}

/// The error of a fault that this machine has no tool for.
#[derive(Debug, Clone)]
pub(crate) struct Missing(pub(crate) String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

impl Result {
    pub(crate) fn of(ran: Fallible<Verdict>) -> Self {
        match ran {
            Ok(mut verdict) => {
                if verdict.faults == 0 {
                    let nothing = "the fault did not take hold: nothing was injected";
                    verdict.violations.push(Violation::new("rule", nothing));
                }
                Self::Ran(verdict)
            }
            Err(error) => match error.downcast_ref() {
                Some(Missing(what)) => Self::NotRun(what.clone()),
                None => Self::Failed(explained(&*error)),
            },
        }
    }
}

/// An error with what stands behind it.
fn explained(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let _ = write!(text, ": {error}");
        source = error.source();
    }
    text
}

/// One line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) took: Duration,
    pub(crate) result: Result,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            what,
            took,
            result,
        } = self;
        write!(f, "{name:<4}{what:<62}")?;
        match result {
            Result::Ran(verdict) => {
                let Verdict {
                    faults,
                    requests,
                    violations,
                    notes,
                    ..
                } = verdict;
                write!(
                    f,
                    "{faults:>6} faults {requests:>7} requests {:>3} violations {:>5.1} s",
                    violations.len(),
                    took.as_secs_f64()
                )?;
                for note in notes {
                    write!(f, "\n    {note}")?;
                }
                for violation in violations.iter().take(3) {
                    write!(
                        f,
                        "\n    VIOLATION {}: {}",
                        violation.invariant, violation.what
                    )?;
                }
                Ok(())
            }
            Result::NotRun(why) => write!(f, "not run: {why}"),
            Result::Elsewhere(place) => write!(f, "shown by {place}"),
            Result::Failed(why) => write!(f, "FAILED: {why}"),
        }
    }
}

/// Everything together.
#[derive(Debug)]
pub(crate) struct Summary {
    rows: Vec<Row>,
    seed: u64,
    versions: String,
}

impl Summary {
    /// Adds up.
    ///
    /// # Errors
    ///
    /// When the server does not tell its version.
    pub(crate) async fn of(lab: &Lab, rows: Vec<Row>) -> Fallible<Self> {
        let server = Database {
            port: lab.cluster.port(),
            name: "postgres".to_owned(),
        };
        let shown = server
            .query("SELECT split_part(current_setting('server_version'), ' ', 1)")
            .await?;
        let server: String = shown.first().ok_or("no version")?.get(0);
        let versions = format!("idem {}, PostgreSQL {server}", env!("CARGO_PKG_VERSION"));
        Ok(Self {
            rows,
            seed: lab.seed,
            versions,
        })
    }

    /// Whether everything that was asked for ran and held; if that may be, but for what had no tool and for bounds of
    /// time.
    pub(crate) fn is_clean(&self, lenient: bool) -> bool {
        self.rows.iter().all(|row| match &row.result {
            Result::Ran(verdict) => verdict
                .violations
                .iter()
                .all(|violation| lenient && violation.invariant == "bound"),
            Result::Elsewhere(_) => true,
            Result::NotRun(_) => lenient,
            Result::Failed(_) => false,
        }) && self.sum(|verdict| verdict.faults) > 0
    }

    /// Prints the first violation with the history of its key.
    ///
    /// # Errors
    ///
    /// When the history cannot be read.
    pub(crate) fn print_first_violation(&self) -> Fallible<()> {
        let violated = self.ran().find_map(|(row, verdict)| {
            let violation = verdict.violations.first()?;
            Some((row, verdict, violation))
        });
        let Some((row, verdict, violation)) = violated else {
            return Ok(());
        };
        println!(
            "\nfirst violation, {} of {} in {} (seed {}): {}",
            violation.invariant,
            verdict.violations.len(),
            row.name,
            self.seed,
            violation.what
        );
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        for violation in &verdict.violations {
            *kinds.entry(violation.invariant).or_default() += 1;
        }
        println!(
            "{kinds:?}; the whole history: {}",
            verdict.history.display()
        );
        if let Some(key) = &violation.key {
            println!(
                "{key:?}\n{}",
                history_of(key, &fs::read_to_string(&verdict.history)?)
            );
        }
        Ok(())
    }

    /// The whole report as a document.
    pub(crate) fn document(&self, plan: &Plan) -> String {
        let mut text = String::from("# Faults\n\n");
        let profile = if plan.long { "long" } else { "short" };
        let minutes = plan.minutes.map(|minutes| format!(" --minutes {minutes}"));
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "Written by `cargo run --release -p lab -- faults --profile {profile}{} --seed {} --report docs/faults.md`.\n",
            minutes.unwrap_or_default(),
            self.seed
        );
        let _ = writeln!(text, "> {self}\n");
        let _ = writeln!(
            text,
            "| | fault | injected | requests | keys | unknown | settled within | violations |\n|---|---|---:|---:|---:|---:|---:|---:|"
        );
        for row in &self.rows {
            let Row { name, what, .. } = row;
            let _ = match &row.result {
                Result::Ran(verdict) => writeln!(
                    text,
                    "| {name} | {what} | {} | {} | {} | {} | {:.1} s | {} |",
                    verdict.faults,
                    verdict.requests,
                    verdict.keys,
                    verdict.unknown,
                    verdict.settled.as_secs_f64(),
                    verdict.violations.len()
                ),
                Result::NotRun(why) => writeln!(text, "| {name} | {what} | not run: {why} |||||"),
                Result::Elsewhere(place) => {
                    writeln!(text, "| {name} | {what} | shown by `{place}` |||||")
                }
                Result::Failed(why) => writeln!(text, "| {name} | {what} | failed: {why} |||||"),
            };
        }
        text.push('\n');
        for (row, verdict) in self.ran() {
            for note in &verdict.notes {
                let _ = writeln!(text, "- {}: {note}", row.name);
            }
        }
        text
    }

    fn ran(&self) -> impl Iterator<Item = (&Row, &Verdict)> {
        self.rows.iter().filter_map(|row| match &row.result {
            Result::Ran(verdict) => Some((row, verdict)),
            _ => None,
        })
    }

    fn sum(&self, of: impl Fn(&Verdict) -> u64) -> u64 {
        self.ran().map(|(_, verdict)| of(verdict)).sum()
    }

    fn violations(&self, invariants: &[&str]) -> usize {
        let all = self.ran().flat_map(|(_, verdict)| &verdict.violations);
        all.filter(|violation| invariants.contains(&violation.invariant))
            .count()
    }
}

/// Prints the sentence.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = self.ran().filter(|(_, verdict)| verdict.faults > 0).count();
        let settled = self
            .ran()
            .map(|(_, verdict)| verdict.settled)
            .max()
            .unwrap_or_default();
        let struck = self.sum(|verdict| verdict.struck);
        write!(
            f,
            "{} faults of {kinds} kinds over {} requests on {} keys (seed {}, {}): \
             {} duplicates, {} lost acknowledgements, {} differing replays, {} stuck keys, {} leaks; \
             {} unknown, settled within {:.1} s",
            self.sum(|verdict| verdict.faults),
            self.sum(|verdict| verdict.requests as u64),
            self.sum(|verdict| verdict.keys as u64),
            self.seed,
            self.versions,
            self.violations(&["I1", "I8"]),
            self.violations(&["I2", "I5", "I11"]),
            self.violations(&["I3", "I4", "I12"]),
            self.violations(&["I6"]),
            self.violations(&["I7", "I9", "I10"]),
            self.sum(|verdict| verdict.unknown as u64),
            settled.as_secs_f64(),
        )?;
        match self.violations(&["rule"]) {
            0 => {}
            rules => write!(f, "; {rules} RULES BROKEN")?,
        }
        match self.violations(&["bound"]) {
            0 => {}
            bounds => write!(f, "; {bounds} BOUNDS MISSED")?,
        }
        let failed = self
            .rows
            .iter()
            .filter(|row| matches!(row.result, Result::NotRun(_) | Result::Failed(_)));
        match failed.count() {
            0 => {}
            failed => write!(f, "; {failed} kinds DID NOT RUN")?,
        }
        let lost = self.sum(|verdict| verdict.lost as u64);
        if lost > 0 {
            write!(
                f,
                "; {lost} acknowledgements were lost by an asynchronous failover, effect and record together"
            )?;
        }
        if struck > 0 {
            write!(
                f,
                "; {struck} requests were in flight at a fault (95 % bound on what goes wrong: 1 in {})",
                struck / 3
            )?;
        }
        Ok(())
    }
}

/// The lines of a history that are about one key, and the faults around them.
fn history_of(key: &Identity, history: &str) -> String {
    let lines: Vec<serde_json::Value> = history
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let text = |line: &serde_json::Value, name: &str| {
        line.get(name)
            .and_then(|value| value.as_str())
            .unwrap_or_default()
            .to_owned()
    };
    let at = |line: &serde_json::Value| {
        line.get("at")
            .and_then(serde_json::Value::as_u64)
            .unwrap_or_default()
    };
    let mut attempts = Vec::new();
    let mut about = Vec::new();
    for line in &lines {
        let attempt = line.get("attempt");
        if text(line, "scope") == key.scope
            && text(line, "key").trim_matches('"') == key.key
            && key
                .operation
                .ends_with(text(line, "target").split('?').next().unwrap_or_default())
        {
            attempts.extend(attempt);
        }
        if attempts.iter().any(|known| Some(*known) == attempt) {
            about.push(line);
        }
    }
    let (first, last) = (
        about.first().map_or(0, |line| at(line)),
        about.last().map_or(0, |line| at(line)),
    );
    let shown = lines.iter().filter(|line| {
        about.iter().any(|about| std::ptr::eq(*about, *line))
            || text(line, "event") == "fault" && (first..=last).contains(&at(line))
    });
    // Faults may be many.
    let shown: Vec<_> = shown.take(60).map(ToString::to_string).collect();
    shown.join("\n")
}
