//! The service under test: a scripted handler under many attributes, in this process or in one of its own.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::unused_async,
    clippy::unwrap_used,
    reason = "a service that cannot be set up, or whose answers are not what they should be, fails its test"
)]

pub mod bare;
mod db;
pub mod handlers;
pub mod script;
pub mod unscripted;

use std::{
    env,
    fs::{File, OpenOptions},
    future::Future,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use actix_web::{App, HttpServer, dev::ServerHandle, web};
use idem_runtime::{Builder, Idempotency};
use reqwest::{Method, StatusCode, header::HeaderMap};
use script::Script;
use tokio::sync::oneshot;

use crate::{
    database::Database,
    kinds::{Deadpool, Kind, Sqlite, SqlxPostgres},
};

/// The handlers, with deadpool-postgres's transaction.
pub mod deadpool {
    super::handlers::handlers!(crate::kinds::Deadpool, &idem_runtime::postgres::Tx);
}

/// The handlers, with sqlx's transaction of PostgreSQL.
pub mod sqlx_postgres {
    super::handlers::handlers!(crate::kinds::SqlxPostgres, &mut sqlx::PgConnection);
}

/// The handlers, with sqlx's transaction of SQLite.
pub mod sqlite {
    super::handlers::handlers!(crate::kinds::Sqlite, &mut sqlx::SqliteConnection);
}

/// How a service is to be set up; the default suits most tests.
pub struct Setup<K: Kind> {
    /// Connections in the pool.
    pub pool: usize,
    /// How long a request waits for one.
    pub pool_wait: Duration,
    /// How many workers serve.
    pub workers: usize,
    /// What the test changes about the builder.
    pub configure: fn(Builder<K::Pool>) -> Builder<K::Pool>,
    /// What the test changes about the app.
    pub routes: fn(&mut web::ServiceConfig),
}

impl<K: Kind> Default for Setup<K> {
    fn default() -> Self {
        Self {
            pool: 4,
            pool_wait: Duration::from_secs(5),
            workers: 2,
            configure: |builder| builder,
            routes: K::routes,
        }
    }
}

impl<K: Kind> std::fmt::Debug for Setup<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup").finish_non_exhaustive()
    }
}

/// Counts how often handlers ran in one service.
#[derive(Clone, Debug, Default)]
pub struct Executions {
    count: Arc<AtomicUsize>,
    /// Outlives the process.
    file: Option<Arc<File>>,
}

impl Executions {
    /// Counts in a file as well, which several processes may share.
    fn in_file(path: impl AsRef<Path>) -> std::io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self {
            file: Some(Arc::new(file)),
            ..Self::default()
        })
    }

    pub(crate) fn count(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if let Some(mut file) = self.file.as_deref() {
            file.write_all(b".").unwrap();
        }
    }

    /// How often a handler has begun to run.
    #[must_use]
    pub fn get(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

/// A service inside the test's process, stopped when dropped.
pub struct Service<K: Kind> {
    /// Sends requests to it.
    pub client: Client,
    /// What guards its handlers.
    pub idempotency: Idempotency<K::Backend>,
    /// Its pool.
    pub pool: K::Pool,
    /// How often its handlers ran.
    pub executions: Executions,
    /// Stops it.
    pub handle: ServerHandle,
    thread: Option<JoinHandle<()>>,
}

impl<K: Kind> Service<K> {
    /// Starts a service over a database.
    pub async fn start(url: &str) -> Self {
        Self::with(url, Setup::default()).await
    }

    /// Starts a service that is set up in the test's own way.
    pub async fn with(url: &str, setup: Setup<K>) -> Self {
        let pool = K::pool(url, setup.pool, setup.pool_wait).await;
        Self::over(pool, setup).await
    }

    /// Starts a service over a pool that the test has opened.
    pub async fn over(pool: K::Pool, setup: Setup<K>) -> Self {
        let idempotency = (setup.configure)(Idempotency::builder(pool.clone()))
            .build()
            .unwrap();
        let executions = Executions::default();
        let data = (idempotency.clone(), executions.clone(), pool.clone());
        let (sender, started) = oneshot::channel();
        // actix wants a system of its own; tokio's tests have another runtime.
        let thread = thread::spawn(move || {
            actix_web::rt::System::new().block_on(async move {
                let (idempotency, executions, pool) = data;
                let server = HttpServer::new(move || {
                    App::new()
                        .app_data(web::Data::new(idempotency.clone()))
                        .app_data(web::Data::new(executions.clone()))
                        .app_data(web::Data::new(pool.clone()))
                        .configure(setup.routes)
                })
                .workers(setup.workers)
                .disable_signals()
                .bind("127.0.0.1:0")
                .unwrap();
                let address = server.addrs()[0];
                let server = server.run();
                sender.send((address, server.handle())).unwrap();
                server.await.unwrap();
            });
        });
        let (address, handle) = started.await.unwrap();
        Self {
            client: Client::new(format!("http://{address}")),
            idempotency,
            pool,
            executions,
            handle,
            thread: Some(thread),
        }
    }

    /// Sends a scripted request to `/effects`, as account `a`.
    pub async fn post(&self, key: &str, script: &Script) -> Reply {
        self.client
            .request("/effects")
            .key(key)
            .script(script)
            .send()
            .await
    }
}

impl<K: Kind> std::fmt::Debug for Service<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

impl<K: Kind> Drop for Service<K> {
    fn drop(&mut self) {
        // Queued at once; what it returns only tells when it is over.
        drop(self.handle.stop(false));
        if let Some(thread) = self.thread.take() {
            // A service that panicked has already failed its test.
            let _ = thread.join();
        }
    }
}

/// A service in a process of its own, so that it can be killed.
#[derive(Debug)]
pub struct ServiceProcess {
    /// Sends requests to it.
    pub client: Client,
    child: Child,
}

impl ServiceProcess {
    /// Starts the program at `program` (the test knows where cargo put it) over a database.
    #[must_use]
    pub fn start<K: Kind>(program: &str, database: &Database<K::Engine>) -> Self {
        Self::with::<K>(program, database, &database.url(), "off", Stdio::null())
    }

    /// Starts it with another way to the database, a log filter, and a place for its log.
    #[must_use]
    pub fn with<K: Kind>(
        program: &str,
        database: &Database<K::Engine>,
        url: &str,
        filter: &str,
        log: Stdio,
    ) -> Self {
        let mut child = Command::new(program)
            .env("BACKEND", K::NAME)
            .env("DATABASE_URL", url)
            .env("EXECUTIONS", database.begun_file())
            .env("RUST_LOG", filter)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut address = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut address).unwrap();
        let client = Client::new(format!("http://{}", address.trim()));
        Self { client, child }
    }

    /// Kills it: SIGKILL, no farewell.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to stop (SIGTERM) and waits until it has.
    pub fn terminate(&mut self) {
        self.signal("TERM");
        assert!(self.child.wait().unwrap().success());
    }

    /// Sends it a signal, such as `STOP` and `CONT`.
    pub fn signal(&self, name: &str) {
        let (signal, pid) = (format!("-{name}"), self.child.id().to_string());
        Command::new("kill").args([signal, pid]).status().unwrap();
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for ServiceProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves as a process of its own: what the test program `service` does. Prints its address, and stops on SIGTERM in
/// the order that the documentation shows.
///
/// # Errors
/// When the address is taken.
pub async fn serve_as_process() -> std::io::Result<()> {
    let backend = env::var("BACKEND").expect("BACKEND names the backend");
    match &*backend {
        Deadpool::NAME => serve::<Deadpool>().await,
        SqlxPostgres::NAME => serve::<SqlxPostgres>().await,
        Sqlite::NAME => serve::<Sqlite>().await,
        unknown => panic!("there is no backend `{unknown}`"),
    }
}

async fn serve<K: Kind>() -> std::io::Result<()> {
    let url = env::var("DATABASE_URL").expect("DATABASE_URL names the database");
    let pool = K::pool(&url, 4, Duration::from_secs(5)).await;
    let idempotency = Idempotency::new(pool.clone()).unwrap();
    let draining = idempotency.clone();
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let executions = Executions::in_file(env::var("EXECUTIONS").expect("EXECUTIONS names a file"))?;
    let server = HttpServer::new(move || {
        App::new()
            .app_data(web::Data::new(idempotency.clone()))
            .app_data(web::Data::new(executions.clone()))
            .app_data(web::Data::new(pool.clone()))
            .configure(K::routes)
    })
    .workers(2)
    .shutdown_signal(async move {
        terminated.recv().await;
        draining.drain().await;
    })
    .bind("127.0.0.1:0")?;
    println!("{}", server.addrs()[0]);
    server.run().await
}

/// Sends requests to one service.
#[derive(Clone, Debug)]
pub struct Client {
    /// Where the service is: `http://127.0.0.1:4711`.
    pub base: String,
    http: reqwest::Client,
}

impl Client {
    fn new(base: String) -> Self {
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(60))
            // An answer is looked at as it comes, over a connection that no other test request has had.
            .redirect(reqwest::redirect::Policy::none())
            .pool_max_idle_per_host(0)
            .build()
            .unwrap();
        Self { base, http }
    }

    /// Where the service is, for a bare socket.
    #[must_use]
    pub fn address(&self) -> &str {
        self.base.trim_start_matches("http://")
    }

    /// Begins a POST, as account `a`.
    #[must_use]
    pub fn request(&self, path: &str) -> Request {
        self.method(Method::POST, path)
    }

    /// Begins a request, as account `a`.
    #[must_use]
    pub fn method(&self, method: Method, path: &str) -> Request {
        let request = self.http.request(method, format!("{}{path}", self.base));
        Request {
            request: request.header("x-account", "a"),
            account: None,
        }
    }
}

/// A request that is being put together.
#[derive(Debug)]
pub struct Request {
    request: reqwest::RequestBuilder,
    account: Option<String>,
}

impl Request {
    /// Sets the idempotency key.
    #[must_use]
    pub fn key(self, key: &str) -> Self {
        self.header("idempotency-key", key)
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.request = self.request.header(name, value);
        self
    }

    /// Acts as another account than `a`.
    #[must_use]
    pub fn account(mut self, account: &str) -> Self {
        self.account = Some(account.to_owned());
        self
    }

    /// Sets a body with its content type.
    #[must_use]
    pub fn body(mut self, media_type: &str, body: impl Into<reqwest::Body>) -> Self {
        self.request = self.request.header("content-type", media_type).body(body);
        self
    }

    /// Sets the script as a JSON body.
    #[must_use]
    pub fn script(self, script: &Script) -> Self {
        self.body("application/json", serde_json::to_vec(script).unwrap())
    }

    /// Sends it.
    ///
    /// # Panics
    /// When there is no answer.
    pub async fn send(self) -> Reply {
        self.try_send().await.expect("an answer")
    }

    /// Sends it, and may get no answer.
    pub fn try_send(self) -> impl Future<Output = Result<Reply, reqwest::Error>> + Send {
        let (http, request) = self.request.build_split();
        let request = request.map(|mut request| {
            if let Some(account) = self.account {
                request
                    .headers_mut()
                    .insert("x-account", account.parse().unwrap());
            }
            request
        });
        async move { Reply::read(http.execute(request?).await?).await }
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: bytes::Bytes,
}

impl Reply {
    async fn read(response: reqwest::Response) -> Result<Self, reqwest::Error> {
        Ok(Self {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.bytes().await?,
        })
    }

    /// Whether it says that it is a repeat of a stored answer.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.headers
            .get("idempotent-replayed")
            .is_some_and(|value| value == "true")
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The end of the problem document's type, such as `in-progress`; empty for other answers.
    #[must_use]
    pub fn problem(&self) -> String {
        if self
            .headers
            .get("content-type")
            .is_none_or(|value| value != "application/problem+json")
        {
            return String::new();
        }
        let document: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(document["status"], self.status, "{document}");
        assert!(
            document["title"].is_string() && document["detail"].is_string(),
            "{document}"
        );
        let kind = document["type"].as_str().unwrap();
        kind.strip_prefix("urn:problem-type:idempotency:")
            .unwrap()
            .to_owned()
    }

    /// Checks the status of an answer that is the handler's own, or a repeat of one.
    ///
    /// # Panics
    /// When the answer is another.
    pub fn assert(&self, status: StatusCode, replay: bool) -> &Self {
        assert_eq!(
            (self.status, self.is_replay()),
            (status.as_u16(), replay),
            "{}",
            String::from_utf8_lossy(&self.body)
        );
        self
    }

    /// Checks that it is a problem document of this kind.
    ///
    /// # Panics
    /// When the answer is another.
    pub fn assert_problem(&self, status: u16, kind: &str) -> &Self {
        assert_eq!(
            (self.status, &*self.problem()),
            (status, kind),
            "{}",
            String::from_utf8_lossy(&self.body)
        );
        self
    }
}
