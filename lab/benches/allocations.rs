//! Counts what a request allocates, bare and guarded, over the backend that costs nothing.

#![allow(
    missing_docs,
    clippy::cast_precision_loss,
    reason = "figures of a benchmark"
)]

#[path = "../src/bench/own/handlers.rs"]
mod handlers;

use std::error::Error;

use actix_web::rt::System;
use allocation_counter::AllocationInfo;

use self::handlers::{BARE, GUARDED, order, requests, send, service};

/// How many requests are counted, after as many that fill caches and pools.
const REQUESTS: usize = 100;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let system = System::new();
    let (service, order) = (system.block_on(service())?, order()?);
    let count = |path| {
        let mut counted = AllocationInfo::default();
        for _ in 0..2 {
            let requests = requests(path, &order, REQUESTS);
            let mut sent = Ok(());
            counted = allocation_counter::measure(|| {
                sent = system.block_on(send(&service, requests));
            });
            sent?;
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(counted)
    };
    let (bare, guarded) = (count(BARE)?, count(GUARDED)?);

    println!("a request of {} bytes   allocations     bytes", order.len());
    let line = |name, allocations: u64, bytes: u64| {
        let a_request = |total: u64| total as f64 / REQUESTS as f64;
        println!(
            "{name:<24} {:>11.1} {:>9.0}",
            a_request(allocations),
            a_request(bytes)
        );
    };
    line("bare", bare.count_total, bare.bytes_total);
    line("guarded", guarded.count_total, guarded.bytes_total);
    line(
        "the framework's own",
        guarded.count_total.saturating_sub(bare.count_total),
        guarded.bytes_total.saturating_sub(bare.bytes_total),
    );
    Ok(())
}
