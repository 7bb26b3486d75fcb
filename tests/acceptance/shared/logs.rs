//! What the log says: which line of the service has to change and how, what became of a request, and never key, scope or body.

use std::{
    fs::{self, File},
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use actix_http::Request;
use actix_web::{
    App, Error,
    body::MessageBody,
    dev::{Service as ActixService, ServiceRequest, ServiceResponse},
    http::Method,
    middleware::{self, Next},
    test::{TestRequest, call_service, init_service, read_body},
    web,
};
use idem_runtime::Idempotency;
use idem_tests::{
    database::Engine as _,
    kinds::Kind as _,
    service::{
        Executions, ServiceProcess,
        script::{Script, Step, sql},
    },
};
use reqwest::StatusCode;
use tracing_subscriber::{
    EnvFilter, fmt::format::FmtSpan, fmt::writer::MakeWriter, util::SubscriberInitExt,
};

use super::{Database, Engine, Kind, PROGRAM, database, routes};

/// What this thread logs; actix's test service runs on it alone.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn capture() -> (Self, impl Drop) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new("info"))
            .with_span_events(FmtSpan::CLOSE)
            .with_ansi(false)
            .with_writer(log.clone());
        let guard = subscriber.finish().set_default();
        (log, guard)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Returns the one line of an error.
    pub(crate) fn error(&self) -> String {
        let text = self.text();
        let errors: Vec<_> = text
            .lines()
            .filter(|line| line.contains(" ERROR "))
            .collect();
        let [error] = *errors else {
            panic!("one error in:\n{text}")
        };
        error.to_owned()
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Serves the handlers on this thread.
pub(crate) async fn serve(
    database: &Database,
) -> impl ActixService<Request, Response = ServiceResponse<impl MessageBody>, Error = Error> {
    let pool = Kind::pool(&database.url(), 2, Duration::from_secs(5)).await;
    let app = App::new()
        .app_data(web::Data::new(Idempotency::new(pool.clone()).unwrap()))
        .app_data(web::Data::new(Executions::default()))
        .app_data(web::Data::new(pool))
        .configure(routes::configure)
        .service(
            web::scope("/swallowing")
                .wrap(middleware::from_fn(swallow))
                .route("/echo", web::post().to(routes::echo)),
        );
    init_service(app).await
}

async fn swallow(
    mut request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    request.extract::<web::Bytes>().await?;
    next.call(request).await
}

/// Begins a request of account `a`.
fn request(path: &str, key: &str) -> TestRequest {
    let request = TestRequest::post().uri(path);
    request
        .insert_header(("x-account", "a"))
        .insert_header(("idempotency-key", key))
}

/// Sends a scripted request and returns status and body.
pub(crate) async fn send(
    app: &impl ActixService<Request, Response = ServiceResponse<impl MessageBody>, Error = Error>,
    path: &str,
    key: &str,
    script: &Script,
) -> (u16, String) {
    let request = request(path, key).set_json(script);
    let response = call_service(app, request.to_request()).await;
    let status = response.status().as_u16();
    let body = read_body(response).await;
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[actix_web::test]
async fn without_idempotency_in_the_app_data_the_log_says_what_to_write_and_for_which_handler() {
    let (log, _guard) = Log::capture();
    let app = init_service(App::new().configure(routes::configure)).await;
    let (status, body) = send(&app, "/effects", "k", &Script::default()).await;
    assert_eq!(status, 500);
    assert!(
        body.contains("urn:problem-type:idempotency:internal"),
        "{body}"
    );
    assert!(
        !body.contains("app_data"),
        "an affair of the service alone: {body}"
    );
    let error = log.error();
    for part in [
        "::effects",
        "service.rs:",
        ".app_data(web::Data::new(idempotency.clone()))",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
}

#[actix_web::test]
async fn guarded_get_is_refused_and_the_log_says_why() {
    let database = database();
    let app = serve(&database).await;
    for method in [Method::GET, Method::HEAD] {
        let (log, _guard) = Log::capture();
        let request = request("/effects", "k").method(method.clone());
        let response = call_service(&app, request.to_request()).await;
        assert_eq!(response.status().as_u16(), 500);
        let error = log.error();
        let reason = format!("a {method} request needs no idempotency key");
        for part in [
            "::effects",
            "service.rs:",
            &reason,
            "take `#[idempotent]` off",
        ] {
            assert!(error.contains(part), "{part} in {error}");
        }
    }
    assert_eq!((database.effects(), database.records()), (0, 0));
}

#[actix_web::test]
async fn body_that_a_middleware_has_swallowed_is_missed_and_the_log_says_so() {
    let database = database();
    let app = serve(&database).await;
    let (log, _guard) = Log::capture();
    let request = request("/swallowing/echo", "k").set_payload("one");
    let request = request.insert_header(("content-length", "3"));
    let response = call_service(&app, request.to_request()).await;
    assert_eq!(response.status().as_u16(), 500);
    let error = log.error();
    for part in [
        "::echo",
        "service.rs:",
        "middleware",
        "`ServiceRequest::set_payload`",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
    assert_eq!((database.effects(), database.records()), (0, 0));
}

#[actix_web::test]
async fn mistakes_of_a_handler_are_named_with_its_line() {
    let database = database();
    let app = serve(&database).await;
    let long = Script {
        length: 2000,
        ..Script::default()
    };
    for (path, script, status, part) in [
        (
            "/small",
            long,
            500,
            "longer than `max_response` (1024 bytes)",
        ),
        (
            "/effects",
            Script::of([Step::Panic]),
            500,
            "the handler panicked",
        ),
        (
            "/hurried",
            Script::sleeping(5000),
            503,
            "within its `timeout` of",
        ),
        (
            "/optional",
            Script::of([sql("ROLLBACK")]),
            500,
            "ended the transaction by itself",
        ),
    ] {
        let (log, _guard) = Log::capture();
        let (answered, body) = send(&app, path, "k", &script).await;
        assert_eq!(answered, status, "{body}");
        let error = log.error();
        let handler = path.replace('/', "::");
        for part in [part, &handler, "service.rs:", "nothing is recorded"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        assert!(
            !body.contains("savepoint") && !body.contains("max_response"),
            "{body}"
        );
    }
    let (log, _guard) = Log::capture();
    let request = request("/streamed", "k").set_payload("one fail");
    assert_eq!(
        call_service(&app, request.to_request())
            .await
            .status()
            .as_u16(),
        500
    );
    assert!(
        log.error().contains("body failed while it was read"),
        "{}",
        log.error()
    );
    assert_eq!((database.effects(), database.records()), (0, 0));
}

#[actix_web::test]
async fn panic_of_the_services_code_before_the_handler_is_answered_and_named() {
    let database = database();
    let pool = Kind::pool(&database.url(), 2, Duration::from_secs(5)).await;
    let app = App::new()
        .app_data(web::Data::new(Idempotency::new(pool.clone()).unwrap()))
        .app_data(web::Data::new(Executions::default()))
        .app_data(web::Data::new(pool))
        .app_data(web::JsonConfig::default().content_type(|_| panic!("in an extractor")))
        .configure(routes::configure);
    let app = init_service(app).await;
    for (path, media_type, body, culprit) in [
        ("/effects", "text/plain", "{}", "an extractor panicked"),
        (
            "/custom",
            "application/json",
            "no script",
            "the `fingerprint` function panicked",
        ),
        (
            "/authorized",
            "application/json",
            r#"{"note":"panic"}"#,
            "`authorize` panicked",
        ),
    ] {
        let (log, _guard) = Log::capture();
        let request = request(path, "k").set_payload(body);
        let request = request.insert_header(("content-type", media_type));
        let response = call_service(&app, request.to_request()).await;
        assert_eq!(response.status().as_u16(), 500);
        let error = log.error();
        for part in [culprit, "service.rs:", "did not run"] {
            assert!(error.contains(part), "{part} in {error}");
        }
    }
    assert_eq!((database.effects(), database.records()), (0, 0));
}

#[actix_web::test]
async fn request_without_an_owner_is_explained() {
    let database = database();
    let app = serve(&database).await;
    let (log, _guard) = Log::capture();
    let request = TestRequest::post()
        .uri("/effects")
        .set_json(Script::default());
    let request = request
        .insert_header(("x-account", ""))
        .insert_header(("idempotency-key", "k"));
    assert_eq!(
        call_service(&app, request.to_request())
            .await
            .status()
            .as_u16(),
        400
    );
    // An extractor may be broken; or the client has chosen it, which is no error of the service.
    let text = log.text();
    let warning = text.lines().find(|line| line.contains(" WARN "));
    let warning = warning.unwrap_or_else(|| panic!("a warning in:\n{text}"));
    for part in ["a part of the scope is empty", "service.rs:", "did not run"] {
        assert!(warning.contains(part), "{part} in {warning}");
    }
    assert!(!text.contains(" ERROR "), "{text}");
}

#[actix_web::test]
async fn span_of_a_request_tells_its_outcome_operation_and_eight_digits_of_its_identity() {
    let database = database();
    let app = serve(&database).await;
    let failing = |status| Script::answering(status);
    let mut digits = Vec::new();
    for (key, script, outcome) in [
        ("k", Script::default(), "executed"),
        ("k", Script::default(), "replayed"),
        ("k", failing(200), "key-reused"),
        ("refused", failing(402), "refused"),
        ("released", failing(503), "released"),
        ("a b", Script::default(), "key-invalid"),
        ("panic", Script::of([Step::Panic]), "internal"),
    ] {
        let (log, _guard) = Log::capture();
        send(&app, "/orders/7?q=1", key, &script).await;
        // What runs behind the answer holds the span open.
        let limit = std::time::Instant::now() + Duration::from_secs(10);
        while !log.text().contains("close") && std::time::Instant::now() < limit {
            actix_web::rt::time::sleep(Duration::from_millis(5)).await;
        }
        let text = log.text();
        let close = text
            .lines()
            .find(|line| line.contains("close"))
            .expect(&text);
        for part in [
            &*format!("outcome=\"{outcome}\""),
            "operation=\"POST /orders/{id}\"",
            "::effects",
        ] {
            assert!(close.contains(part), "{part} in {close}");
        }
        assert!(
            !close.contains("/orders/7") && !close.contains("q=1"),
            "{close}"
        );
        let identity = close.split("key=").nth(1).map(|rest| rest[..8].to_owned());
        let identity = identity.unwrap_or_default();
        assert!(
            identity.bytes().all(|digit| digit.is_ascii_hexdigit()),
            "{close}"
        );
        digits.push(identity);
    }
    assert_eq!(digits[0], digits[1]);
    assert_eq!(digits[0], digits[2]);
    assert_ne!(digits[0], digits[3]);
    assert_eq!(digits[5], "", "a malformed key has no identity");
}

#[tokio::test]
async fn neither_key_nor_scope_nor_body_nor_path_is_logged_at_any_level() {
    let database = database();
    let path = database.file("log");
    let log = File::create(&path).unwrap();
    let mut process =
        ServiceProcess::with::<Kind>(PROGRAM, &database, &database.url(), "trace", log.into());
    let request = |key: &'static str, account: &'static str, body: &'static str| {
        let request = process.client.request("/discreet/marker-path?marker=query");
        request
            .account(account)
            .key(key)
            .body("text/marker", body)
            .send()
    };
    let created = StatusCode::CREATED;
    request("marker-key", "marker-scope", "marker-body")
        .await
        .assert(created, false);
    request("marker-key", "marker-scope", "marker-body")
        .await
        .assert(created, true);
    request("marker-key", "marker-scope", "marker-other")
        .await
        .assert_problem(422, "key-reused");
    request("marker key", "marker-scope", "marker-body")
        .await
        .assert_problem(400, "key-invalid");
    request("\"marker-key", "marker-scope", "marker-body")
        .await
        .assert_problem(400, "key-invalid");
    request("marker-key", "", "marker-body")
        .await
        .assert_problem(400, "scope-invalid");
    // The store fails.
    database.run_sql(Engine::REFUSE_CREATED).unwrap();
    request("marker-key-2", "marker-scope", "marker-body")
        .await
        .assert_problem(500, "internal");
    let drop_table = format!("DROP TABLE {}", Engine::RECORDS);
    database.run_sql(&drop_table).unwrap();
    request("marker-key-3", "marker-scope", "marker-body")
        .await
        .assert_problem(503, "store-unavailable");
    process.kill();

    let text = fs::read_to_string(&path).unwrap();
    // It was not silent, and what the driver says of statements is part of it.
    for expected in [
        "idempotent{",
        Kind::LOGGED,
        " TRACE actix_http",
        "migrate()",
    ] {
        assert!(
            text.contains(expected),
            "no `{expected}` in {} lines",
            text.lines().count()
        );
    }
    let leaks: Vec<_> = text
        .lines()
        .filter(|line| line.to_lowercase().contains("marker"))
        .collect();
    assert!(leaks.is_empty(), "{}", leaks.join("\n"));
}
