//! The client's layer against the payments example, over connections that break: every payment exactly once.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "helpers of tests fail like tests"
)]

mod proxy;

use std::env;
use std::io::{BufRead, BufReader};
use std::ops::AddAssign;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use idem_client::{Answer, AskFirst, Budget, Retries, fresh_key};
use idem_cluster::Cluster;
use proxy::Proxy;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use serde_json::json;

/// Who pays at the same time, each from an account of its own.
const WORKERS: usize = 8;

/// What every account begins with.
const BALANCE: usize = 100_000_000;

/// How many payments are made; `IDEM_CLIENT_PAYMENTS` asks for another number.
const PAYMENTS: usize = 10_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_payment_is_made_once_though_one_connection_in_twenty_is_cut() {
    let payments = env::var("IDEM_CLIENT_PAYMENTS").map_or(PAYMENTS, |text| text.parse().unwrap());
    let shop = Shop::start();
    let proxy = Proxy::start(&shop.address, 0.05).await;
    // A connection for each attempt: what is cut is then one attempt, and not a worker's whole future.
    let connections = reqwest::Client::builder().pool_max_idle_per_host(0);
    let client = ClientBuilder::new(connections.build().unwrap())
        .with(Retries::within(Duration::from_secs(60)).attempt(Duration::from_secs(10)))
        .build();

    let started = Instant::now();
    let next = Arc::new(AtomicUsize::new(1));
    let workers = (0..WORKERS).map(|worker| {
        let payer = Payer {
            client: client.clone(),
            url: format!("http://{}/payments", proxy.address()),
            worker,
        };
        let next = Arc::clone(&next);
        tokio::spawn(async move {
            let mut tally = Tally::default();
            loop {
                let number = next.fetch_add(1, Ordering::SeqCst);
                if number > payments {
                    return tally;
                }
                tally += payer.pay(number).await;
            }
        })
    });
    let workers: Vec<_> = workers.collect();
    let mut tally = Tally::default();
    for worker in workers {
        tally += worker.await.unwrap();
    }
    let [within_request, at_work, within_answer] = proxy.cuts();
    println!(
        "{payments} payments in {:.1?}: {} attempts over {} connections, cut {within_request} times within the request, \
         {at_work} times while the service worked, {within_answer} times within the answer; {} answers were replays; at \
         most {} attempts for a payment",
        started.elapsed(),
        tally.attempts,
        proxy.connections(),
        tally.replays,
        tally.most,
    );

    // The faults took hold everywhere, and some answers were lost after the work was done.
    for cuts in proxy.cuts() {
        assert!(cuts * 100 >= payments, "{cuts} cuts of {payments}");
    }
    assert!(tally.replays > 0);
    // What the answers say of their attempts is what went over the wire.
    assert_eq!(tally.attempts, proxy.connections());
    let cuts: usize = proxy.cuts().iter().sum();
    assert!(
        tally.attempts >= payments + cuts,
        "{} attempts",
        tally.attempts
    );

    // A payment's amount is its number.
    let sum = payments * (payments + 1) / 2;
    assert_eq!(
        shop.sql("SELECT count(*), count(DISTINCT amount), sum(amount) FROM payments"),
        format!("{payments}|{payments}|{sum}")
    );
    // Each account has what its payments leave it, and all together what they began with.
    let off = format!(
        "SELECT count(*) FROM accounts AS account WHERE balance <> {BALANCE}
            - (SELECT coalesce(sum(amount), 0) FROM payments WHERE payer = account.id)
            + (SELECT coalesce(sum(amount), 0) FROM payments WHERE payee = account.id)"
    );
    assert_eq!(shop.sql(&off), "0");
    assert_eq!(
        shop.sql("SELECT sum(balance) FROM accounts"),
        (BALANCE * WORKERS * 2).to_string()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_lost_an_answer_and_asks_first_never_pays_twice() {
    const PAYMENTS: usize = 120;
    let shop = Shop::start();
    let proxy = Proxy::start(&shop.address, 0.5).await;
    let connections = reqwest::Client::builder().pool_max_idle_per_host(0);
    let connections = connections.build().unwrap();
    let client = ClientBuilder::new(connections.clone())
        .with(
            Retries::within(Duration::from_secs(60))
                .attempt(Duration::from_secs(10))
                .backoff(Duration::from_millis(5), Duration::from_millis(50))
                .budget(Budget::new(1000, 1000)),
        )
        .build();
    let url = |path| format!("http://{}/{path}", proxy.address());
    let status = AskFirst::at(url("idempotency").parse().unwrap(), "payments.create");

    let (mut lost, mut found) = (0, 0);
    for number in 1..=PAYMENTS {
        let payment = json!({ "to": "payee_0", "amount": number, "currency": "usd" });
        let key = fresh_key();
        let request = connections
            .post(url("payments"))
            .bearer_auth("payer_0")
            .header("Idempotency-Key", &key)
            .json(&payment);
        // The client that sends this is gone before it knows more than that.
        if let Ok(answer) = request.send().await
            && answer.bytes().await.is_ok()
        {
            continue;
        }
        lost += 1;
        let request = client
            .post(url("payments"))
            .bearer_auth("payer_0")
            .header("Idempotency-Key", &key)
            .json(&payment)
            .with_extension(status.clone());
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 201);
        found += usize::from(answer.is_replay());
        let answer: serde_json::Value = answer.json().await.unwrap();
        assert_eq!(answer["amount"], number);
    }
    println!("{lost} of {PAYMENTS} answers lost; {found} of these payments were made already");

    // Of what was lost, some was done and some was not.
    assert!(0 < found && found < lost, "{found} of {lost}");
    let sum = PAYMENTS * (PAYMENTS + 1) / 2;
    assert_eq!(
        shop.sql("SELECT count(*), count(DISTINCT amount), sum(amount) FROM payments"),
        format!("{PAYMENTS}|{PAYMENTS}|{sum}")
    );
}

/// Makes payments from one account, one after the other.
struct Payer {
    client: ClientWithMiddleware,
    url: String,
    worker: usize,
}

impl Payer {
    /// Every second payment brings a key of its own, the others leave it to the layer.
    async fn pay(&self, number: usize) -> Tally {
        let payment = json!({
            "to": format!("payee_{}", self.worker), "amount": number, "currency": "usd"
        });
        let mut request = self
            .client
            .post(&self.url)
            .bearer_auth(format!("payer_{}", self.worker))
            .json(&payment);
        if number.is_multiple_of(2) {
            request = request.header("Idempotency-Key", format!("payment-{number}"));
        }
        let answer = request.send().await.unwrap();
        let tally = Tally {
            attempts: answer.attempts() as usize,
            most: answer.attempts(),
            replays: usize::from(answer.is_replay()),
        };
        assert_eq!(answer.status(), 201);
        let answer: serde_json::Value = answer.json().await.unwrap();
        assert_eq!(answer["amount"], number);
        tally
    }
}

#[derive(Default)]
struct Tally {
    attempts: usize,
    most: u32,
    replays: usize,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.attempts += other.attempts;
        self.most = self.most.max(other.most);
        self.replays += other.replays;
    }
}

/// The payments example over a database of its own.
struct Shop {
    // Ended before its database goes.
    _service: Service,
    cluster: Cluster,
    address: String,
}

struct Service(Child);

impl Shop {
    fn start() -> Self {
        let cluster = Cluster::start().unwrap();
        cluster.create_database("shop").unwrap();
        let mut service = Command::new(env!("CARGO_BIN_EXE_payments"))
            .env("DATABASE_URL", cluster.url("shop"))
            .env("BIND", "127.0.0.1:0")
            .stdout(Stdio::piped())
            .spawn()
            .map(Service)
            .unwrap();
        let mut line = String::new();
        let said = service.0.stdout.take().unwrap();
        BufReader::new(said).read_line(&mut line).unwrap();
        let (_, address) = line.trim().split_once("http://").expect("an address");
        let shop = Self {
            _service: service,
            cluster,
            address: address.to_owned(),
        };
        shop.sql(&format!(
            "DELETE FROM accounts;
             INSERT INTO accounts SELECT kind || number, {BALANCE}, 'usd'
               FROM unnest(ARRAY['payer_', 'payee_']) AS kind, generate_series(0, {WORKERS} - 1) AS number"
        ));
        shop
    }

    fn sql(&self, sql: &str) -> String {
        self.cluster.run_sql("shop", sql).unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
