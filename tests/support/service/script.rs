//! What a request tells the scripted handler to do.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Describes one run of a scripted handler: it writes an effect, goes through the steps, and answers.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct Script {
    /// Goes into the effect and into the answer.
    pub note: String,
    /// What it does after it has written its effect.
    pub steps: Vec<Step>,
    /// The status of its answer.
    pub status: u16,
    /// Whether it answers with an `Err` that has this status.
    pub error: bool,
    /// Headers of its answer.
    pub headers: Vec<(String, String)>,
    /// The length of its answer's body; zero for the usual one, which differs at every run.
    pub length: usize,
}

/// One step of a script.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Sleeps in Rust, for milliseconds.
    Sleep(u64),
    /// Goes this step where the file is not there yet, which it makes: the first time only, undone or not.
    Once(PathBuf, Box<Step>),
    /// Answers with this status at once.
    Fail(u16),
    /// Runs SQL, which must succeed.
    Sql(String),
    /// Runs SQL and goes on when it fails.
    Try(String),
    /// Runs SQL below a savepoint and undoes it when it fails.
    Savepoint(String),
    /// Answers with this status if the row of `money` holds less than one.
    Need(String, u16),
    /// Takes a second connection from the same pool.
    SecondConnection,
    /// Panics.
    Panic,
    /// Leaves a row stream behind that nobody reads.
    LeakStream,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            note: "note".to_owned(),
            steps: Vec::new(),
            status: 201,
            error: false,
            headers: Vec::new(),
            length: 0,
        }
    }
}

impl Script {
    /// Answers 201 after the given steps.
    #[must_use]
    pub fn of(steps: impl Into<Vec<Step>>) -> Self {
        Self {
            steps: steps.into(),
            ..Self::default()
        }
    }

    /// Answers with another status.
    #[must_use]
    pub fn answering(status: u16) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    /// Sets the note, and with it the request's fingerprint.
    #[must_use]
    pub fn note(mut self, note: &str) -> Self {
        note.clone_into(&mut self.note);
        self
    }

    /// Sleeps in Rust.
    #[must_use]
    pub fn sleeping(milliseconds: u64) -> Self {
        Self::of([Step::Sleep(milliseconds)])
    }
}

/// Makes a step that runs SQL.
#[must_use]
pub fn sql(text: &str) -> Step {
    Step::Sql(text.to_owned())
}

/// Makes a step that is gone the first time only.
#[must_use]
pub fn once(file: PathBuf, step: Step) -> Step {
    Step::Once(file, Box::new(step))
}
