//! What can become of a database that is a file: each fault is said, nothing is lost, and what can recover does.

use std::{fs, time::Duration};

use idem_runtime::{StoreError, sqlite};
use idem_tests::{database::Engine as _, service::script::Script};
use reqwest::StatusCode;
use sqlx::{
    ConnectOptions, Connection, Executor,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};

use super::shared::{
    Database, Engine, Service, Setup, database, guard, protocol::until_running, start,
};

#[tokio::test]
async fn file_that_is_moved_away_or_replaced_takes_no_writes_that_would_vanish() {
    let (database, service) = start().await;
    let first = service.post("before", &Script::default()).await;
    first.assert(StatusCode::CREATED, false);
    let (file, aside) = (database.engine().path(), database.file("aside.db"));
    fs::rename(file, &aside).unwrap();
    for _ in 0..2 {
        // Neither a first request nor a repeat: who knows what the next file says.
        for key in ["k", "before"] {
            let reply = service.post(key, &Script::default()).await;
            reply.assert_problem(503, "store-unavailable");
        }
        // Now with another file in its place.
        fs::write(file, "").unwrap();
    }
    assert_eq!(service.executions.get(), 1);
    let error = service.idempotency.verify_schema().await.unwrap_err();
    assert!(error.to_string().contains("deleted or replaced"), "{error}");

    fs::rename(&aside, file).unwrap();
    let again = service.post("before", &Script::default()).await;
    assert_eq!(again.assert(StatusCode::CREATED, true).body, first.body);
    let reply = service.post("k", &Script::default()).await;
    reply.assert(StatusCode::CREATED, false);
    assert_eq!((database.effects(), database.records()), (2, 2));
    database.assert_clean(4).await;
}

#[tokio::test]
async fn file_that_is_deleted_while_a_handler_runs_is_not_acknowledged() {
    let (database, service) = start().await;
    let script = Script::sleeping(700);
    let (reply, ()) = tokio::join!(service.post("k", &script), async {
        until_running(&service, 1).await;
        fs::remove_file(database.engine().path()).unwrap();
    });
    // Nothing is acknowledged that is gone with the process.
    assert!(reply.status >= 500, "{}", reply.status);
    let reply = service.post("k", &script).await;
    reply.assert_problem(503, "store-unavailable");
}

#[tokio::test]
async fn database_that_cannot_be_written_is_a_503_whose_error_says_why() {
    let database = database();
    let stored = {
        let service = Service::start(&database.url()).await;
        service.post("before", &Script::default()).await
    };
    let options = SqliteConnectOptions::new()
        .filename(database.engine().path())
        .pragma("query_only", "ON");
    let pool = SqlitePoolOptions::new()
        .max_connections(2)
        .connect_with(options)
        .await
        .unwrap();
    let service = Service::over(pool, Setup::default()).await;
    // What is stored can be read.
    let again = service.post("before", &Script::default()).await;
    assert_eq!(again.assert(StatusCode::CREATED, true).body, stored.body);
    let reply = service.post("k", &Script::default()).await;
    assert!(reply.status >= 500, "{}", reply.status);
    let error = service.idempotency.sweep().await.unwrap_err();
    assert!(
        matches!(error, StoreError::Refused(_)) && error.to_string().contains("right to write"),
        "{error}"
    );
    assert_eq!((database.effects(), database.records()), (1, 1));
}

#[tokio::test]
async fn file_that_another_process_has_for_itself_is_a_503_until_it_lets_go() {
    let database = database();
    let options = SqliteConnectOptions::new().filename(database.engine().path());
    let exclusive = options.clone().pragma("locking_mode", "EXCLUSIVE");
    let mut alone = exclusive.connect().await.unwrap();
    alone.execute("BEGIN EXCLUSIVE; COMMIT").await.unwrap();

    let impatient = sqlite::pool(database.engine().path()).wait_timeout(Duration::from_millis(300));
    let error = impatient.open().await.unwrap_err().to_string();
    assert!(
        error.contains("shop.db") && error.contains("writ"),
        "{error}"
    );
    let pool = SqlitePoolOptions::new()
        .acquire_timeout(Duration::from_millis(300))
        .connect_lazy_with(options.busy_timeout(Duration::from_millis(300)));
    let service = Service::over(pool, Setup::default()).await;
    let reply = service.post("k", &Script::default()).await;
    reply.assert_problem(503, "store-unavailable");
    assert!(reply.headers.contains_key("retry-after"));

    alone.close().await.unwrap();
    let reply = service.post("k", &Script::default()).await;
    reply.assert(StatusCode::CREATED, false);
    assert_eq!((database.effects(), database.records()), (1, 1));
}

#[tokio::test]
async fn instances_that_start_at_once_make_file_and_table_together() {
    let database = Database::empty();
    let start = async || {
        let idempotency = guard(&database.url()).await;
        idempotency.migrate().await.unwrap();
        idempotency.verify_schema().await.unwrap();
    };
    futures_util::future::join_all((0..8).map(|_| start())).await;
    assert_eq!(database.records(), 0);
}

#[tokio::test]
async fn newer_record_table_is_refused_and_left_alone() {
    let database = database();
    database
        .run_sql("INSERT INTO idem_migrations (version) VALUES (99)")
        .unwrap();
    let idempotency = guard(&database.url()).await;
    for refused in [
        idempotency.migrate().await,
        idempotency.verify_schema().await,
    ] {
        let error = refused.unwrap_err().to_string();
        assert!(
            error.contains("version 99") && error.contains("newer"),
            "{error}"
        );
    }
    let versions = database.run_sql("SELECT group_concat(version) FROM idem_migrations");
    assert_eq!(versions.unwrap(), "1,99");
}

#[tokio::test]
async fn file_that_is_no_database_is_named_when_it_is_opened() {
    let database = database();
    let path = database.file("notes.txt");
    fs::write(
        &path,
        "not a database, though as long as one has to be".repeat(100),
    )
    .unwrap();
    let error = sqlite::pool(&path).open().await.unwrap_err().to_string();
    assert!(
        error.contains("notes.txt") && error.contains("not a database"),
        "{error}"
    );
    let missing = database.file("no/such/folder.db");
    let error = sqlite::pool(&missing).open().await.unwrap_err().to_string();
    assert!(error.contains("folder.db"), "{error}");
}

#[tokio::test]
async fn pool_of_the_service_s_own_without_a_write_ahead_log_works_as_well() {
    let database = Database::empty();
    database.run_sql(Engine::TABLES).unwrap();
    let options = SqliteConnectOptions::new().filename(database.engine().path());
    let pool = SqlitePoolOptions::new().max_connections(2);
    let pool = pool.connect_with(options).await.unwrap();
    let service = Service::over(pool, Setup::default()).await;
    service.idempotency.migrate().await.unwrap();
    service.idempotency.verify_schema().await.unwrap();
    for replayed in [false, true] {
        let reply = service.post("k", &Script::default()).await;
        reply.assert(StatusCode::CREATED, replayed);
    }
    assert_eq!(database.run_sql("PRAGMA journal_mode").unwrap(), "delete");
    assert_eq!((database.effects(), database.records()), (1, 1));
}
