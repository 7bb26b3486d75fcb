//! What the attribute adds to the time that a service takes to compile.

use std::{
    fmt::{self, Write as _},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::spread::Spread;
use crate::Fallible;

/// How many handlers each package has.
const HANDLERS: usize = 100;

const WORKSPACE: &str = r#"[workspace]
members = ["by_hand", "guarded"]
resolver = "3"
"#;

const MANIFEST: &str = r#"[package]
name = "NAME"
version = "0.0.0"
edition = "2024"

[dependencies]
actix-web = { version = "4", default-features = false, features = ["macros"] }
deadpool-postgres = { version = "0.14", default-features = false }
idem-runtime = { path = "RUNTIME" }
serde = { version = "1", features = ["derive"] }
"#;

/// What the handlers of both packages share.
const HEAD: &str = r#"
use std::future::{Ready, ready};

use actix_web::{Error, FromRequest, HttpRequest, HttpResponse, dev::Payload, error::ErrorInternalServerError, post, web};
use serde::{Deserialize, Serialize};

#[derive(idem_runtime::ScopeKey)]
pub struct Account {
    id: String,
}

impl FromRequest for Account {
    type Error = Error;
    type Future = Ready<Result<Self, Error>>;

    fn from_request(_: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(Ok(Self { id: "a".into() }))
    }
}

#[derive(Deserialize)]
pub struct NewPayment {
    amount: i64,
}

#[derive(Serialize)]
pub struct Payment {
    id: i64,
    amount: i64,
}
"#;

const BY_HAND: &str = r#"
#[post("/NAME")]
pub async fn NAME(
    account: Account,
    payment: web::Json<NewPayment>,
    pool: web::Data<deadpool_postgres::Pool>,
) -> actix_web::Result<HttpResponse> {
    let mut client = pool.get().await.map_err(ErrorInternalServerError)?;
    let tx = client.transaction().await.map_err(ErrorInternalServerError)?;
    let row = tx
        .query_one("INSERT INTO NAME (account, amount) VALUES ($1, $2) RETURNING id", &[&account.id, &payment.amount])
        .await
        .map_err(ErrorInternalServerError)?;
    tx.commit().await.map_err(ErrorInternalServerError)?;
    Ok(HttpResponse::Created().json(Payment { id: row.get(0), amount: payment.amount }))
}
"#;

const GUARDED: &str = r#"
#[post("/NAME")]
#[idem_runtime::idempotent(scope = account)]
pub async fn NAME(
    account: Account,
    payment: web::Json<NewPayment>,
    tx: &idem_runtime::postgres::Tx,
) -> actix_web::Result<HttpResponse> {
    let row = tx
        .query_one("INSERT INTO NAME (account, amount) VALUES ($1, $2) RETURNING id", &[&account.id, &payment.amount])
        .await
        .map_err(ErrorInternalServerError)?;
    Ok(HttpResponse::Created().json(Payment { id: row.get(0), amount: payment.amount }))
}
"#;

/// CPU time that the compiler takes for 100 handlers, in seconds: the same handlers with a
/// hand-written transaction, and guarded. Dependencies are built before; nothing is incremental.
#[derive(Debug)]
pub(super) struct Compile {
    pub(super) by_hand: Spread,
    pub(super) guarded: Spread,
    /// Guarded by hand-written, of the checks within each round.
    pub(super) check: Spread,
    /// The same of one release build.
    pub(super) release: f64,
}

/// Measures `cargo check` in turns, as often as `rounds` says, and one release build of each.
///
/// # Errors
///
/// When cargo fails.
pub(super) fn measure(rounds: usize) -> Fallible<Compile> {
    let packages = Packages::write()?;
    let mut checks = Vec::new();
    packages.build(&["check"])?;
    for _ in 0..rounds {
        let by_hand = packages.touched("by_hand", &["check"])?;
        checks.push((by_hand, packages.touched("guarded", &["check"])?));
    }
    let release = &["build", "--release"];
    packages.build(release)?;
    let by_hand = packages.touched("by_hand", release)?;
    let guarded = packages.touched("guarded", release)?;
    Ok(Compile {
        by_hand: Spread::of(checks.iter().map(|(by_hand, _)| *by_hand)),
        guarded: Spread::of(checks.iter().map(|(_, guarded)| *guarded)),
        check: Spread::of(checks.iter().map(|(by_hand, guarded)| guarded / by_hand)),
        release: guarded / by_hand,
    })
}

/// The two packages, in a workspace of their own with the versions of ours.
struct Packages {
    folder: PathBuf,
}

impl Packages {
    fn write() -> Fallible<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let root = root.canonicalize()?;
        let folder = root.join("target/compile");
        let runtime = root.join("idem-runtime");
        let manifest = MANIFEST.replace("RUNTIME", &runtime.to_string_lossy());
        for (name, handler) in [("by_hand", BY_HAND), ("guarded", GUARDED)] {
            let package = folder.join(name);
            fs::create_dir_all(package.join("src"))?;
            fs::write(package.join("Cargo.toml"), manifest.replace("NAME", name))?;
            fs::write(package.join("src/lib.rs"), source(handler)?)?;
        }
        fs::write(folder.join("Cargo.toml"), WORKSPACE)?;
        fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
        Ok(Self { folder })
    }

    /// Compiles one package anew and returns what it took.
    fn touched(&self, name: &str, command: &[&str]) -> Fallible<f64> {
        let file = self.folder.join(name).join("src/lib.rs");
        fs::write(&file, fs::read(&file)?)?;
        let before = used_by_children()?;
        self.build(&[command, &["--package", name]].concat())?;
        Ok(used_by_children()? - before)
    }

    fn build(&self, arguments: &[&str]) -> Fallible<()> {
        let status = Command::new("cargo")
            .args(arguments)
            .args(["--quiet", "--offline"])
            .current_dir(&self.folder)
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_TARGET_DIR", self.folder.join("target"))
            .status()?;
        if !status.success() {
            return Err(format!("cargo {} failed", arguments.join(" ")).into());
        }
        Ok(())
    }
}

/// Writes a package's one file.
fn source(handler: &str) -> Result<String, fmt::Error> {
    let mut source = HEAD.to_owned();
    let mut routes = String::new();
    for number in 0..HANDLERS {
        let name = format!("create_{number}");
        source.push_str(&handler.replace("NAME", &name));
        writeln!(routes, "    config.service({name});")?;
    }
    write!(
        source,
        "\npub fn routes(config: &mut web::ServiceConfig) {{\n{routes}}}\n"
    )?;
    Ok(source)
}

/// CPU time of all processes that this one has waited for, in seconds.
fn used_by_children() -> Fallible<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name before it may hold anything.
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
    let mut fields = fields.unwrap_or_default().split(' ').skip(13);
    let mut ticks = || fields.next().unwrap_or_default().parse::<u32>();
    // A tick is 10 ms on every Linux that this is meant for.
    Ok(f64::from(ticks()? + ticks()?) / 100.0)
}
