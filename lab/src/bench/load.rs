//! A closed loop over keep-alive connections: each sends the next request when it has its answer.

use std::{
    io,
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

/// What a closed loop brought.
pub(crate) struct Measured {
    pub(crate) requests: f64,
    pub(crate) took: Duration,
    pub(crate) median: Duration,
    pub(crate) p99: Duration,
}

static NEXT_KEY: AtomicU64 = AtomicU64::new(0);

/// Sends fresh requests to one path for a while.
///
/// # Errors
///
/// When a connection breaks, or an answer is not 201.
pub(crate) async fn closed_loop(
    address: SocketAddr,
    path: &str,
    connections: usize,
    length: Duration,
) -> io::Result<Measured> {
    let started = Instant::now();
    let mut loops = JoinSet::new();
    for connection in 0..connections {
        let path = path.to_owned();
        loops.spawn(async move { one(address, &path, connection, started + length).await });
    }
    let mut times = Vec::new();
    while let Some(done) = loops.join_next().await {
        times.extend(done.map_err(io::Error::other)??);
    }
    let took = started.elapsed();
    let requests = times.len() as f64;
    times.sort_unstable();
    let at = |share: f64| {
        let index = (times.len() as f64 * share) as usize;
        times.get(index).copied().unwrap_or_default()
    };
    Ok(Measured {
        requests,
        took,
        median: at(0.5),
        p99: at(0.99),
    })
}

async fn one(
    address: SocketAddr,
    path: &str,
    connection: usize,
    until: Instant,
) -> io::Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut times = Vec::new();
    let mut answer = Vec::with_capacity(4096);
    loop {
        let now = Instant::now();
        if now >= until {
            return Ok(times);
        }
        let number = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        let account = (number.wrapping_mul(2_654_435_761) + connection as u64) % 1000;
        let body = format!("{{\"account\":{account},\"amount\":1999}}");
        // A random-looking key, as a UUID would be.
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let request = format!(
            "POST /{path} HTTP/1.1\r\nhost: bench\r\nidempotency-key: {key:016x}-{number:016x}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await?;
        read_answer(&mut stream, &mut answer).await?;
        if !answer.starts_with(b"HTTP/1.1 201") {
            return Err(io::Error::other(
                String::from_utf8_lossy(&answer).into_owned(),
            ));
        }
        times.push(now.elapsed());
    }
}

/// Reads one answer with a `Content-Length`.
async fn read_answer(stream: &mut TcpStream, answer: &mut Vec<u8>) -> io::Result<()> {
    answer.clear();
    loop {
        if stream.read_buf(answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Some(head) = answer.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let text = String::from_utf8_lossy(answer.get(..head).unwrap_or_default());
        let length = text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse().ok())?
        });
        let total = head + 4 + length.unwrap_or(0);
        while answer.len() < total {
            if stream.read_buf(answer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        return Ok(());
    }
}
