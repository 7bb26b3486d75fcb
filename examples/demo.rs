//! Pays a payments service in every way a client can, and checks that money moved as it should.

use std::{
    collections::BTreeMap,
    error::Error,
    fmt::Write,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::future::join_all;
use reqwest::Client;
use serde_json::{Value, json};

/// Runs the demonstration, prints its table, and tells whether everything was as it should be.
///
/// # Errors
///
/// When the service cannot be reached.
pub async fn payments(address: &str) -> Result<bool, Box<dyn Error>> {
    let demo = Demo {
        client: Client::builder().timeout(Duration::from_secs(30)).build()?,
        address: address.to_owned(),
        run: run_name()?,
    };
    let before = demo.balances().await?;
    let mut table = Table::default();

    let first = demo.pay(Some("order-1"), 1999).await?;
    table.row("a payment", &first, first.is(201, false));
    for _ in 0..2 {
        let again = demo.pay(Some("order-1"), 1999).await?;
        table.row(
            "  the same again",
            &again,
            again.is(201, true) && again.body == first.body,
        );
    }

    let twenty = join_all((0..20).map(|_| demo.pay(Some("order-2"), 1999))).await;
    let twenty = twenty.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut kinds = BTreeMap::new();
    for answer in &twenty {
        let entry = kinds
            .entry((answer.status, answer.replayed))
            .or_insert((0, answer));
        entry.0 += 1;
    }
    let executed = twenty.iter().filter(|answer| answer.is(201, false)).count();
    for (count, answer) in kinds.into_values() {
        let right = executed == 1 && (answer.status == 201 || answer.status == 409);
        table.row(&format!("twenty at once: {count} times"), answer, right);
    }

    let other = demo.pay(Some("order-1"), 2999).await?;
    table.row(
        "another amount, the first key",
        &other,
        other.is(422, false),
    );
    let without = demo.pay(None, 1999).await?;
    table.row("no key", &without, without.is(400, false));

    let refused = demo.pay(Some("order-3"), 9_000_000).await?;
    table.row("more than there is", &refused, refused.is(402, false));
    let again = demo.pay(Some("order-3"), 9_000_000).await?;
    table.row("  the same again", &again, again.is(402, true));
    let corrected = demo.pay(Some("order-3"), 2500).await?;
    table.row(
        "  corrected, the same key",
        &corrected,
        corrected.is(201, false),
    );
    let late = demo.pay(Some("order-3"), 9_000_000).await?;
    table.row("  the refused one, late", &late, late.is(402, true));

    let after = demo.balances().await?;
    let moved = 1999 + 1999 + 2500;
    let right = before.0 - after.0 == moved && after.1 - before.1 == moved;
    println!("{}", table.text);
    println!("           before      after");
    println!("acct_1 {:>10} {:>10}", before.0, after.0);
    println!("acct_2 {:>10} {:>10}", before.1, after.1);
    println!(
        "\nthree payments were ordered, {moved} in all: {}",
        if right {
            "exactly that moved"
        } else {
            "that is NOT what moved"
        }
    );
    Ok(right && table.right)
}

struct Demo {
    client: Client,
    address: String,
    /// Makes the keys of each run its own: the database may outlive it.
    run: String,
}

struct Answer {
    status: u16,
    replayed: bool,
    body: String,
}

impl Answer {
    fn is(&self, status: u16, replayed: bool) -> bool {
        self.status == status && self.replayed == replayed
    }

    /// What the body says in a few words.
    fn gist(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        if let Some(id) = body.get("id") {
            return format!("payment {id}");
        }
        let text = body
            .get("title")
            .or_else(|| body.get("error"))
            .and_then(Value::as_str);
        text.unwrap_or(&self.body).to_owned()
    }
}

impl Demo {
    async fn pay(&self, key: Option<&str>, amount: i64) -> Result<Answer, reqwest::Error> {
        let payment = json!({ "to": "acct_2", "amount": amount, "currency": "usd" });
        let mut request = self
            .client
            .post(format!("{}/payments", self.address))
            .bearer_auth("acct_1")
            .json(&payment);
        if let Some(key) = key {
            request = request.header("Idempotency-Key", format!("{}-{key}", self.run));
        }
        let response = request.send().await?;
        Ok(Answer {
            status: response.status().as_u16(),
            replayed: response.headers().contains_key("idempotent-replayed"),
            body: response.text().await?,
        })
    }

    async fn balances(&self) -> Result<(i64, i64), Box<dyn Error>> {
        let mut balances = [0; 2];
        for (account, balance) in ["acct_1", "acct_2"].iter().zip(&mut balances) {
            let url = format!("{}/accounts/{account}", self.address);
            let response = self.client.get(url).bearer_auth(account).send().await?;
            let body: Value = response.error_for_status()?.json().await?;
            *balance = body
                .get("balance")
                .and_then(Value::as_i64)
                .ok_or("an account without a balance")?;
        }
        let [payer, payee] = balances;
        Ok((payer, payee))
    }
}

struct Table {
    text: String,
    right: bool,
}

impl Default for Table {
    fn default() -> Self {
        let text = format!(
            "{:<32} {:<6} {:<9} answer\n",
            "request", "status", "replayed"
        );
        Self { text, right: true }
    }
}

impl Table {
    fn row(&mut self, request: &str, answer: &Answer, right: bool) {
        let replayed = if answer.replayed { "yes" } else { "" };
        let wrong = if right { "" } else { "   <- WRONG" };
        let (status, gist) = (answer.status, answer.gist());
        // Writing to a string does not fail.
        let _ = writeln!(
            self.text,
            "{request:<32} {status:<6} {replayed:<9} {gist}{wrong}"
        );
        self.right &= right;
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a name for the run, not a decision about time"
)]
fn run_name() -> Result<String, Box<dyn Error>> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(format!("demo-{:x}", since.as_micros()))
}
