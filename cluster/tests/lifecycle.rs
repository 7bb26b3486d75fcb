//! A cluster's life from outside: it answers, survives what it should, and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use idem_cluster::{Cluster, ClusterError};

#[test]
fn new_cluster_answers() {
    let cluster = Cluster::start().unwrap();
    cluster.create_database("shop").unwrap();
    assert_eq!(
        cluster
            .run_sql("shop", "SELECT current_database(), 1 + 1")
            .unwrap(),
        "shop|2"
    );
    assert_eq!(
        cluster.url("shop"),
        format!("postgres://postgres@127.0.0.1:{}/shop", cluster.port())
    );
}

#[test]
fn settings_reach_the_server() {
    let cluster = Cluster::builder()
        .setting("fsync", "on")
        .setting("application_name", r"it's a \ test")
        .start()
        .unwrap();
    assert_eq!(cluster.run_sql("postgres", "SHOW fsync").unwrap(), "on");
    // The client gives a name of its own; what the file says is what a reset goes back to.
    let configured = "SELECT setting FROM pg_file_settings WHERE name = 'application_name'";
    assert_eq!(
        cluster.run_sql("postgres", configured).unwrap(),
        r"it's a \ test"
    );
}

#[test]
fn template_is_copied_and_copies_are_dropped_while_in_use() {
    let cluster = Cluster::start().unwrap();
    cluster.create_database("original").unwrap();
    cluster
        .run_sql("original", "CREATE TABLE t AS SELECT 7 AS n")
        .unwrap();
    cluster.create_database_from("copy", "original").unwrap();
    assert_eq!(cluster.run_sql("copy", "SELECT n FROM t").unwrap(), "7");

    let mut sleeper = Command::new(env::current_exe().unwrap());
    let mut sleeper = rerun(
        &mut sleeper,
        "session_held_open",
        &cluster.port().to_string(),
    );
    wait_for("the session", || {
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'copy'";
        cluster.run_sql("postgres", sessions).unwrap() == "1"
    });
    cluster.drop_database("copy").unwrap();
    assert!(matches!(
        cluster.run_sql("copy", "SELECT 1"),
        Err(ClusterError::Client { .. })
    ));
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

#[test]
fn failed_statement_is_an_error_that_carries_the_message() {
    let cluster = Cluster::start().unwrap();
    let error = cluster
        .run_sql("postgres", "SELECT 1; SELECT nonsense")
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("column \"nonsense\" does not exist"),
        "{error}"
    );
}

#[test]
fn data_survive_a_stop_and_a_crash_at_the_same_port() {
    let cluster = Cluster::start().unwrap();
    cluster
        .run_sql("postgres", "CREATE TABLE t (n int)")
        .unwrap();
    cluster.stop_server().unwrap();
    assert!(TcpStream::connect(("127.0.0.1", cluster.port())).is_err());
    cluster.start_server().unwrap();
    cluster
        .run_sql("postgres", "INSERT INTO t VALUES (1)")
        .unwrap();
    cluster.crash_server().unwrap();
    cluster.start_server().unwrap();
    cluster.restart().unwrap();
    assert_eq!(cluster.run_sql("postgres", "SELECT n FROM t").unwrap(), "1");
}

#[test]
fn standby_follows_its_primary_until_it_is_promoted() {
    let primary = Cluster::start().unwrap();
    let standby = Cluster::builder().standby_of(&primary).start().unwrap();
    let create = "CREATE TABLE t AS SELECT 7 AS n";
    primary.run_sql("postgres", create).unwrap();
    wait_for("the standby to have the table", || {
        let seen = standby.run_sql("postgres", "SELECT n FROM t");
        seen.is_ok_and(|seen| seen == "7")
    });
    let refused = standby.run_sql("postgres", "INSERT INTO t VALUES (8)");
    assert!(refused.is_err());

    primary.crash_server().unwrap();
    let promoted = standby.run_sql("postgres", "SELECT pg_promote(true, 60)");
    assert_eq!(promoted.unwrap(), "t");
    standby
        .run_sql("postgres", "INSERT INTO t VALUES (8)")
        .unwrap();
}

#[test]
fn two_clusters_stand_side_by_side() {
    let (one, two) = (Cluster::start().unwrap(), Cluster::start().unwrap());
    one.create_database("only_here").unwrap();
    assert_ne!(one.port(), two.port());
    assert!(two.run_sql("only_here", "SELECT 1").is_err());
}

#[test]
fn nothing_is_left_after_drop() {
    let cluster = Cluster::start().unwrap();
    let remains = Remains::of(&cluster);
    assert!(remains.server_runs());
    drop(cluster);
    assert!(!remains.folder.exists());
    remains.server_ends();
}

#[test]
fn nothing_is_left_after_drop_of_a_stopped_cluster() {
    let cluster = Cluster::start().unwrap();
    let remains = Remains::of(&cluster);
    cluster.stop_server().unwrap();
    drop(cluster);
    assert!(!remains.folder.exists());
}

#[test]
fn nothing_is_left_after_the_owner_was_killed() {
    let parent = Parent::new("owner");
    let (mut owner, remains) = start_owner(&parent);
    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_for("the guardian to clean up", || !remains.folder.exists());
    remains.server_ends();
}

#[test]
#[cfg(target_os = "linux")]
fn next_start_removes_what_a_killed_guardian_could_not() {
    let parent = Parent::new("guardian");
    let (mut owner, remains) = start_owner(&parent);
    signal("-KILL", guardian_of(owner.id()));
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert!(remains.server_runs() && remains.folder.exists());

    let living = Cluster::builder().within(&parent.0).start().unwrap();
    assert!(!remains.folder.exists());
    remains.server_ends();

    let third = Cluster::builder().within(&parent.0).start().unwrap();
    assert_eq!(living.run_sql("postgres", "SELECT 1").unwrap(), "1");
    drop(third);
}

#[test]
fn links_and_files_that_look_like_abandoned_folders_are_left_alone() {
    let parent = Parent::new("bait");
    let elsewhere = Parent::new("elsewhere");
    std::os::unix::fs::symlink(&elsewhere.0, parent.0.join("idem-cluster-link")).unwrap();
    fs::write(parent.0.join("idem-cluster-file"), "").unwrap();
    drop(Cluster::builder().within(&parent.0).start().unwrap());
    assert!(elsewhere.0.exists());
    assert_eq!(fs::read_dir(&parent.0).unwrap().count(), 2);
}

#[test]
fn refused_setting_shows_the_servers_log_and_leaves_nothing() {
    let parent = Parent::new("refused");
    let error = Cluster::builder()
        .within(&parent.0)
        .setting("no_such_setting", "1")
        .start()
        .unwrap_err();
    assert!(
        matches!(&error, ClusterError::Server { action: "start", log } if log.contains("no_such_setting")),
        "{error}"
    );
    assert_eq!(fs::read_dir(&parent.0).unwrap().count(), 0);
}

/// Not a test of its own: the process that is killed.
#[test]
#[ignore = "run by the tests that kill it"]
fn owner_that_waits_for_its_end() {
    let parent = env::var_os(ARGUMENT).unwrap();
    let cluster = Cluster::builder().within(parent).start().unwrap();
    println!("\n{}", cluster.data_dir().display());
    sleep(Duration::from_secs(60));
}

/// Not a test of its own: a client that stays connected.
#[test]
#[ignore = "run by the test that needs a session"]
fn session_held_open() {
    let port: u16 = env::var(ARGUMENT).unwrap().parse().unwrap();
    let mut session = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let parameters = b"\0\x03\0\0user\0postgres\0database\0copy\0\0";
    let length = u32::try_from(parameters.len() + 4).unwrap().to_be_bytes();
    std::io::Write::write_all(&mut session, &[&length[..], parameters].concat()).unwrap();
    session.read_to_end(&mut Vec::new()).unwrap();
}

const ARGUMENT: &str = "IDEM_CLUSTER_TEST_ARGUMENT";

fn rerun(command: &mut Command, test: &str, argument: &str) -> Child {
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(ARGUMENT, argument)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn start_owner(parent: &Parent) -> (Child, Remains) {
    let mut owner = Command::new(env::current_exe().unwrap());
    let mut owner = rerun(
        &mut owner,
        "owner_that_waits_for_its_end",
        parent.0.to_str().unwrap(),
    );
    let lines = BufReader::new(owner.stdout.as_mut().unwrap()).lines();
    let data = lines
        .map(Result::unwrap)
        .find(|line| line.starts_with('/'))
        .unwrap();
    let remains = Remains::at(Path::new(&data));
    assert!(remains.server_runs());
    (owner, remains)
}

/// What must be gone.
struct Remains {
    folder: PathBuf,
    server: u32,
    port: u16,
}

impl Remains {
    fn of(cluster: &Cluster) -> Self {
        Self::at(&cluster.data_dir())
    }

    fn at(data: &Path) -> Self {
        let pid_file = fs::read_to_string(data.join("postmaster.pid")).unwrap();
        let line = |number| pid_file.lines().nth(number).unwrap();
        Self {
            folder: data.parent().unwrap().to_owned(),
            server: line(0).parse().unwrap(),
            port: line(3).parse().unwrap(),
        }
    }

    fn server_runs(&self) -> bool {
        signal("-0", self.server)
    }

    /// Checks that the server was stopped, not just robbed of its files, and waits for its last moments.
    fn server_ends(&self) {
        assert!(TcpStream::connect(("127.0.0.1", self.port)).is_err());
        wait_for("the server's end", || !self.server_runs());
    }
}

/// A folder of the test's own in which clusters are placed.
struct Parent(PathBuf);

impl Parent {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("idem-lifecycle-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(&path, everybody).unwrap();
        Self(path)
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// Finds the one child of the owner.
#[cfg(target_os = "linux")]
fn guardian_of(owner: u32) -> u32 {
    let parent = format!("PPid:\t{owner}\n");
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .find(|process| {
            let status = fs::read_to_string(format!("/proc/{process}/status"));
            status.is_ok_and(|status| status.contains(&parent))
        })
        .unwrap()
}

fn signal(name: &str, process: u32) -> bool {
    // The shell's own `kill`: small systems have no other.
    let command = format!("kill {name} {process} 2>/dev/null");
    Command::new("sh")
        .args(["-c", &command])
        .status()
        .unwrap()
        .success()
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "waited too long for {what}"
        );
        sleep(Duration::from_millis(20));
    }
}
