//! Sends requests over bare sockets, retries with backoff, and writes the history.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use fastrand::Rng;
use idem_tests::raw_http::{Answer, Connection};
use tokio::time::{sleep, timeout};

use super::history::{History, Outcome, Reply, Request};

/// How long an attempt waits for its answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// Sends requests to the instances of one service.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) targets: Vec<SocketAddr>,
    pub(crate) history: History,
}

/// One connection to one instance, opened when it is needed.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    client: &'a Client,
    target: SocketAddr,
    connection: Option<Connection>,
}

impl Client {
    /// Prepares a connection to one of the instances.
    pub(crate) fn line(&self, instance: usize) -> Line<'_> {
        let target = self.targets.get(instance % self.targets.len().max(1));
        Line {
            client: self,
            target: target
                .copied()
                .unwrap_or_else(|| ([127, 0, 0, 1], 9).into()),
            connection: None,
        }
    }

    /// Sends one attempt over a connection of its own.
    pub(crate) async fn once(&self, instance: usize, request: &Arc<Request>) -> Outcome {
        self.line(instance).attempt(request).await
    }

    /// Repeats a request until its answer is settled, each time at any of the instances.
    pub(crate) async fn finish(
        &self,
        request: &Arc<Request>,
        within: Duration,
        rng: &mut Rng,
    ) -> Outcome {
        let until = Instant::now() + within;
        let mut pause = Duration::from_millis(5);
        loop {
            let outcome = self.once(rng.usize(..), request).await;
            if outcome.is_settled() || Instant::now() >= until {
                return outcome;
            }
            sleep(pause.mul_f64(0.5 + rng.f64())).await;
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }
}

impl Line<'_> {
    /// Sends one attempt and waits for its answer.
    pub(crate) async fn attempt(&mut self, request: &Arc<Request>) -> Outcome {
        self.attempt_with(request, "").await
    }

    /// Sends one attempt with more header lines, each with its end.
    pub(crate) async fn attempt_with(&mut self, request: &Arc<Request>, lines: &str) -> Outcome {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => match self.open().await {
                Ok(connection) => connection,
                // Nothing was sent: this is no attempt.
                Err(error) => return Outcome::Lost(error.to_string()),
            },
        };
        let history = &self.client.history;
        let number = history.invoke(request);
        let exchange = async {
            connection.send(bytes(request, number, lines)).await?;
            connection.receive().await
        };
        let outcome = match timeout(PATIENCE, exchange).await {
            Ok(Ok(answer)) => {
                if answer.header("connection") != Some("close") {
                    self.connection = Some(connection);
                }
                Outcome::Answer(Reply::from(answer))
            }
            Ok(Err(error)) => Outcome::Lost(error.to_string()),
            Err(_) => Outcome::Lost("no answer in time".to_owned()),
        };
        history.returned(number, &outcome);
        outcome
    }

    /// Opens a connection, to be used by hand.
    ///
    /// # Errors
    ///
    /// When nobody listens.
    pub(crate) async fn open(&self) -> io::Result<Connection> {
        let opened = timeout(Duration::from_secs(3), Connection::open(self.target)).await;
        opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Puts a request together as it goes over the wire.
pub(crate) fn bytes(request: &Request, attempt: usize, lines: &str) -> Vec<u8> {
    let Request {
        path,
        query,
        scope,
        key,
        body,
    } = request;
    format!(
        "POST {path}{query} HTTP/1.1\r\nhost: lab\r\nx-caller: {scope}\r\nx-attempt: {attempt}\r\n\
         idempotency-key: {key}\r\ncontent-type: application/json\r\n{lines}content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self {
            status: answer.status,
            replayed: answer.header("idempotent-replayed") == Some("true"),
            execution: answer.header("x-execution").map(ToOwned::to_owned),
            body: answer.body,
        }
    }
}
