//! Requests over keep-alive connections: in a closed loop, for the most that goes, and in an open one, whose requests
//! are due at times of their own, however long the answers take.

use std::{
    cell::{Cell, RefCell},
    fmt::Write,
    future::Future,
    io,
    net::SocketAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
};

use super::contenders::Contender;

/// What clients ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A payment under a new key.
    Fresh,
    /// One that was made before.
    Repeat,
    /// One that another process has made, each under a key that this one sees for the first time.
    Foreign,
    /// Another payment under a used key.
    Conflict,
    /// One that the handler refuses after it has written, under a new key.
    Refused,
    /// 80 % fresh, 15 % repeats, 3 % conflicts, 2 % refused.
    Mixed,
}

impl Shape {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Repeat => "repeat",
            Self::Foreign => "foreign repeat",
            Self::Conflict => "conflict",
            Self::Refused => "refused",
            Self::Mixed => "mixed",
        }
    }

    /// What one request of it is.
    fn of(self, number: u64) -> Self {
        match (self, number % 100) {
            (Self::Mixed, 0..80) => Self::Fresh,
            (Self::Mixed, 80..95) => Self::Repeat,
            (Self::Mixed, 95..98) => Self::Conflict,
            (Self::Mixed, _) => Self::Refused,
            (shape, _) => shape,
        }
    }
}

/// How keys are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    /// Like a UUID of version 4.
    Random,
    /// Like a UUID of version 7: each is greater than those before.
    Ordered,
}

/// What is sent, and to whom.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Case {
    pub(super) contender: Contender,
    pub(super) shape: Shape,
    pub(super) connections: usize,
    /// How long the answer's note is, in bytes.
    pub(super) note: usize,
    pub(super) keys: Keys,
}

impl Case {
    /// Over 16 connections, with small answers.
    pub(super) fn usual(contender: Contender, shape: Shape) -> Self {
        Self {
            contender,
            shape,
            connections: 16,
            note: 0,
            keys: Keys::Random,
        }
    }
}

/// What a load brought.
pub(super) struct Load {
    pub(super) took: Duration,
    /// In nanoseconds.
    pub(super) times: Histogram<u64>,
}

impl Load {
    pub(super) fn per_second(&self) -> f64 {
        self.times.len() as f64 / self.took.as_secs_f64()
    }

    /// The time that this share of the requests stays below, in milliseconds.
    pub(super) fn at(&self, share: f64) -> f64 {
        self.times.value_at_quantile(share) as f64 / 1e6
    }
}

/// Where ordered keys begin: after those that a table is filled with.
const ORDERED: u64 = 1 << 40;

/// How many keys repeats are spread over.
const USED: u64 = 256;

/// Sends requests, each connection its next one when it has its answer.
///
/// # Errors
///
/// When a connection breaks, or an answer is not the one that is expected.
pub(super) async fn closed(address: SocketAddr, case: Case, length: Duration) -> io::Result<Load> {
    let end = Instant::now() + length;
    let due = || async { Some(Instant::now()).filter(|now| *now < end) };
    drive(address, case, due).await
}

/// Sends this many requests a second, spread evenly. Latency counts from when a request is due, also when no
/// connection is free then.
///
/// # Errors
///
/// As [`closed`].
pub(super) async fn open(
    address: SocketAddr,
    case: Case,
    per_second: f64,
    length: Duration,
) -> io::Result<Load> {
    let total = (per_second * length.as_secs_f64()) as u64;
    let start = Instant::now() + Duration::from_millis(10);
    let at = move |number: u64| start + Duration::from_secs_f64(number as f64 / per_second);
    let tickets = Arc::new(Semaphore::new(0));
    let metronome = thread::spawn({
        let tickets = Arc::clone(&tickets);
        // Timers of the runtime are coarser than a request.
        move || {
            for number in 0..total {
                thread::sleep(at(number).saturating_duration_since(Instant::now()));
                tickets.add_permits(1);
            }
            tickets.close();
        }
    });
    let next = Cell::new(0);
    let due = || async {
        match tickets.acquire().await {
            Ok(ticket) => ticket.forget(),
            // What was due before the end is still sent.
            Err(_) if next.get() < total => {}
            Err(_) => return None,
        }
        let number = next.get();
        next.set(number + 1);
        Some(at(number))
    };
    let load = drive(address, case, due).await;
    metronome
        .join()
        .map_err(|_| io::Error::other("the metronome stopped"))?;
    load
}

/// Sends this many requests, one after the other.
///
/// # Errors
///
/// As [`closed`].
pub(super) async fn some(address: SocketAddr, case: Case, times: usize) -> io::Result<Load> {
    let left = Cell::new(times);
    let due = || async {
        left.set(left.get().checked_sub(1)?);
        Some(Instant::now())
    };
    drive(address, case, due).await
}

/// Makes the payments that are to be repeated.
///
/// # Errors
///
/// As [`closed`].
pub(super) async fn prime(address: SocketAddr, case: Case) -> io::Result<()> {
    let mut connection = Connection::open(address).await?;
    let repeat = Case {
        shape: Shape::Repeat,
        ..case
    };
    for number in 0..USED {
        connection.ask(repeat, number).await?;
    }
    Ok(())
}

/// The key whose record [`foreign`] copies.
const MODEL: u64 = u64::MAX;

/// Makes the payment whose record [`foreign`] copies.
///
/// # Errors
///
/// As [`closed`].
pub(super) async fn prime_foreign(address: SocketAddr, case: Case) -> io::Result<()> {
    Connection::open(address).await?.ask(case, MODEL).await
}

/// Writes the statement that stores the records of the next so many foreign repeats.
pub(super) fn foreign(count: u64) -> String {
    let first = NEXT.get();
    let last = first + count;
    format!(
        "INSERT INTO idem.records
         SELECT scope, operation, 'foreign-' || n, request, fingerprint, status, headers, body, created_at, expires_at
           FROM idem.records, generate_series({first}, {last}) AS n
          WHERE operation = 'POST /ours' AND key = 'foreign-{MODEL}'"
    )
}

async fn drive<F: Future<Output = Option<Instant>>>(
    address: SocketAddr,
    case: Case,
    due: impl Fn() -> F,
) -> io::Result<Load> {
    let times = Histogram::new_with_bounds(1_000, 120_000_000_000, 3).map_err(io::Error::other)?;
    let times = RefCell::new(times);
    let started = Instant::now();
    let connection = || async {
        let mut connection = Connection::open(address).await?;
        while let Some(due) = due().await {
            connection.ask(case, next_number()).await?;
            let took = u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX);
            times.borrow_mut().saturating_record(took);
        }
        Ok::<_, io::Error>(())
    };
    try_join_all((0..case.connections).map(|_| connection())).await?;
    Ok(Load {
        took: started.elapsed(),
        times: times.into_inner(),
    })
}

thread_local! {
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

fn next_number() -> u64 {
    NEXT.replace(NEXT.get() + 1)
}

struct Connection {
    stream: TcpStream,
    request: String,
    answer: Vec<u8>,
}

impl Connection {
    async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            request: String::with_capacity(512),
            answer: Vec::with_capacity(4096),
        })
    }

    /// Sends a request and reads its answer.
    async fn ask(&mut self, case: Case, number: u64) -> io::Result<()> {
        let expected = self.write(case, number);
        self.stream.write_all(self.request.as_bytes()).await?;
        self.read().await?;
        // Who is quick might otherwise use up what was stored, and measure first requests.
        let replay = case.shape != Shape::Foreign || number == MODEL || is_replay(&self.answer);
        if self.answer.get(9..12) == Some(expected) && replay {
            return Ok(());
        }
        let answer = String::from_utf8_lossy(self.answer.get(..300).unwrap_or(&self.answer));
        let name = case.contender.name();
        Err(io::Error::other(format!("{name} answered {answer}")))
    }

    /// Writes a request down; brings the status that is expected.
    fn write(&mut self, case: Case, number: u64) -> &'static [u8] {
        let (shape, asked) = (case.shape.of(number), number);
        let number = match shape {
            // All of them pay the same: their records are copies of one.
            Shape::Foreign => 0,
            Shape::Repeat | Shape::Conflict => number % USED,
            // Others than those of the repeats.
            _ => number + USED,
        };
        let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // Another length is another request, and has another key.
        let other = scattered ^ number ^ (case.note as u64) << 20;
        let (first, second) = match case.keys {
            Keys::Random => (scattered, other),
            Keys::Ordered => (number + ORDERED, other),
        };
        let account = scattered >> 32 & 0x3ff;
        let amount = match shape {
            Shape::Conflict => 1,
            Shape::Refused => -5,
            _ => 1999,
        };
        let account = account % 1000;
        let body = match case.note {
            0 => format!("{{\"account\":{account},\"amount\":{amount}}}"),
            note => format!("{{\"account\":{account},\"amount\":{amount},\"note\":{note}}}"),
        };
        self.request.clear();
        // Writing to a string does not fail.
        let _ = write!(
            self.request,
            "POST {} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             idempotency-key: ",
            case.contender.path(),
            body.len()
        );
        let _ = match shape {
            Shape::Foreign => write!(self.request, "foreign-{asked}"),
            _ => write!(
                self.request,
                "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
                first >> 32,
                first >> 16 & 0xffff,
                first & 0xffff,
                second >> 48,
                second & 0xffff_ffff_ffff,
            ),
        };
        let _ = write!(self.request, "\r\n\r\n{body}");
        match shape {
            Shape::Conflict => b"422",
            Shape::Refused => b"402",
            _ => b"201",
        }
    }

    /// Reads one answer with a `Content-Length`.
    async fn read(&mut self) -> io::Result<()> {
        self.answer.clear();
        loop {
            if self.stream.read_buf(&mut self.answer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let head = self.answer.windows(4).position(|end| end == b"\r\n\r\n");
            let Some(head) = head else { continue };
            let text = self.answer.get(..head).unwrap_or_default();
            let total = head + 4 + length(text).unwrap_or(0);
            self.answer.reserve(total.saturating_sub(self.answer.len()));
            while self.answer.len() < total {
                if self.stream.read_buf(&mut self.answer).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            return Ok(());
        }
    }
}

/// Whether an answer says that it is a stored one.
fn is_replay(answer: &[u8]) -> bool {
    let name = b"idempotent-replayed:";
    let mut places = answer.windows(name.len());
    places.any(|place| place.eq_ignore_ascii_case(name))
}

fn length(head: &[u8]) -> Option<usize> {
    let mut lines = head.split(|byte| *byte == b'\n');
    lines.find_map(|line| {
        let (name, value) = line.split_at_checked(15)?;
        let named = name.eq_ignore_ascii_case(b"content-length:");
        named.then(|| std::str::from_utf8(value).ok()?.trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_holds_what_it_says() {
        let count = |shape| {
            let numbers = 0..1_000;
            numbers
                .filter(|number| Shape::Mixed.of(*number) == shape)
                .count()
        };
        let counts = [Shape::Fresh, Shape::Repeat, Shape::Conflict, Shape::Refused].map(count);
        assert_eq!(counts, [800, 150, 30, 20]);
    }

    #[test]
    fn the_length_is_found_however_it_is_written() {
        assert_eq!(
            length(b"HTTP/1.1 201 Created\r\nContent-Length: 12\r\n"),
            Some(12)
        );
        assert_eq!(
            length(b"HTTP/1.1 201 Created\r\na: b\r\ncontent-length:7"),
            Some(7)
        );
        assert_eq!(length(b"HTTP/1.1 204 No Content\r\n"), None);
    }
}
