//! Runs the contenders against each other, in turns, and compares them within each round.

mod contenders;
mod cpu;
mod load;

use std::{error::Error, net::SocketAddr, sync::mpsc, thread, time::Duration};

use actix_web::{App, HttpServer, web};
use idem_cluster::Cluster;
use idem_runtime::{Idempotency, postgres};

use crate::Fallible;

use self::{contenders::NAMES, cpu::Cpu};

/// What `ours` has to reach of `floor`.
const GOAL: f64 = 0.90;

/// How long, how often, and over how many connections.
pub(crate) struct Plan {
    pub(crate) seconds: usize,
    pub(crate) rounds: usize,
    pub(crate) connections: usize,
    /// Whether commits wait for the disk.
    pub(crate) durable: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            seconds: 3,
            rounds: 7,
            connections: 16,
            durable: true,
        }
    }
}

/// What one contender showed in one round.
#[derive(Clone, Copy)]
struct Shown {
    per_second: f64,
    /// Seconds a request, service and database together.
    cpu: f64,
}

/// Measures, prints a table, and tells whether the goal was reached.
///
/// # Errors
///
/// When a contender fails.
pub(crate) fn run(plan: &Plan) -> Fallible<bool> {
    // As in production: an acknowledged commit has reached the disk, unless the plan says otherwise.
    let durable = if plan.durable { "on" } else { "off" };
    let cluster = Cluster::builder()
        .setting("fsync", durable)
        .setting("full_page_writes", durable)
        .setting("shared_buffers", "256MB")
        .start()?;
    cluster.create_database("bench")?;
    let address = serve(&cluster.url("bench"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let Plan {
        seconds,
        rounds,
        connections,
        ..
    } = *plan;
    let measure = |name: &str, length| {
        runtime.block_on(load::closed_loop(address, name, connections, length))
    };

    println!(
        "fresh requests over {connections} connections, {rounds} rounds of {seconds} s each, fsync {durable}"
    );
    for name in NAMES {
        measure(name, Duration::from_secs(1))?; // statement caches, and the first pages
    }
    println!("round  contender     /s   p50 ms   p99 ms  service  database (µs of CPU a request)");
    let mut shown: Vec<Vec<Shown>> = vec![Vec::new(); NAMES.len()];
    for round in 1..=rounds {
        cluster.run_sql("bench", "CHECKPOINT")?;
        // Each round begins with another one, so that none has the better place.
        for turn in 0..NAMES.len() {
            let index = (turn + round) % NAMES.len();
            let (Some(name), Some(shown)) = (NAMES.get(index), shown.get_mut(index)) else {
                continue;
            };
            let before = Cpu::now(&cluster.data_dir());
            let load = measure(name, Duration::from_secs(seconds as u64))?;
            let cpu = Cpu::now(&cluster.data_dir()) - before;
            let a_request = |used: Duration| used.as_secs_f64() / load.requests;
            let per_second = load.requests / load.took.as_secs_f64();
            println!(
                "{round:>5}  {name:<9} {per_second:>7.0} {:>8.2} {:>8.2} {:>8.0} {:>9.0}",
                load.median.as_secs_f64() * 1e3,
                load.p99.as_secs_f64() * 1e3,
                a_request(cpu.service) * 1e6,
                a_request(cpu.database) * 1e6,
            );
            shown.push(Shown {
                per_second,
                cpu: a_request(cpu.service + cpu.database),
            });
        }
    }

    let [bare, floor, recipe, ours] = shown.as_slice() else {
        return Err("not every contender was measured".into());
    };
    println!(
        "\n{:<26} {:>6} {:>6} {:>6}",
        "ratio", "min", "median", "max"
    );
    let rate = |shown: &Shown| shown.per_second;
    compare("rate, floor / bare", floor, bare, rate);
    compare("rate, recipe / bare", recipe, bare, rate);
    compare("rate, ours / bare", ours, bare, rate);
    compare("rate, ours / recipe", ours, recipe, rate);
    let ratio = compare("rate, ours / floor", ours, floor, rate);
    // A cost: here less is better, so floor stands above.
    compare("CPU, floor / ours", floor, ours, |shown| shown.cpu);
    let verdict = if ratio >= GOAL { "ok" } else { "missed" };
    println!("\nours_of_floor {ratio:.3} {GOAL:.2} {verdict}");
    Ok(ratio >= GOAL)
}

/// Prints the ratios of the rounds and returns their median.
fn compare(name: &str, one: &[Shown], other: &[Shown], by: impl Fn(&Shown) -> f64) -> f64 {
    let ratios = one
        .iter()
        .zip(other)
        .map(|(one, other)| by(one) / by(other));
    let mut ratios: Vec<_> = ratios.collect();
    ratios.sort_by(f64::total_cmp);
    let at = |index: usize| ratios.get(index).copied().unwrap_or(f64::NAN);
    let (min, median) = (at(0), at(ratios.len() / 2));
    let max = at(ratios.len().saturating_sub(1));
    println!("{name:<26} {min:>6.3} {median:>6.3} {max:>6.3}");
    median
}

/// Serves all contenders over one pool, in threads of their own.
fn serve(url: &str) -> Fallible<SocketAddr> {
    let (sender, started) = mpsc::channel();
    let url = url.to_owned();
    thread::spawn(move || {
        let served = actix_web::rt::System::new().block_on(async {
            let pool = postgres::pool(&url).max_size(16).open()?;
            let idempotency = Idempotency::new(pool.clone())?;
            idempotency.migrate().await?;
            pool.get().await?.batch_execute(contenders::SCHEMA).await?;
            let server = HttpServer::new(move || {
                App::new()
                    .app_data(web::Data::new(idempotency.clone()))
                    .app_data(web::Data::new(pool.clone()))
                    .configure(contenders::routes)
            })
            .workers(2)
            .bind("127.0.0.1:0")?;
            let address = server.addrs().first().copied().ok_or("no address")?;
            sender.send(Ok(address))?;
            server.run().await?;
            Ok::<(), Box<dyn Error + Send + Sync>>(())
        });
        if let Err(error) = served {
            // The receiver is gone once the server runs.
            let _ = sender.send(Err(error.to_string()));
        }
    });
    Ok(started.recv()??)
}
