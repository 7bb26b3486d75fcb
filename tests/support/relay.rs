//! A relay between a service and its database that counts flights and breaks the connection where a test wants it broken.

#![allow(
    clippy::expect_used,
    reason = "a test whose relay cannot start has failed"
)]

mod conversation;
pub mod frames;

use std::io;
use std::net::{Ipv4Addr, TcpListener as StdListener};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime;
use tokio::sync::{oneshot, watch};
use tokio::task::{LocalSet, spawn_local};

/// Relays connections on a port of its own to a PostgreSQL server on 127.0.0.1, until it is dropped.
///
/// It runs in a thread of its own: a test that keeps its runtime busy delays neither traffic nor counting.
///
/// # Flights
/// A flight is everything a client sends before the next answer reaches it: what a round trip costs. The relay counts
/// one whenever client data arrive for the first time after an answer was forwarded, or for the first time at all, so
/// that connecting counts too: [`Relay::reset_counters`] once the pool is warm. With a latency, which holds answers
/// back, everything the client sends without waiting is in before the first answer goes out; 15 ms are plenty.
/// Connections count each for itself: two at once are two flights.
#[derive(Debug)]
pub struct Relay {
    port: u16,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts a relay to the server at `server_port` that holds every answer back for `latency`.
    ///
    /// # Panics
    /// When the machine has no port or thread to spare.
    #[must_use]
    pub fn start(server_port: u16, latency: Duration) -> Self {
        let listener =
            StdListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binding the relay's port");
        listener
            .set_nonblocking(true)
            .expect("preparing the relay's port");
        let port = listener
            .local_addr()
            .expect("reading the relay's port")
            .port();
        let shared = Arc::new(Shared {
            server_port,
            latency: AtomicU64::new(milliseconds(latency)),
            flights: AtomicUsize::new(0),
            cuts: AtomicUsize::new(0),
            armed: Mutex::new(None),
            traffic: watch::Sender::new(Traffic::Flows),
        });
        let (stop, stopped) = oneshot::channel();
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("starting the relay's runtime");
        let thread = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                LocalSet::new().block_on(&runtime, async {
                    tokio::select! {
                        _ = stopped => {}
                        _ = accept(listener, shared) => {}
                    }
                });
            }
        });
        Self {
            port,
            shared,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Names a database behind the relay as a connection URL, without encryption, which would hide the messages.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!(
            "postgres://postgres@127.0.0.1:{}/{database}?sslmode=disable",
            self.port
        )
    }

    /// Holds every answer back for another time from now on.
    pub fn set_latency(&self, latency: Duration) {
        let latency = milliseconds(latency);
        self.shared.latency.store(latency, Ordering::SeqCst);
    }

    /// Returns how many flights there were since the start or the last reset.
    #[must_use]
    pub fn flights(&self) -> usize {
        self.shared.flights.load(Ordering::SeqCst)
    }

    /// Returns how many connections were cut at a `COMMIT` since the start or the last reset.
    #[must_use]
    pub fn cuts(&self) -> usize {
        self.shared.cuts.load(Ordering::SeqCst)
    }

    /// Begins to count anew.
    pub fn reset_counters(&self) {
        self.shared.flights.store(0, Ordering::SeqCst);
        self.shared.cuts.store(0, Ordering::SeqCst);
    }

    /// Cuts the connection that next sends the simple query `COMMIT`, just before the server would get to see it.
    ///
    /// What the client sent ahead of the `COMMIT` still reaches the server, which rolls back.
    pub fn cut_before_commit(&self) {
        self.shared.arm(Cut::Before);
    }

    /// Cuts the connection that next sends the simple query `COMMIT` once the server has answered it, keeping the answer.
    ///
    /// So when the client notices, the transaction has ended.
    pub fn cut_after_commit(&self) {
        self.shared.arm(Cut::After);
    }

    /// Loses all messages in both directions, without closing any connection; turned off, new messages pass again.
    pub fn black_hole(&self, on: bool) {
        self.set_traffic(Traffic::Vanishes, on);
    }

    /// Closes all connections, and new ones as soon as they are made; turned off, new ones are relayed again.
    pub fn refuse(&self, on: bool) {
        self.set_traffic(Traffic::Refused, on);
    }

    fn set_traffic(&self, traffic: Traffic, on: bool) {
        self.shared
            .traffic
            .send_replace(if on { traffic } else { Traffic::Flows });
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to tell but a panic, which was printed.
            _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Shared {
    server_port: u16,
    /// In milliseconds.
    latency: AtomicU64,
    flights: AtomicUsize,
    cuts: AtomicUsize,
    armed: Mutex<Option<Cut>>,
    traffic: watch::Sender<Traffic>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Before,
    After,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traffic {
    Flows,
    Vanishes,
    Refused,
}

impl Shared {
    fn latency(&self) -> Duration {
        Duration::from_millis(self.latency.load(Ordering::SeqCst))
    }

    fn traffic(&self) -> Traffic {
        *self.traffic.borrow()
    }

    fn arm(&self, cut: Cut) {
        *self.armed.lock().unwrap_or_else(PoisonError::into_inner) = Some(cut);
    }

    /// Takes the armed cut, so that no second `COMMIT` meets it.
    fn take_cut(&self) -> Option<Cut> {
        let cut = self
            .armed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        self.cuts
            .fetch_add(usize::from(cut.is_some()), Ordering::SeqCst);
        cut
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

async fn accept(listener: StdListener, shared: Arc<Shared>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (client, _) = listener.accept().await?;
        let shared = Arc::clone(&shared);
        spawn_local(async move {
            let mut traffic = shared.traffic.subscribe();
            tokio::select! {
                biased;
                _ = traffic.wait_for(|traffic| *traffic == Traffic::Refused) => {}
                _ = conversation::relay(client, &shared) => {}
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep, timeout};
    use tokio_postgres::{Client, NoTls};

    use super::*;
    use crate::database::{Database, Template, postgres::Postgres};

    const NO_TIME: Duration = Duration::ZERO;
    const A_WHILE: Duration = Duration::from_millis(300);

    static TABLE: Template<Postgres> = Template::new(|database| {
        Box::pin(async move {
            database.run_sql("CREATE TABLE t (n int)").unwrap();
        })
    });

    #[tokio::test]
    async fn statements_sent_together_are_one_flight_and_one_after_the_other_are_two() {
        let (_database, relay, client) = behind_relay(Duration::from_millis(15)).await;
        relay.reset_counters();
        let together = tokio::join!(
            client.batch_execute("BEGIN"),
            client.simple_query("SELECT 1"),
            client.batch_execute("COMMIT"),
        );
        assert!(together.0.is_ok() && together.1.is_ok() && together.2.is_ok());
        assert_eq!(relay.flights(), 1);

        client.batch_execute("BEGIN").await.unwrap();
        client.batch_execute("COMMIT").await.unwrap();
        assert_eq!(relay.flights(), 3);
    }

    #[tokio::test]
    async fn statement_sent_before_the_first_answer_is_due_belongs_to_its_flight() {
        let latency = Duration::from_millis(200);
        let (_database, relay, client) = behind_relay(latency).await;
        relay.reset_counters();
        let start = Instant::now();
        let later = async {
            sleep(Duration::from_millis(20)).await;
            client.batch_execute("COMMIT").await
        };
        let (begin, commit) = tokio::join!(client.batch_execute("BEGIN"), later);
        assert!(begin.is_ok() && commit.is_ok());
        assert_eq!(relay.flights(), 1);
        assert!(start.elapsed() >= latency);
    }

    #[tokio::test]
    async fn statement_costs_a_flight_more_when_it_has_to_be_prepared() {
        let (_database, relay, client) = behind_relay(Duration::from_millis(15)).await;
        relay.reset_counters();
        let statement = client.prepare("SELECT $1::int4").await.unwrap();
        assert_eq!(relay.flights(), 1);
        client.query_one(&statement, &[&1]).await.unwrap();
        assert_eq!(relay.flights(), 2);
    }

    #[tokio::test]
    async fn long_answers_arrive_whole() {
        let (_database, _relay, client) = behind_relay(NO_TIME).await;
        let row = client
            .query_one("SELECT repeat('x', 5000000)", &[])
            .await
            .unwrap();
        assert_eq!(row.get::<_, &str>(0).len(), 5_000_000);
    }

    #[tokio::test]
    async fn long_answers_are_held_back_once_and_not_in_pieces() {
        let (_database, relay, client) = behind_relay(NO_TIME).await;
        let latency = Duration::from_millis(500);
        relay.set_latency(latency);
        let start = Instant::now();
        let text = "SELECT repeat('x', 2000)";
        let answers = tokio::join!(client.simple_query(text), client.simple_query(text));
        assert!(answers.0.is_ok() && answers.1.is_ok());
        assert!(start.elapsed() >= latency && start.elapsed() < 2 * latency);
    }

    #[tokio::test]
    async fn transaction_cut_before_its_commit_is_rolled_back() {
        let (database, relay, client) = behind_relay(NO_TIME).await;
        client.batch_execute("BEGIN").await.unwrap();
        relay.cut_before_commit();
        let (insert, commit) = insert_and_commit(&client).await;
        assert!(insert.is_err() || commit.is_err());
        assert!(commit.unwrap_err().is_closed());
        assert_eq!(relay.cuts(), 1);
        assert_eq!(rows_once_idle(&database).await, "0");
    }

    #[tokio::test]
    async fn transaction_cut_after_its_commit_is_committed_before_the_client_notices() {
        let (database, relay, client) = behind_relay(NO_TIME).await;
        // A check at COMMIT that takes its time.
        let slow = "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS \
                    'BEGIN PERFORM pg_sleep(0.2); RETURN NULL; END'; \
                    CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED \
                    FOR EACH ROW EXECUTE FUNCTION dawdle()";
        database.run_sql(slow).unwrap();
        client.batch_execute("BEGIN").await.unwrap();
        relay.cut_after_commit();
        let (_, commit) = insert_and_commit(&client).await;
        assert!(commit.unwrap_err().is_closed());
        assert_eq!(relay.cuts(), 1);
        assert_eq!(database.run_sql("SELECT count(*) FROM t").unwrap(), "1");
    }

    #[tokio::test]
    async fn only_one_commit_is_cut() {
        let (database, relay, client) = behind_relay(NO_TIME).await;
        relay.cut_before_commit();
        assert!(client.batch_execute("COMMIT").await.is_err());
        let client = connect(&relay, &database).await.unwrap();
        client.batch_execute("BEGIN").await.unwrap();
        client.batch_execute("COMMIT").await.unwrap();
        assert_eq!(relay.cuts(), 1);
    }

    #[tokio::test]
    async fn black_hole_keeps_connections_open_and_silent() {
        let (database, relay, client) = behind_relay(NO_TIME).await;
        relay.black_hole(true);
        let insert = client.batch_execute("INSERT INTO t VALUES (1)");
        assert!(timeout(A_WHILE, insert).await.is_err());
        assert!(!client.is_closed());
        assert!(timeout(A_WHILE, connect(&relay, &database)).await.is_err());
        assert_eq!(database.run_sql("SELECT count(*) FROM t").unwrap(), "0");

        relay.black_hole(false);
        let client = connect(&relay, &database).await.unwrap();
        client
            .batch_execute("INSERT INTO t VALUES (1)")
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn black_hole_loses_the_answer_to_what_has_arrived() {
        let (database, relay, client) = behind_relay(NO_TIME).await;
        let insert = client.batch_execute("INSERT INTO t SELECT 1 FROM pg_sleep(0.2)");
        let lost = async {
            sleep(Duration::from_millis(100)).await;
            relay.black_hole(true);
        };
        let (answer, ()) = tokio::join!(timeout(2 * A_WHILE, insert), lost);
        assert!(answer.is_err());
        assert_eq!(database.run_sql("SELECT count(*) FROM t").unwrap(), "1");
    }

    #[tokio::test]
    async fn refusal_closes_old_connections_and_new_ones() {
        let (database, relay, client) = behind_relay(NO_TIME).await;
        relay.refuse(true);
        assert!(
            client
                .batch_execute("SELECT 1")
                .await
                .unwrap_err()
                .is_closed()
        );
        assert!(connect(&relay, &database).await.is_err());

        relay.refuse(false);
        let client = connect(&relay, &database).await.unwrap();
        client.batch_execute("SELECT 1").await.unwrap();
    }

    #[tokio::test]
    async fn dropped_relay_closes_its_connections() {
        let (_database, relay, client) = behind_relay(NO_TIME).await;
        drop(relay);
        assert!(
            client
                .batch_execute("SELECT 1")
                .await
                .unwrap_err()
                .is_closed()
        );
    }

    async fn behind_relay(latency: Duration) -> (Database<Postgres>, Relay, Client) {
        let database = TABLE.database();
        let relay = Relay::start(database.engine().port(), latency);
        let client = connect(&relay, &database).await.unwrap();
        (database, relay, client)
    }

    async fn connect(
        relay: &Relay,
        database: &Database<Postgres>,
    ) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) =
            tokio_postgres::connect(&relay.url(database.engine().name()), NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    type Done = Result<(), tokio_postgres::Error>;

    async fn insert_and_commit(client: &Client) -> (Done, Done) {
        tokio::join!(
            client.batch_execute("INSERT INTO t VALUES (1)"),
            client.batch_execute("COMMIT"),
        )
    }

    /// Counts the rows when no session of a client is left that could still add one.
    async fn rows_once_idle(database: &Database<Postgres>) -> String {
        let others = "SELECT count(*) FROM pg_stat_activity \
                      WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
        while database.run_sql(others).unwrap() != "0" {
            sleep(Duration::from_millis(10)).await;
        }
        database.run_sql("SELECT count(*) FROM t").unwrap()
    }
}
