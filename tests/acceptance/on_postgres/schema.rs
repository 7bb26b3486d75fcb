//! The record table: how it comes about, what is said where it is missing, and the rights on it.

use std::time::{Duration, Instant};

use idem_runtime::{Idempotency, SettingsError, StoreError};
use idem_tests::{kinds::Kind as _, relay::Relay, service::script::Script};
use reqwest::StatusCode;
use tokio::task::JoinSet;

use super::{
    Kind, MIGRATIONS,
    shared::{Database, Service, Setup, assert_whole, database, guard},
};

/// Everything that there is to know about the tables of a schema, but its name.
fn described(database: &Database, schema: &str) -> String {
    let text = database.run_sql(&format!(
        "SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, l.collname, \
                pg_get_expr(d.adbin, d.adrelid) \
           FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 \
           LEFT JOIN pg_collation l ON l.oid = a.attcollation \
           LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum \
          WHERE c.relnamespace = '{schema}'::regnamespace ORDER BY 1, 2; \
         SELECT pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class c ON c.oid = indrelid \
          WHERE c.relnamespace = '{schema}'::regnamespace ORDER BY 1; \
         SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint \
          WHERE connamespace = '{schema}'::regnamespace ORDER BY 1; \
         SELECT version FROM {schema}.migrations"
    ));
    text.unwrap().replace(schema, "SCHEMA")
}

#[tokio::test]
async fn migrations_do_not_depend_on_the_database_s_own_defaults() {
    let database = Database::empty();
    database
        .run_sql(&format!(
            "ALTER DATABASE {0} SET default_transaction_isolation = 'serializable'; \
             ALTER DATABASE {0} SET default_transaction_read_only = on",
            database.engine().name()
        ))
        .unwrap();
    let mut instances = JoinSet::new();
    for _ in 0..8 {
        let idempotency = guard(&database.url()).await;
        instances.spawn(async move { idempotency.migrate().await });
    }
    for migrated in instances.join_all().await {
        migrated.unwrap();
    }
    guard(&database.url()).await.verify_schema().await.unwrap();
}

#[tokio::test]
async fn migrations_applied_by_hand_make_what_migrate_makes() {
    let (by_hand, by_us) = (Database::empty(), Database::empty());
    for migration in MIGRATIONS {
        by_hand.run_sql(migration).unwrap();
    }
    guard(&by_us.url()).await.migrate().await.unwrap();
    let expected = described(&by_us, "idem");
    assert!(
        expected.contains("expires_at") && expected.contains("PRIMARY KEY"),
        "{expected}"
    );
    assert_eq!(described(&by_hand, "idem"), expected);
    guard(&by_hand.url()).await.verify_schema().await.unwrap();
    guard(&by_hand.url()).await.migrate().await.unwrap();
    assert_eq!(described(&by_hand, "idem"), expected);

    // In another schema, by the rule that the documentation gives and by the builder.
    let (by_hand, by_us) = (Database::empty(), Database::empty());
    for migration in MIGRATIONS {
        by_hand
            .run_sql(&migration.replace("idem", "pay_1"))
            .unwrap();
    }
    let pool = Kind::pool(&by_us.url(), 1, Duration::from_secs(1)).await;
    let idempotency = Idempotency::builder(pool).schema("pay_1").build().unwrap();
    idempotency.migrate().await.unwrap();
    assert_eq!(described(&by_hand, "pay_1"), expected);
    assert_eq!(described(&by_us, "pay_1"), expected);
}

#[tokio::test]
async fn services_with_schemas_of_their_own_share_a_database_and_no_keys() {
    let database = database();
    let own = Setup {
        configure: |builder| builder.schema("pay_1"),
        ..Setup::default()
    };
    let (one, two) = (
        Service::start(&database.url()).await,
        Service::with(&database.url(), own).await,
    );
    two.idempotency.migrate().await.unwrap();
    two.idempotency.verify_schema().await.unwrap();
    let script = Script::sleeping(1_000);
    let request = one.client.request("/effects").key("k").script(&script);
    let running = tokio::spawn(request.send());
    database.until_asleep_in_rust(1).await;
    // The other's lock is not in the way.
    two.post("k", &script)
        .await
        .assert(StatusCode::CREATED, false);
    running.await.unwrap().assert(StatusCode::CREATED, false);
    two.post("k", &script)
        .await
        .assert(StatusCode::CREATED, true);
    assert_eq!(
        (database.records(), database.count("pay_1.records")),
        (1, 1)
    );
    assert_eq!(database.effects(), 2);
    database
        .run_sql("UPDATE pay_1.records SET expires_at = now()")
        .unwrap();
    assert_eq!(two.idempotency.sweep().await.unwrap(), 1);
    assert_eq!(
        (database.records(), database.count("pay_1.records")),
        (1, 0)
    );
}

#[tokio::test]
async fn schema_s_name_cannot_carry_sql() {
    for name in [
        "",
        "idem; DROP TABLE effects",
        "a\"b",
        "idem.records--",
        "Idem",
        "1a",
        "pg catalog",
        "a'b",
    ] {
        let pool = Kind::pool("postgres://localhost/shop", 1, Duration::from_secs(1)).await;
        let error = Idempotency::builder(pool).schema(name).build().unwrap_err();
        assert!(
            matches!(error, SettingsError::SchemaName(_)),
            "{name}: {error}"
        );
        assert!(error.to_string().contains("`a`-`z`"), "{error}");
    }
}

#[tokio::test]
async fn check_and_migrations_end_in_time_when_packets_vanish() {
    let database = database();
    let relay = Relay::start(database.engine().port(), Duration::ZERO);
    let setup = Setup {
        pool: 2,
        pool_wait: Duration::from_secs(1),
        configure: |builder| builder.database_timeout(Duration::from_millis(500)),
        ..Setup::default()
    };
    let service = Service::with(&relay.url(database.engine().name()), setup).await;
    let idempotency = &service.idempotency;
    // Over a connection that is there, and over one that cannot be made.
    for warm in [true, false] {
        if warm {
            idempotency.verify_schema().await.unwrap();
        }
        relay.black_hole(true);
        let start = Instant::now();
        for ended in [
            idempotency.verify_schema().await,
            idempotency.migrate().await,
        ] {
            let error = ended.unwrap_err();
            let late = matches!(error, StoreError::TimedOut(_) | StoreError::Unreachable(_));
            assert!(late || matches!(error, StoreError::Busy), "{error}");
        }
        assert!(
            start.elapsed() < Duration::from_secs(8),
            "{:?}",
            start.elapsed()
        );
    }
    relay.black_hole(false);
    idempotency.migrate().await.unwrap();
    idempotency.verify_schema().await.unwrap();
    assert_whole(&service.pool).await;
}

#[tokio::test]
async fn migrations_wait_long_for_those_of_another_instance_but_not_for_ever() {
    let database = Database::empty();
    let other = Kind::pool(&database.url(), 1, Duration::from_secs(1)).await;
    let migrating = "SELECT pg_advisory_lock(1768187245)";
    Kind::run(&other, migrating).await.unwrap();
    let idempotency = guard(&database.url()).await;
    let migrated = tokio::spawn(async move { idempotency.migrate().await });
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'";
    database.until(waiting, "1").await;
    // From here on time passes as fast as nothing happens.
    tokio::time::pause();
    let start = tokio::time::Instant::now();
    let error = migrated.await.unwrap().unwrap_err();
    assert!(matches!(error, StoreError::TimedOut(_)), "{error}");
    let minutes = start.elapsed().as_secs() / 60;
    assert!((5..60).contains(&minutes), "{minutes} minutes");
    database.until(waiting, "0").await;
}

/// The URL of the database for a role that may do what this SQL says.
fn as_role(database: &Database, rights: &str) -> (String, String) {
    let role = format!("role_{}", database.engine().name());
    let grants = rights.replace("ROLE", &role);
    database
        .run_sql(&format!("CREATE ROLE {role} LOGIN; {grants}"))
        .unwrap();
    let url = database.url().replace("postgres@", &format!("{role}@"));
    (role, url)
}

const RIGHTS: &str = "GRANT USAGE ON SCHEMA idem TO ROLE; GRANT SELECT, INSERT, UPDATE, DELETE ON idem.records TO ROLE; \
                      GRANT SELECT ON idem.migrations TO ROLE; GRANT ALL ON effects, effects_id_seq TO ROLE";

#[tokio::test]
async fn check_at_start_says_what_is_wrong() {
    let database = database();
    let idempotency = guard(&database.url()).await;
    idempotency.verify_schema().await.unwrap();

    let (role, url) = as_role(&database, RIGHTS);
    let restricted = guard(&url).await;
    restricted.verify_schema().await.unwrap();
    restricted.sweep().await.unwrap();
    for (right, on) in [
        ("SELECT", "idem.records"),
        ("INSERT", "idem.records"),
        ("UPDATE", "idem.records"),
        ("DELETE", "idem.records"),
        ("SELECT", "idem.migrations"),
        ("USAGE", "SCHEMA idem"),
    ] {
        database
            .run_sql(&format!("REVOKE {right} ON {on} FROM {role}"))
            .unwrap();
        let error = restricted.verify_schema().await.unwrap_err();
        assert!(
            matches!(error, StoreError::Refused(_)) && error.to_string().contains("GRANT"),
            "{error}"
        );
        database
            .run_sql(&format!("GRANT {right} ON {on} TO {role}"))
            .unwrap();
    }
    restricted.verify_schema().await.unwrap();

    database.run_sql("DELETE FROM idem.migrations").unwrap();
    let error = idempotency.verify_schema().await.unwrap_err();
    assert!(
        matches!(error, StoreError::Schema(_)) && error.to_string().contains("version 0"),
        "{error}"
    );
    assert!(error.to_string().contains("migrate()"), "{error}");

    database.run_sql("DROP SCHEMA idem CASCADE").unwrap();
    let error = idempotency.verify_schema().await.unwrap_err();
    assert!(
        matches!(error, StoreError::Schema(_)) && error.to_string().contains("migrate()"),
        "{error}"
    );
    database.assert_clean(4).await;
}

#[tokio::test]
async fn record_that_may_not_be_written_is_a_500_that_undoes_the_effect_until_the_right_is_granted()
{
    let database = database();
    let (role, url) = as_role(&database, RIGHTS);
    let service = Service::start(&url).await;
    service
        .post("before", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);
    database
        .run_sql(&format!("REVOKE INSERT ON idem.records FROM {role}"))
        .unwrap();
    for _ in 0..2 {
        let reply = service.post("k", &Script::default()).await;
        reply.assert_problem(500, "internal");
        let refused = service.post("refused", &Script::answering(402)).await;
        refused.assert_problem(500, "internal");
        assert_eq!((database.effects(), database.records()), (1, 1));
    }
    service
        .post("before", &Script::default())
        .await
        .assert(StatusCode::CREATED, true);
    database
        .run_sql(&format!("GRANT INSERT ON idem.records TO {role}"))
        .unwrap();
    service
        .post("k", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);
    service
        .post("k", &Script::default())
        .await
        .assert(StatusCode::CREATED, true);
    assert_eq!((database.effects(), database.records()), (2, 2));
    database.assert_clean(4).await;
}

#[tokio::test]
async fn record_table_that_may_not_be_read_is_a_503_and_no_handler_runs() {
    let database = database();
    let (role, url) = as_role(&database, RIGHTS);
    let service = Service::start(&url).await;
    database
        .run_sql(&format!("REVOKE SELECT ON idem.records FROM {role}"))
        .unwrap();
    let reply = service.post("k", &Script::default()).await;
    reply.assert_problem(503, "store-unavailable");
    assert_eq!(service.executions.get(), 0);
    database
        .run_sql(&format!("GRANT SELECT ON idem.records TO {role}"))
        .unwrap();
    service
        .post("k", &Script::default())
        .await
        .assert(StatusCode::CREATED, false);
    database.assert_clean(4).await;
}
