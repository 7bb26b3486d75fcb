//! The promise, tested over real HTTP and a real PostgreSQL: a module for each part of the specification.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "what the tests share fails as the tests themselves do"
)]

mod answers;
mod callers;
mod faults;
mod fingerprint;
mod identity;
mod input;
mod logs;
mod postgres_connections;
mod postgres_flights;
mod postgres_handlers;
mod postgres_isolation;
mod postgres_lost_commit;
mod postgres_schema;
mod processes;
mod promise;
mod protocol;
mod unkeyed;

use idem_tests::{
    database::Database,
    service::{EFFECTS, Reply, Service},
};
use reqwest::StatusCode;

const CREATED: StatusCode = StatusCode::CREATED;

/// Starts a service over a database of its own.
async fn start() -> (Database, Service) {
    let database = EFFECTS.database();
    let service = Service::start(&database.url()).await;
    (database, service)
}

/// Posts a body as account `a`.
async fn send(service: &Service, path: &str, key: &str, media_type: &str, body: &str) -> Reply {
    let request = service.client.request(path).key(key);
    request.body(media_type, body.to_owned()).send().await
}

async fn json(service: &Service, path: &str, key: &str, body: &str) -> Reply {
    send(service, path, key, "application/json", body).await
}
