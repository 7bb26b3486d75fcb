//! What holds over every backend; compiled once for each, as the `Kind` of the module above.

mod answers;
mod callers;
mod cancellation;
pub(super) mod connections;
mod contract;
mod cors;
pub(super) mod faults;
mod fingerprint;
pub(super) mod handlers;
mod identity;
mod input;
pub(super) mod logs;
pub(super) mod processes;
mod promise;
pub(super) mod protocol;
mod schema;
pub(super) mod status;
mod sweeping;
mod unkeyed;

use std::time::Duration;

use idem_runtime::Idempotency;
use idem_tests::{
    database,
    kinds::Kind as _,
    service::{self, Reply, ServiceProcess},
};
use reqwest::StatusCode;

use super::{Kind, routes};

pub(super) type Database = database::Database<<Kind as idem_tests::kinds::Kind>::Engine>;
pub(super) type Engine = <Kind as idem_tests::kinds::Kind>::Engine;
pub(super) type Service = service::Service<Kind>;
pub(super) type Setup = service::Setup<Kind>;

/// The program that serves as a process of its own.
pub(super) const PROGRAM: &str = env!("CARGO_BIN_EXE_service");

const CREATED: StatusCode = StatusCode::CREATED;

/// Makes a database with the record table and the tables that the scripts write.
pub(super) fn database() -> Database {
    Kind::template().database()
}

/// Starts a service over a database of its own.
pub(super) async fn start() -> (Database, Service) {
    let database = database();
    let service = Service::start(&database.url()).await;
    (database, service)
}

/// Starts a service in a process of its own.
pub(super) fn process(database: &Database) -> ServiceProcess {
    ServiceProcess::start::<Kind>(PROGRAM, database)
}

/// Opens what guards handlers, over a pool of two.
pub(super) async fn guard(url: &str) -> Idempotency<<Kind as idem_tests::kinds::Kind>::Backend> {
    Idempotency::new(Kind::pool(url, 2, Duration::from_secs(5)).await).unwrap()
}

/// Checks that all connections have come back to their pool.
pub(super) async fn assert_whole(pool: &<Kind as idem_tests::kinds::Kind>::Pool) {
    let whole = || Kind::is_whole(pool).then_some(());
    database::until(|| whole().ok_or_else(|| "a connection is missing".to_owned())).await;
}

/// Posts a body as account `a`.
async fn send(service: &Service, path: &str, key: &str, media_type: &str, body: &str) -> Reply {
    let request = service.client.request(path).key(key);
    request.body(media_type, body.to_owned()).send().await
}

async fn json(service: &Service, path: &str, key: &str, body: &str) -> Reply {
    send(service, path, key, "application/json", body).await
}
