//! SQLite: handlers in its transactions, and what can become of a file.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    time::{Duration, Instant},
};

use actix_web::{App, test};
use idem_runtime::{
    Idempotency, StoreError,
    sqlite::{self, Sqlite},
};
use sqlx::{Connection, SqliteConnection, SqlitePool};

super::handlers!(sqlx::Sqlite, SqliteConnection);

/// A database in a folder of its own, which goes with it.
struct Shop {
    folder: PathBuf,
    pool: SqlitePool,
    idempotency: Idempotency<Sqlite>,
}

impl Shop {
    async fn open() -> Self {
        let name = format!("idem-sqlite-{:032x}", rand());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let pool = sqlite::pool(folder.join("shop.db"))
            .max_size(3)
            .wait_timeout(Duration::from_millis(500));
        let pool = pool.open().await.unwrap();
        let idempotency = Idempotency::new(pool.clone()).unwrap();
        idempotency.migrate().await.unwrap();
        idempotency.verify_schema().await.unwrap();
        let shop = Self {
            folder,
            pool,
            idempotency,
        };
        shop.run("CREATE TABLE effects (note TEXT)").await;
        shop
    }

    async fn run(&self, sql: &str) {
        let mut connection = self.connect().await;
        connection.execute(sql).await.unwrap();
    }

    /// A connection of a stranger's.
    async fn connect(&self) -> SqliteConnection {
        let url = format!("sqlite://{}", self.file().display());
        SqliteConnection::connect(&url).await.unwrap()
    }

    fn file(&self) -> PathBuf {
        self.folder.join("shop.db")
    }

    async fn count(&self, table: &str) -> i64 {
        let count = format!("SELECT count(*) FROM {table}");
        let mut connection = self.connect().await;
        let count = sqlx::query_scalar(&count).fetch_one(&mut connection);
        count.await.unwrap()
    }

    /// Effects and records.
    async fn counts(&self) -> (i64, i64) {
        (
            self.count("effects").await,
            self.count("idem_records").await,
        )
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn rand() -> u128 {
    use std::hash::{BuildHasher, RandomState};

    let half = || u128::from(RandomState::new().hash_one(()));
    half() << 64 | half()
}

macro_rules! app {
    ($shop:ident) => {
        test::init_service(
            App::new()
                .app_data(web::Data::new($shop.idempotency.clone()))
                .configure(routes),
        )
        .await
    };
}

#[actix_web::test]
async fn repeats_are_answered_from_the_record_and_other_requests_refused() {
    let shop = Shop::open().await;
    let app = app!(shop);
    for path in ["/connection", "/transaction", "/nested"] {
        let first = post(&app, path, "k", &Script::effect(201)).await;
        assert_eq!((first.status, first.replayed), (201, false), "{path}");
        let again = post(&app, path, "k", &Script::effect(201)).await;
        assert_eq!((again.status, again.replayed), (201, true), "{path}");
        assert_eq!(again.body, first.body);
        assert_eq!(
            post(&app, path, "k", &Script::effect(200)).await.status,
            422
        );
    }
    assert_eq!(shop.counts().await, (3, 3));
}

#[actix_web::test]
async fn refusal_rolls_back_binds_its_request_and_lets_a_corrected_one_run() {
    let shop = Shop::open().await;
    let app = app!(shop);
    let refused = post(&app, "/transaction", "k", &Script::effect(409)).await;
    assert_eq!((refused.status, refused.replayed), (409, false));
    assert_eq!(shop.counts().await, (0, 1));
    let corrected = post(&app, "/transaction", "k", &Script::effect(201)).await;
    assert_eq!((corrected.status, corrected.replayed), (201, false));
    let late = post(&app, "/transaction", "k", &Script::effect(409)).await;
    assert_eq!((late.status, late.replayed), (409, true));
    assert_eq!(late.body, refused.body);
    assert_eq!(shop.counts().await, (1, 2));
}

#[actix_web::test]
async fn released_answer_frees_the_key() {
    let shop = Shop::open().await;
    let app = app!(shop);
    assert_eq!(
        post(&app, "/connection", "k", &Script::effect(503))
            .await
            .status,
        503
    );
    assert_eq!(shop.counts().await, (0, 0));
    assert_eq!(
        post(&app, "/connection", "k", &Script::effect(503))
            .await
            .status,
        503
    );
    assert_eq!(
        post(&app, "/connection", "k", &Script::effect(201))
            .await
            .status,
        201
    );
    assert_eq!(shop.counts().await, (1, 1));
}

#[actix_web::test]
async fn handler_that_ends_the_transaction_by_itself_is_never_recorded() {
    let shop = Shop::open().await;
    let app = app!(shop);
    let insert = "INSERT INTO effects VALUES ('one')";
    for sql in [
        vec![insert, "ROLLBACK"],
        vec!["ROLLBACK", "BEGIN", insert],
        vec!["COMMIT"],
        vec!["COMMIT", "BEGIN IMMEDIATE", insert],
        vec!["COMMIT", "SAVEPOINT other", insert],
    ] {
        let script = Script {
            sql: sql.iter().map(ToString::to_string).collect(),
            sleep: 0,
            status: 201,
        };
        let mistaken = post(&app, "/connection", "k", &script).await;
        assert_eq!(mistaken.status, 500, "{sql:?}");
        assert_eq!(shop.counts().await, (0, 0), "{sql:?}");
    }
    for path in ["/leaking", "/committing"] {
        assert_eq!(
            post(&app, path, "k", &Script::effect(201)).await.status,
            500
        );
    }
    // What `/committing` did after its COMMIT stands alone, and nothing can be done about it.
    assert_eq!(shop.counts().await, (1, 0));
    for key in ["a", "b", "c", "d"] {
        assert_eq!(
            post(&app, "/connection", key, &Script::effect(201))
                .await
                .status,
            201
        );
    }
    assert_eq!(shop.counts().await, (5, 4));
}

#[actix_web::test]
async fn request_without_a_key_runs_in_the_transaction_too() {
    let shop = Shop::open().await;
    let app = app!(shop);
    let unkeyed = async |script: &Script| {
        let request = test::TestRequest::post().uri("/unkeyed").set_json(script);
        test::call_service(&app, request.to_request())
            .await
            .status()
    };
    assert_eq!(unkeyed(&Script::effect(201)).await, 201);
    assert_eq!(unkeyed(&Script::effect(400)).await, 400);
    assert_eq!(unkeyed(&Script::new(201, ["ROLLBACK"])).await, 500);
    assert_eq!(shop.counts().await, (1, 0));
}

#[actix_web::test]
async fn handler_that_is_late_is_rolled_back_and_its_key_is_free() {
    let shop = Shop::open().await;
    let app = app!(shop);
    let late = Script {
        sleep: 60_000,
        ..Script::effect(201)
    };
    assert_eq!(post(&app, "/transaction", "k", &late).await.status, 503);
    assert_eq!(
        post(&app, "/transaction", "k", &Script::effect(201))
            .await
            .status,
        201
    );
    assert_eq!(shop.counts().await, (1, 1));
    assert_eq!(
        shop.pool.size(),
        2,
        "the late handler's connection is closed"
    );
}

#[actix_web::test]
async fn writers_of_one_process_wait_for_their_turn_in_memory() {
    let shop = Shop::open().await;
    let app = app!(shop);
    let slow = Script {
        sleep: 50,
        ..Script::effect(201)
    };
    let keys = ["a", "b", "c", "d", "e", "f"];
    let begun = Instant::now();
    let replies = keys.map(|key| post(&app, "/connection", key, &slow));
    for reply in futures_util::future::join_all(replies).await {
        assert_eq!(reply.status, 201);
    }
    // One after the other, without the pauses of SQLite's own waiting.
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(300), "{took:?}");
    assert!(took < Duration::from_millis(480), "{took:?}");
}

#[actix_web::test]
async fn writer_of_another_process_is_waited_for_and_then_503() {
    let shop = Shop::open().await;
    let app = app!(shop);
    let mut other = shop.connect().await;
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    let busy = post(&app, "/connection", "k", &Script::effect(201)).await;
    assert_eq!((busy.status, busy.retry_after), (503, true));
    assert!(matches!(
        shop.idempotency.sweep().await,
        Err(StoreError::Locked)
    ));
    other.execute("ROLLBACK").await.unwrap();
    assert_eq!(
        post(&app, "/connection", "k", &Script::effect(201))
            .await
            .status,
        201
    );
}

#[actix_web::test]
async fn file_that_is_deleted_or_replaced_takes_no_writes_that_would_vanish() {
    let shop = Shop::open().await;
    let app = app!(shop);
    assert_eq!(
        post(&app, "/connection", "a", &Script::effect(201))
            .await
            .status,
        201
    );
    let (file, aside) = (shop.file(), shop.folder.join("aside.db"));
    fs::rename(&file, &aside).unwrap();
    assert_eq!(
        post(&app, "/connection", "b", &Script::effect(201))
            .await
            .status,
        503
    );
    fs::write(&file, "").unwrap();
    assert_eq!(
        post(&app, "/connection", "b", &Script::effect(201))
            .await
            .status,
        503
    );
    fs::rename(&aside, &file).unwrap();
    assert_eq!(
        post(&app, "/connection", "b", &Script::effect(201))
            .await
            .status,
        201
    );
    assert!(
        post(&app, "/connection", "a", &Script::effect(201))
            .await
            .replayed
    );
    assert_eq!(shop.counts().await, (2, 2));
}

#[actix_web::test]
async fn file_that_is_deleted_while_the_handler_runs_is_not_acknowledged() {
    let shop = Shop::open().await;
    let app = app!(shop);
    let slow = Script {
        sleep: 300,
        ..Script::effect(201)
    };
    let answered = post(&app, "/connection", "k", &slow);
    let deleted = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        fs::remove_file(shop.file()).unwrap();
    };
    let (reply, ()) = futures_util::future::join(answered, deleted).await;
    assert_eq!(reply.status, 500);
}

#[actix_web::test]
async fn newer_record_table_is_left_alone() {
    let shop = Shop::open().await;
    shop.run("INSERT INTO idem_migrations (version) VALUES (99)")
        .await;
    for refused in [
        shop.idempotency.migrate().await,
        shop.idempotency.verify_schema().await,
    ] {
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("version 99"), "{why}");
    }
}

#[actix_web::test]
async fn missing_record_table_is_said_to_be_missing() {
    let shop = Shop::open().await;
    let app = app!(shop);
    shop.run("DROP TABLE idem_records").await;
    assert_eq!(
        post(&app, "/connection", "k", &Script::effect(201))
            .await
            .status,
        503
    );
    shop.run("DROP TABLE idem_migrations").await;
    let why = shop.idempotency.verify_schema().await.unwrap_err();
    assert!(matches!(why, StoreError::Schema(_)), "{why}");
}

#[actix_web::test]
async fn file_that_cannot_be_written_is_said_so() {
    let shop = Shop::open().await;
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(shop.file())
        .read_only(true);
    let pool = SqlitePool::connect_with(options).await.unwrap();
    let why = Idempotency::new(pool).unwrap().verify_schema().await;
    let why = why.unwrap_err().to_string();
    assert!(why.contains("the right to write"), "{why}");

    let folder = shop.folder.join("closed");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o555)).unwrap();
    let path = folder.join("missing").join("shop.db");
    let why = sqlite::pool(&path).open().await.unwrap_err().to_string();
    assert!(why.contains("shop.db"), "{why}");
}

#[actix_web::test]
async fn expired_record_is_replaced_and_swept() {
    let shop = Shop::open().await;
    let app = app!(shop);
    let first = post(&app, "/connection", "k", &Script::effect(201)).await;
    shop.run("UPDATE idem_records SET expires_at = 1").await;
    let second = post(&app, "/connection", "k", &Script::effect(201)).await;
    assert!(!second.replayed && second.body != first.body);
    assert_eq!(shop.counts().await, (2, 1));
    assert_eq!(shop.idempotency.sweep().await.unwrap(), 0);
    shop.run("UPDATE idem_records SET expires_at = 1").await;
    assert_eq!(shop.idempotency.sweep().await.unwrap(), 1);
    assert_eq!(shop.counts().await, (2, 0));
}
