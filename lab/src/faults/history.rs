//! What happened: every attempt with its answer, and every fault, in memory and as one JSON line an event.

use std::{
    fmt,
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// Records one trial. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct History {
    log: Arc<Mutex<Log>>,
}

#[derive(Debug)]
struct Log {
    began: Instant,
    path: PathBuf,
    lines: BufWriter<File>,
    attempts: Vec<Attempt>,
    faults: u64,
    open: u64,
    /// Requests in flight, summed over all faults.
    struck: u64,
}

/// One logical request: what its attempts have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    pub(crate) path: &'static str,
    /// With its question mark, or empty.
    pub(crate) query: &'static str,
    pub(crate) scope: String,
    pub(crate) key: String,
    pub(crate) body: String,
}

impl Request {
    /// What tells requests under one key apart.
    pub(crate) fn content(&self) -> (&str, &str, &str) {
        (self.path, self.query, &self.body)
    }
}

/// One request as it was sent, and what came of it.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) request: Arc<Request>,
    pub(crate) invoked: Duration,
    pub(crate) returned: Option<(Duration, Outcome)>,
}

/// What came of an attempt.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Answer(Reply),
    /// No answer: a timeout, a reset, an end.
    Lost(String),
}

/// An answer.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Whether it says that it repeats a stored answer.
    pub(crate) replayed: bool,
    /// The stored header that names the execution.
    pub(crate) execution: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.replayed { " (replayed)" } else { "" };
        let text: String = String::from_utf8_lossy(&self.body)
            .chars()
            .take(200)
            .collect();
        write!(f, "{}{mark} {text}", self.status)
    }
}

/// What an outcome tells about its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The final answer.
    Final,
    /// It was not executed.
    NotExecuted,
    /// Nothing.
    Unknown,
}

impl Outcome {
    pub(crate) fn told(&self) -> Told {
        match self {
            Self::Answer(reply) => match reply.status {
                200..=399 | 402 => Told::Final,
                400..=499 => Told::NotExecuted,
                _ => Told::Unknown,
            },
            Self::Lost(_) => Told::Unknown,
        }
    }

    /// Whether asking again would bring nothing new.
    pub(crate) fn is_settled(&self) -> bool {
        match self {
            Self::Answer(reply) => !matches!(reply.status, 408 | 409 | 425 | 429 | 500..),
            Self::Lost(_) => false,
        }
    }

    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Answer(reply) => Some(reply.status),
            Self::Lost(_) => None,
        }
    }
}

impl Attempt {
    /// The final answer, if it is one.
    pub(crate) fn answer(&self) -> Option<(Duration, &Reply)> {
        match &self.returned {
            Some((at, outcome @ Outcome::Answer(reply))) if outcome.told() == Told::Final => {
                Some((*at, reply))
            }
            _ => None,
        }
    }
}

impl History {
    /// Begins one in a file.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub(crate) fn begin(path: &Path) -> io::Result<Self> {
        let log = Log {
            began: Instant::now(),
            path: path.to_owned(),
            lines: BufWriter::new(File::create(path)?),
            attempts: Vec::new(),
            faults: 0,
            open: 0,
            struck: 0,
        };
        Ok(Self {
            log: Arc::new(Mutex::new(log)),
        })
    }

    /// Notes that a request is sent, and gives the attempt its number.
    pub(crate) fn invoke(&self, request: &Arc<Request>) -> usize {
        let mut log = self.log();
        let number = log.attempts.len();
        let invoked = log.began.elapsed();
        let Request {
            path,
            query,
            scope,
            key,
            body,
        } = &**request;
        log.line(
            invoked,
            "invoke",
            json!({ "attempt": number, "target": format!("{path}{query}"), "scope": scope, "key": key, "body": body }),
        );
        log.attempts.push(Attempt {
            request: Arc::clone(request),
            invoked,
            returned: None,
        });
        log.open += 1;
        number
    }

    /// Notes what came of an attempt.
    pub(crate) fn returned(&self, number: usize, outcome: &Outcome) {
        let mut log = self.log();
        let at = log.began.elapsed();
        let event = match outcome.told() {
            Told::Final => "ok",
            Told::NotExecuted => "fail",
            Told::Unknown => "info",
        };
        let told = match outcome {
            Outcome::Answer(reply) => {
                json!({ "attempt": number, "status": reply.status, "replayed": reply.replayed, "execution": reply.execution })
            }
            Outcome::Lost(why) => json!({ "attempt": number, "why": why }),
        };
        log.line(at, event, told);
        log.open = log.open.saturating_sub(1);
        if let Some(attempt) = log.attempts.get_mut(number) {
            attempt.returned = Some((at, outcome.clone()));
        }
    }

    /// Notes a fault.
    pub(crate) fn fault(&self, what: &str) {
        let mut log = self.log();
        let at = log.began.elapsed();
        log.faults += 1;
        log.struck += log.open;
        log.line(at, "fault", json!({ "what": what }));
    }

    /// How many faults there were.
    pub(crate) fn faults(&self) -> u64 {
        self.log().faults
    }

    /// How many requests were in flight, summed over all faults.
    pub(crate) fn struck(&self) -> u64 {
        self.log().struck
    }

    /// How many requests there were.
    pub(crate) fn requests(&self) -> usize {
        self.log().attempts.len()
    }

    /// Time since the history began.
    pub(crate) fn now(&self) -> Duration {
        self.log().began.elapsed()
    }

    /// All attempts so far.
    pub(crate) fn attempts(&self) -> Vec<Attempt> {
        self.log().attempts.clone()
    }

    /// Writes what is buffered and names the file.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub(crate) fn flush(&self) -> io::Result<PathBuf> {
        let mut log = self.log();
        log.lines.flush()?;
        Ok(log.path.clone())
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn line(&mut self, at: Duration, event: &str, mut told: Value) {
        if let Some(told) = told.as_object_mut() {
            told.insert("at".to_owned(), json!(at.as_micros() as u64));
            told.insert("event".to_owned(), json!(event));
        }
        // A disk that is full shows when the file is flushed.
        let _ = writeln!(self.lines, "{told}");
    }
}
