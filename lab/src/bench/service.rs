//! The service that holds all contenders, as a process of its own, so that its CPU time is not the load generator's.

use std::{
    env,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use actix_web::{App, HttpServer, web};
use deadpool_postgres::{GenericClient, Pool};
use idem_runtime::{Idempotency, postgres, sqlite};
use serde::{Deserialize, Serialize};
use sqlx::{postgres::PgPoolOptions, raw_sql};

use super::contenders;
use crate::{Fallible, rig::process::end_with_parent};

/// How many connections each pool has.
const POOL: u32 = 16;

/// How the service is set up; travels to the child process as JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Setup {
    /// The connection URL.
    pub(super) database: String,
    pub(super) sqlite: PathBuf,
}

/// A running service. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) address: SocketAddr,
    child: Child,
}

impl Service {
    /// Starts one and waits until it listens.
    ///
    /// # Errors
    ///
    /// When it does not start; it has said why on standard error.
    pub(super) fn start(setup: &Setup) -> Fallible<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args(["serve-contenders", &serde_json::to_string(setup)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let address = line.trim().parse();
        let address = address.map_err(|_| "the contenders' service did not start")?;
        Ok(Self { address, child })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves until standard input ends; prints the address first.
///
/// # Errors
///
/// When the setup cannot be read or a database cannot be used.
pub(crate) fn serve(setup: &str) -> Fallible<()> {
    let setup: Setup = serde_json::from_str(setup)?;
    end_with_parent();
    actix_web::rt::System::new().block_on(run(setup))
}

async fn run(setup: Setup) -> Fallible<()> {
    let pool = postgres::pool(&setup.database)
        .max_size(POOL as usize)
        .open()?;
    let idempotency = Idempotency::new(pool.clone())?;
    prepare(&pool, &idempotency).await?;
    let cached = Idempotency::builder(pool.clone())
        .cache(256 << 20)
        .build()?;
    let cached = web::Data::new(cached);

    let sqlx = PgPoolOptions::new().max_connections(POOL);
    let sqlx = sqlx.connect(&setup.database).await?;
    let through_sqlx = Idempotency::new(sqlx.clone())?;

    let fresh = !setup.sqlite.exists();
    let file = sqlite::pool(&setup.sqlite).open().await?;
    let on_sqlite = Idempotency::new(file.clone())?;
    on_sqlite.migrate().await?;
    if fresh {
        raw_sql(contenders::SQLITE_SCHEMA).execute(&file).await?;
    }

    let server = HttpServer::new(move || {
        App::new()
            .app_data(web::Data::new(idempotency.clone()))
            .app_data(web::Data::new(pool.clone()))
            .app_data(web::Data::new(through_sqlx.clone()))
            .app_data(web::Data::new(sqlx.clone()))
            .app_data(web::Data::new(on_sqlite.clone()))
            .app_data(web::Data::new(file.clone()))
            .configure(|app| contenders::routes(app, &cached))
    })
    .workers(2)
    .bind("127.0.0.1:0")?;
    let address = server.addrs().first().copied().ok_or("no address")?;
    println!("{address}");
    server.run().await?;
    Ok(())
}

/// Makes the tables, unless another service has.
async fn prepare(pool: &Pool, idempotency: &Idempotency) -> Fallible<()> {
    idempotency.migrate().await?;
    let client = pool.get().await?;
    let there = "SELECT to_regclass('accounts') IS NOT NULL";
    if !client.query_one(there, &[]).await?.get::<_, bool>(0) {
        client.batch_execute(contenders::SCHEMA).await?;
    }
    Ok(())
}
