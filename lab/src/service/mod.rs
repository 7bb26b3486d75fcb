//! The service under test: what `lab serve` runs as a process of its own, so that it can be killed.

mod handlers;
mod order;

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use actix_web::{App, HttpServer, web};
use idem_runtime::{
    Idempotency,
    postgres::{self, StatementMode},
};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

pub(crate) use self::order::{Order, Step};
use crate::{Fallible, rig::process::end_with_parent};

/// How one instance is set up; travels to the child process as JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Setup {
    /// The connection URL.
    pub(crate) database: String,
    /// The port to listen at; zero for any.
    pub(crate) port: u16,
    pub(crate) workers: usize,
    /// Connections in the pool.
    pub(crate) pool: usize,
    /// Whether statements are sent unnamed, for poolers in transaction mode.
    pub(crate) unnamed: bool,
    pub(crate) pool_wait: Duration,
    pub(crate) database_timeout: Duration,
    /// How long a client may take for a request's head; actix sends it away then.
    pub(crate) head_timeout: Duration,
    /// How often expired records are deleted.
    pub(crate) sweep: Option<Duration>,
    /// Where handlers note that they have begun.
    pub(crate) executions: PathBuf,
}

/// Serves until SIGTERM, or until the process that holds the other end of standard input is gone.
///
/// Prints its address first.
///
/// # Errors
///
/// When the setup cannot be read, or the address is taken.
pub(crate) fn serve(setup: &str) -> Fallible<()> {
    let setup: Setup = serde_json::from_str(setup)?;
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new("info,idem_runtime=trace"))
        .with_ansi(false)
        .with_writer(io::stderr)
        .init();
    end_with_parent();
    actix_web::rt::System::new().block_on(run(setup))
}

async fn run(setup: Setup) -> Fallible<()> {
    let pool = postgres::pool(&setup.database)
        .max_size(setup.pool)
        .wait_timeout(setup.pool_wait)
        .open()?;
    let statements = if setup.unnamed {
        StatementMode::Unnamed
    } else {
        StatementMode::Cached
    };
    let idempotency = Idempotency::builder(pool.clone())
        .statements(statements)
        .database_timeout(setup.database_timeout)
        .retryable(handlers::is_retryable)
        .build()?;
    let _sweeper = setup
        .sweep
        .map(|interval| idempotency.sweep_every(interval));
    let executions = web::Data::new(Executions::open(&setup.executions)?);
    let draining = idempotency.clone();
    let mut terminated = signal(SignalKind::terminate())?;
    let server = HttpServer::new(move || {
        App::new()
            .app_data(web::Data::new(idempotency.clone()))
            .app_data(web::Data::new(pool.clone()))
            .app_data(executions.clone())
            .configure(handlers::routes)
    })
    .workers(setup.workers)
    .client_request_timeout(setup.head_timeout)
    .shutdown_signal(async move {
        terminated.recv().await;
        draining.drain().await;
    })
    .bind(("127.0.0.1", setup.port))?;
    let address = server.addrs().first().copied().ok_or("no address")?;
    println!("{address}");
    server.run().await?;
    Ok(())
}

/// Notes which attempts have begun to execute, outside of any transaction.
#[derive(Debug)]
struct Executions {
    file: File,
}

impl Executions {
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        Ok(Self { file })
    }

    fn note(&self, attempt: &str) -> io::Result<()> {
        // One write a line: several processes append to the file.
        (&self.file).write_all(format!("{attempt}\n").as_bytes())
    }
}
