//! What the measurements say: tables for people, and one line a target.

use std::{
    fmt::{self, Display, Write},
    fs,
    path::Path,
    process::Command,
};

/// What has to be reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

/// A figure that has a goal.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) name: &'static str,
    pub(super) value: f64,
    pub(super) goal: Goal,
}

impl Target {
    pub(super) fn new(name: &'static str, value: f64, goal: Goal) -> Self {
        Self { name, value, goal }
    }

    /// A figure that is not a number has reached nothing.
    pub(super) fn is_reached(&self) -> bool {
        match self.goal {
            Goal::AtLeast(goal) => self.value >= goal,
            Goal::AtMost(goal) => self.value <= goal,
        }
    }
}

impl Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value, goal } = self;
        let verdict = if self.is_reached() { "ok" } else { "missed" };
        write!(f, "{name} {value:.3} {goal} {verdict}")
    }
}

impl Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(goal) => write!(f, ">={goal:.2}"),
            Self::AtMost(goal) => write!(f, "<={goal:.2}"),
        }
    }
}

/// A part of the report.
#[derive(Debug, Default)]
pub(super) struct Section {
    pub(super) title: &'static str,
    /// In Markdown.
    pub(super) text: String,
    pub(super) targets: Vec<Target>,
}

impl Section {
    pub(super) fn new(title: &'static str) -> Self {
        Self {
            title,
            ..Self::default()
        }
    }

    pub(super) fn say(&mut self, what: impl Display) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{what}\n");
    }

    /// A table: the head, and rows of as many fields.
    pub(super) fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        let rule = head.iter().enumerate().map(|(column, _)| match column {
            0 => "---",
            _ => "---:",
        });
        let rule: Vec<_> = rule.collect();
        let line = |fields: &[&str]| format!("| {} |\n", fields.join(" | "));
        self.text += &line(head);
        self.text += &line(&rule);
        for row in rows {
            let fields: Vec<_> = row.iter().map(String::as_str).collect();
            self.text += &line(&fields);
        }
        self.text.push('\n');
    }

    pub(super) fn target(&mut self, name: &'static str, value: f64, goal: Goal) {
        self.targets.push(Target::new(name, value, goal));
    }

    /// A plot that lies in a folder beside the report.
    pub(super) fn plot(&mut self, folder: &Path, alt: &str, file: &str) {
        let folder = folder.file_name().unwrap_or_default().display();
        self.say(format_args!("![{alt}]({folder}/{file})"));
    }
}

/// Writes the whole report.
pub(super) fn document(command: &str, server: &str, sections: &[Section]) -> String {
    let mut text = format!(
        "# Performance\n\nWritten by `{command}` on {}, PostgreSQL {server}, {}, idem {}.\n\n\
         Service, database and load generator share this machine: only ratios within one run mean anything. \
         Where three figures stand together, they are the median of all rounds and, in brackets, the least and \
         the greatest. What the contenders do, each in a few lines, is in `lab/src/bench/contenders`. Why a target is missed: *Where the time goes* in\n\
         [ARCHITECTURE.md](../ARCHITECTURE.md#where-the-time-goes).\n\n",
        machine(),
        compiler(),
        env!("CARGO_PKG_VERSION")
    );
    let targets: Vec<_> = sections
        .iter()
        .flat_map(|section| &section.targets)
        .collect();
    text += "| target | measured | goal | |\n|---|---:|---:|---|\n";
    for target in targets {
        let verdict = if target.is_reached() {
            "ok"
        } else {
            "**missed**"
        };
        let _ = writeln!(
            text,
            "| `{}` | {:.3} | {} | {verdict} |",
            target.name, target.value, target.goal
        );
    }
    for section in sections {
        let _ = write!(text, "\n## {}\n\n{}", section.title, section.text);
    }
    // One newline at the end is enough.
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn machine() -> String {
    let information = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = |line: &str| {
        let model = line.strip_prefix("model name")?.trim_start();
        Some(model.trim_start_matches(':').trim().to_owned())
    };
    let model = information.lines().find_map(named);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let model = model.unwrap_or_else(|| "an unknown processor".to_owned());
    format!("{cores} cores of {model}, Linux {}", kernel.trim())
}

fn compiler() -> String {
    let output = Command::new("rustc").arg("--version").output();
    let version = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    version.unwrap_or_else(|_| "rustc unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_says_whether_it_was_reached() {
        let line = |value, goal| Target::new("speed", value, goal).to_string();
        assert_eq!(line(0.96, Goal::AtLeast(0.95)), "speed 0.960 >=0.95 ok");
        assert_eq!(line(0.94, Goal::AtLeast(0.95)), "speed 0.940 >=0.95 missed");
        assert_eq!(line(1.0, Goal::AtMost(1.0)), "speed 1.000 <=1.00 ok");
        assert_eq!(line(f64::NAN, Goal::AtMost(1.0)), "speed NaN <=1.00 missed");
    }
}
