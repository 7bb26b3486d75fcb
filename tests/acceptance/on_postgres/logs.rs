//! What the log says of PostgreSQL's errors.

use std::{fs, time::Duration};

use actix_web::{App, test::init_service, web};
use idem_runtime::Idempotency;
use idem_tests::{
    kinds::Kind as _,
    service::{
        Executions,
        script::{Script, Step, sql},
    },
};

use super::{
    Kind,
    shared::{
        database,
        logs::{Log, send, serve},
    },
};

#[actix_web::test]
async fn swallowed_error_is_named_with_its_line_and_what_to_do() {
    let database = database();
    let app = serve(&database).await;
    let script = Script::of([Step::Try("no SQL".to_owned())]);
    let (log, _guard) = Log::capture();
    let (status, body) = send(&app, "/effects", "k", &script).await;
    assert_eq!(status, 500, "{body}");
    let error = log.error();
    for part in [
        "savepoint",
        "::effects",
        "service.rs:",
        "nothing is recorded",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
    assert!(!body.contains("savepoint"), "{body}");
    assert_eq!((database.effects(), database.records()), (0, 0));
}

#[actix_web::test]
async fn panic_of_the_transaction_s_settings_is_answered_and_named() {
    let database = database();
    let pool = Kind::pool(&database.url(), 2, Duration::from_secs(5)).await;
    let idempotency = Idempotency::builder(pool.clone()).transaction_settings(|_| panic!("here"));
    let app = App::new()
        .app_data(web::Data::new(idempotency.build().unwrap()))
        .app_data(web::Data::new(Executions::default()))
        .app_data(web::Data::new(pool))
        .configure(Kind::routes);
    let app = init_service(app).await;
    let (log, _guard) = Log::capture();
    let (status, body) = send(&app, "/effects", "k", &Script::default()).await;
    assert_eq!(status, 500, "{body}");
    let error = log.error();
    for part in [
        "`transaction_settings` panicked",
        "service.rs:",
        "did not run",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
    assert_eq!((database.effects(), database.records()), (0, 0));
}

/// The settings are sent behind the claim, and fail once it has failed.
#[actix_web::test]
async fn what_a_claim_failed_of_is_logged_also_where_settings_travel_with_it() {
    let database = database();
    let role = format!("reads_{}", database.engine().name());
    database
        .run_sql(&format!(
            "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA idem TO {role}"
        ))
        .unwrap();
    let url = database.url().replace("//postgres@", &format!("//{role}@"));
    let pool = Kind::pool(&url, 1, Duration::from_secs(5)).await;
    let idempotency = Idempotency::builder(pool.clone())
        .transaction_settings(|_| vec![("app.tenant".to_owned(), "a".to_owned())]);
    let app = App::new()
        .app_data(web::Data::new(idempotency.build().unwrap()))
        .app_data(web::Data::new(Executions::default()))
        .app_data(web::Data::new(pool))
        .configure(Kind::routes);
    let app = init_service(app).await;
    let (log, _guard) = Log::capture();
    let (status, body) = send(&app, "/effects", "k", &Script::default()).await;
    assert_eq!(status, 503, "{body}");
    let text = log.text();
    assert!(text.contains("42501") && text.contains("GRANT"), "{text}");
}

#[actix_web::test]
async fn errors_of_postgres_are_logged_without_the_values_that_they_name() {
    let database = database();
    database
        .run_sql(
            "CREATE TABLE names (name text UNIQUE DEFERRABLE INITIALLY DEFERRED);
             CREATE FUNCTION complain() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION 'no %', NEW.note; END $$;
             CREATE CONSTRAINT TRIGGER complain AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW WHEN (NEW.note = 'marker') EXECUTE FUNCTION complain();",
        )
        .unwrap();
    let app = serve(&database).await;
    let insert = "INSERT INTO names VALUES ('marker'), ('marker')";
    for (script, part) in [
        (
            Script::of([sql(insert)]),
            "SQLSTATE 23505, table `names`, constraint `names_name_key`",
        ),
        (Script::default().note("marker"), "SQLSTATE P0001"),
    ] {
        for path in ["/effects", "/optional"] {
            let (log, _guard) = Log::capture();
            let (status, body) = send(&app, path, "k", &script).await;
            assert_eq!(status, 500, "{body}");
            let error = log.error();
            assert!(error.contains(part), "{error}");
            assert!(
                !log.text().contains("marker") && !body.contains("marker"),
                "{error} {body}"
            );
        }
    }
    assert_eq!((database.effects(), database.records()), (0, 0));
}

#[actix_web::test]
async fn statements_for_the_one_on_call_find_what_a_line_speaks_of() {
    let database = database();
    let app = serve(&database).await;
    let doc = fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/operations.md"
    ));
    let doc = doc.unwrap();
    let mut statements = doc.split("```sql\n").skip(1).map(|rest| {
        let (statement, _) = rest.split_once("```").unwrap();
        statement.trim_end().trim_end_matches(';')
    });
    let (records, holders) = (statements.next().unwrap(), statements.next().unwrap());

    // The handler holds its key.
    let script = Script::of([sql(&format!("CREATE TABLE holders AS {holders}"))]);
    let (log, _guard) = Log::capture();
    let (status, body) = send(&app, "/effects", "k", &script).await;
    assert_eq!(status, 201, "{body}");
    let text = log.text();
    let (_, digits) = text.split_once(" key=").unwrap();
    let digits = &digits[..8];

    let held = database.run_sql("SELECT digits FROM holders").unwrap();
    assert_eq!(held.trim(), digits);
    let (_, key) = records.split_once("key = '").unwrap();
    let (key, _) = key.split_once('\'').unwrap();
    let found = database.run_sql(&records.replace(key, "k")).unwrap();
    assert!(found.starts_with(digits), "{digits}: {found}");
    for erase in statements.next().unwrap().split(';') {
        database.run_sql(erase).unwrap();
    }
    assert!(statements.next().is_none());
}
