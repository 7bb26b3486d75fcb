//! F7 to F10: disks that are full, failovers, standbys that are gone, and a pooler in between.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use idem_cluster::Cluster;
use rustix::process::geteuid;
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::sleep,
};

use super::{
    Lab, cuts,
    history::Outcome,
    load::{Load, Mix},
    report::Missing,
    trial::{Allowing, Plan, Trial, Verdict},
};
use crate::{
    Fallible,
    rig::{
        database::{Database, SERVICE_SESSIONS},
        proxy::Rule,
    },
    service::Order,
};

/// F7: the disk of the tables is full for a while, and then the disk of the write-ahead log, which stops the server.
pub(super) async fn disk_full(lab: &Lab) -> Fallible<Verdict> {
    if !geteuid().is_root() {
        return Err(
            Missing("only root can mount a small disk: run the lab as root".to_owned()).into(),
        );
    }
    let (disk, tables) = (
        Mounted::new("disk", 220).await?,
        Mounted::new("tables", 6).await?,
    );
    let cluster = Cluster::builder()
        .within(&disk.path)
        .setting("max_wal_size", "64MB")
        .start()?;
    let owner = fs::metadata(cluster.data_dir())?;
    std::os::unix::fs::chown(&tables.path, Some(owner.uid()), Some(owner.gid()))?;
    let plan = Plan {
        server: Some(cluster.port()),
        ..Plan::default()
    };
    let mut trial = Trial::begin(lab, "F7", plan).await?;
    let create = format!(
        "CREATE TABLESPACE small LOCATION '{}'",
        tables.path.display()
    );
    trial.database.execute(&create).await?;
    let move_there =
        "ALTER TABLE effects SET TABLESPACE small; ALTER TABLE idem.records SET TABLESPACE small";
    trial.database.execute(move_there).await?;

    let load = Load::start(&mut trial, &Mix::default());
    let mut refused = 0;
    for _ in 0..lab.times(6, 40) {
        sleep(Duration::from_millis(150)).await;
        trial.history.fault("the disk of the tables is full");
        let before = trial.log(0).matches("53100").count();
        let ballast = tables.fill()?;
        sleep(Duration::from_millis(300)).await;
        fs::remove_file(ballast)?;
        refused += trial.log(0).matches("53100").count() - before;
    }
    for _ in 0..lab.times(1, 8) {
        sleep(Duration::from_millis(300)).await;
        trial
            .history
            .fault("the disk of the write-ahead log is full");
        let ballast = disk.fill()?;
        // The server stops itself once it needs a new segment.
        let database = trial.database.clone();
        let stopped = Instant::now() + Duration::from_secs(5);
        while Instant::now() < stopped
            && tokio_postgres::connect(&database.url(), tokio_postgres::NoTls)
                .await
                .is_ok()
        {
            let switching = database.execute("SELECT pg_switch_wal()");
            let _ = tokio::time::timeout(Duration::from_millis(500), switching).await;
        }
        fs::remove_file(ballast)?;
        // It may have come back by itself, or be at it: that is no time for an orderly stop.
        let _ = cluster.crash_server();
        cluster.start_server()?;
    }
    load.stop().await;
    trial.note(format!("a full disk refused {refused} records"));
    trial.end(Allowing::default()).await
}

/// A small file system in memory, unmounted when dropped.
struct Mounted {
    path: PathBuf,
}

impl Mounted {
    async fn new(name: &str, megabytes: usize) -> Fallible<Self> {
        // Not below the lab's own folder, which others may not enter.
        let path = std::env::temp_dir().join(format!("idem-lab-{}-{name}", std::process::id()));
        fs::create_dir_all(&path)?;
        let mounted = Self { path };
        let options = format!("size={megabytes}m,mode=1777");
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(&mounted.path)
            .status()
            .await?;
        if !status.success() {
            return Err(Missing(
                "a small disk cannot be mounted here: run the lab as root, outside of a container"
                    .to_owned(),
            )
            .into());
        }
        Ok(mounted)
    }

    /// Fills it with one file.
    fn fill(&self) -> Fallible<PathBuf> {
        let path = self.path.join("ballast");
        let mut file = fs::File::create(&path)?;
        let zeros = vec![0; 4096];
        // Until there is no room.
        while std::io::Write::write_all(&mut file, &zeros).is_ok() {}
        Ok(path)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .arg("--lazy")
            .arg(&self.path)
            .status();
        let _ = fs::remove_dir(&self.path);
    }
}

/// F8: the primary crashes under load and its standby is promoted; an asynchronous one may lose the last commits,
/// effect and record together, a synchronous one none.
pub(super) async fn failover(lab: &Lab) -> Fallible<Verdict> {
    let times = lab.times(1, 8);
    let mut asynchronous = one_failover(lab, false).await?;
    for _ in 1..times {
        asynchronous = asynchronous.and(one_failover(lab, false).await?);
    }
    let mut synchronous = one_failover(lab, true).await?;
    for _ in 1..times {
        synchronous = synchronous.and(one_failover(lab, true).await?);
    }
    let mut verdict = asynchronous.and(synchronous);
    verdict.notes.push(format!(
        "{times} failovers to an asynchronous standby lost {} acknowledgements, effect and record together; {times} to a synchronous one lost none",
        verdict.lost
    ));
    Ok(verdict)
}

async fn one_failover(lab: &Lab, synchronous: bool) -> Fallible<Verdict> {
    let primary = Cluster::start()?;
    let standby = Cluster::builder().standby_of(&primary).start()?;
    let plan = Plan {
        server: Some(primary.port()),
        ..Plan::default()
    };
    let mut trial = Trial::begin(lab, "F8", plan).await?;
    let streams = "SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'";
    trial
        .database
        .until(streams, Duration::from_secs(10))
        .await?;
    if synchronous {
        // One statement a text: this one cannot run inside a transaction.
        trial
            .database
            .execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            .await?;
        trial.database.execute("SELECT pg_reload_conf()").await?;
        let synchronous = "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'";
        trial
            .database
            .until(synchronous, Duration::from_secs(10))
            .await?;
    }
    let load = Load::start(&mut trial, &Mix::default());
    sleep(Duration::from_millis(1000 + trial.rng.u64(0..300))).await;

    let copy = Database {
        port: standby.port(),
        ..trial.database.clone()
    };
    // The standby is cut off first: what comes from here on it does not receive.
    copy.execute("ALTER SYSTEM SET primary_conninfo = ''")
        .await?;
    copy.execute("SELECT pg_reload_conf()").await?;
    let cut_off = "SELECT count(*) = 0 FROM pg_stat_wal_receiver";
    copy.until(cut_off, Duration::from_secs(10)).await?;
    sleep(Duration::from_millis(60)).await;
    trial.history.fault(if synchronous {
        "failover to a synchronous standby"
    } else {
        "failover to an asynchronous standby"
    });
    primary.crash_server()?;
    if copy
        .number("SELECT pg_promote(true, 30)::int::bigint")
        .await?
        != 1
    {
        return Err("the standby was not promoted".into());
    }
    trial.proxy.fail_over(standby.port());
    trial.database = copy;
    sleep(Duration::from_millis(700)).await;
    load.stop().await;
    let allowing = Allowing {
        lossy: !synchronous,
    };
    trial.end(allowing).await
}

/// F9: the synchronous standby is gone, COMMITs wait for it, and are cancelled: they are committed here and nowhere
/// else. Before the service has given up on it, such a COMMIT looks like any other, which the documentation says.
pub(super) async fn cancelled_commit(lab: &Lab) -> Fallible<Verdict> {
    let cluster = Cluster::start()?;
    let plan = Plan {
        server: Some(cluster.port()),
        database_timeout: Duration::from_millis(400),
        ..Plan::default()
    };
    let mut trial = Trial::begin(lab, "F9", plan).await?;
    let server = trial.database.clone();
    // Statements are prepared before commits begin to wait.
    let first = trial.fresh("/pay", Order::default());
    trial.client.once(0, &first).await;
    server
        .execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        .await?;
    server.execute("SELECT pg_reload_conf()").await?;
    sleep(Duration::from_millis(200)).await;
    let mut acknowledged = 0;
    let times = lab.times(6, 60);
    for time in 0..times {
        let request = trial.fresh("/pay", Order::default());
        let (client, sent) = (trial.client.clone(), Arc::clone(&request));
        let asked = tokio::spawn(async move { client.once(0, &sent).await });
        let waits =
            format!("SELECT count(*) = 1 FROM {SERVICE_SESSIONS} AND wait_event = 'SyncRep'");
        server.until(&waits, Duration::from_secs(5)).await?;
        // Half of them are cancelled once the service has given up.
        let given_up = time % 2 == 1;
        sleep(Duration::from_millis(if given_up { 600 } else { 50 })).await;
        trial
            .history
            .fault("a COMMIT that waits for a standby is cancelled");
        let cancel = format!(
            "SELECT pg_cancel_backend(pid) FROM {SERVICE_SESSIONS} AND wait_event = 'SyncRep'"
        );
        server.execute(&cancel).await?;
        let outcome: Outcome = asked.await?;
        acknowledged += usize::from(outcome.status() == Some(201) && !given_up);
        trial.expect(
            matches!(outcome.status(), Some(201 | 503)),
            format!("a cancelled COMMIT was answered {outcome:?}"),
        );
    }
    trial.note(format!("{acknowledged} of {} COMMITs that were cancelled before the service had given up were acknowledged with 201 (a stated limit)", times.div_ceil(2)));
    server
        .execute("ALTER SYSTEM SET synchronous_standby_names = ''")
        .await?;
    server.execute("SELECT pg_reload_conf()").await?;
    trial.end(Allowing::default()).await
}

/// F10: PgBouncer in transaction mode, with fewer connections than the service's pool, and cuts before it.
pub(super) async fn pooler(lab: &Lab) -> Fallible<Verdict> {
    if !super::is_installed("pgbouncer") {
        return Err(Missing(
            "the program `pgbouncer` is missing: apt-get install pgbouncer".to_owned(),
        )
        .into());
    }
    let pooler = Pooler::start(lab).await?;
    let plan = Plan {
        pool: 6,
        pooler: Some(pooler.port),
        ..Plan::default()
    };
    let mut trial = Trial::begin(lab, "F10", plan).await?;
    let load = Load::start(&mut trial, &Mix::default());
    let few: Vec<_> = cuts::around_commit()
        .into_iter()
        .map(|rule| Rule {
            chance: rule.chance / 4.0,
            ..rule
        })
        .collect();
    trial.proxy.set_rules(&few);
    let end = Instant::now() + lab.time(5.0, 60.0);
    while Instant::now() < end {
        sleep(Duration::from_millis(250)).await;
        let sessions = format!("SELECT count(*) FROM {SERVICE_SESSIONS}");
        let sessions = trial.database.number(&sessions).await?;
        trial.expect(
            sessions <= 2,
            format!("{sessions} sessions behind a pooler of 2"),
        );
    }
    trial.proxy.set_rules(&[]);
    load.stop().await;
    let log = trial.log(0);
    let lost = log.matches("26000").count() + log.matches("42P05").count();
    trial.expect(
        lost == 0,
        format!("{lost} prepared statements were lost or there already"),
    );
    trial.end(Allowing::default()).await
}

/// A PgBouncer of the lab's own.
struct Pooler {
    port: u16,
    /// Killed when dropped.
    _child: Child,
}

impl Pooler {
    async fn start(lab: &Lab) -> Fallible<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let settings = lab.folder.join("pgbouncer.ini");
        fs::write(
            &settings,
            format!(
                "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
             default_pool_size = 2\nmax_client_conn = 200\n",
                lab.cluster.port()
            ),
        )?;
        // It does not run as root; the server's user will do.
        let owner = fs::metadata(lab.cluster.data_dir())?;
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"]
            .into_iter()
            .find(|path| Path::new(path).exists());
        let child = Command::new(program.unwrap_or("pgbouncer"))
            .arg(&settings)
            .uid(owner.uid())
            .gid(owner.gid())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            if start.elapsed() > Duration::from_secs(10) {
                return Err("pgbouncer does not listen".into());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(Self {
            port,
            _child: child,
        })
    }
}
