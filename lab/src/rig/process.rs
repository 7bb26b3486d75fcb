//! One instance of the service under test, in a process of its own.

use std::{
    env, fs,
    io::{self, Read},
    net::SocketAddr,
    path::PathBuf,
    process::{self, Stdio},
    thread,
    time::Duration,
};

use idem_tests::raw_http::Connection;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdin, Command},
    time::timeout,
};

use crate::{Fallible, service::Setup};

/// Ends this process when the other end of its standard input is closed: an orphan would go on holding its port and its
/// sessions.
pub(crate) fn end_with_parent() {
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        process::exit(1);
    });
}

/// A service process that can be killed, stopped and started again at the same address.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) setup: Setup,
    pub(crate) address: SocketAddr,
    /// What stands before the program: `faketime` and its arguments.
    wrapper: Vec<String>,
    environment: Vec<(String, String)>,
    log: PathBuf,
    child: Child,
    /// The service ends when this is closed.
    input: ChildStdin,
    /// Open descriptors when it had started.
    descriptors: usize,
}

impl Service {
    /// Starts one, perhaps below another program and with more in its environment, and waits until it listens.
    ///
    /// # Errors
    ///
    /// When it does not listen in time.
    pub(crate) async fn start(
        setup: Setup,
        log: PathBuf,
        wrapper: Vec<String>,
        environment: Vec<(String, String)>,
    ) -> Fallible<Self> {
        let (child, input, address) = spawn(&setup, &log, &wrapper, &environment).await?;
        let setup = Setup {
            port: address.port(),
            ..setup
        };
        let mut service = Self {
            setup,
            address,
            wrapper,
            environment,
            log,
            child,
            input,
            descriptors: 0,
        };
        service.settle_in().await?;
        Ok(service)
    }

    /// Kills it: SIGKILL, no farewell.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub(crate) async fn kill(&mut self) -> Fallible<()> {
        self.child.kill().await?;
        Ok(())
    }

    /// Starts it again, at the same address.
    ///
    /// # Errors
    ///
    /// When it does not listen in time.
    pub(crate) async fn restart(&mut self) -> Fallible<()> {
        let (child, input, _) =
            spawn(&self.setup, &self.log, &self.wrapper, &self.environment).await?;
        self.child = child;
        self.input = input;
        self.settle_in().await
    }

    /// Waits until its workers serve.
    async fn settle_in(&mut self) -> Fallible<()> {
        self.pool_status().await?;
        self.descriptors = self.count_descriptors();
        Ok(())
    }

    /// Asks how full its pool is: open connections, idle ones, requests that wait.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub(crate) async fn pool_status(&self) -> Fallible<[usize; 3]> {
        let mut connection = Connection::open(self.address).await?;
        let question = "GET /pool HTTP/1.1\r\nhost: lab\r\nconnection: close\r\n\r\n";
        connection.send(question).await?;
        Ok(serde_json::from_slice(&connection.receive().await?.body)?)
    }

    /// Waits until it has ended by itself, and tells whether it did well.
    ///
    /// # Errors
    ///
    /// When it does not end in time.
    pub(crate) async fn ended(&mut self) -> Fallible<bool> {
        let ended = timeout(Duration::from_secs(30), self.child.wait()).await;
        let ended = ended.map_err(|_| "the service did not end within 30 s")?;
        Ok(ended?.success())
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// When it has ended.
    pub(crate) fn signal(&self, signal: Signal) -> Fallible<()> {
        let pid = self
            .child
            .id()
            .and_then(|pid| Pid::from_raw(pid.cast_signed()));
        kill_process(pid.ok_or("the service has ended")?, signal)?;
        Ok(())
    }

    /// How many descriptors it has open beyond those it started with.
    pub(crate) fn more_descriptors(&self) -> usize {
        self.count_descriptors().saturating_sub(self.descriptors)
    }

    fn count_descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.id().unwrap_or_default());
        fs::read_dir(folder).map_or(0, Iterator::count)
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }
}

async fn spawn(
    setup: &Setup,
    log: &PathBuf,
    wrapper: &[String],
    environment: &[(String, String)],
) -> Fallible<(Child, ChildStdin, SocketAddr)> {
    let program = env::current_exe()?;
    let program = program.to_str().ok_or("this program's path is no text")?;
    let setup = serde_json::to_string(setup)?;
    let mut words = wrapper
        .iter()
        .map(String::as_str)
        .chain([program, "serve", &setup]);
    let log = fs::OpenOptions::new().append(true).create(true).open(log)?;
    let mut child = Command::new(words.next().unwrap_or(program))
        .args(words)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()?;
    // Waiting for a child closes its input.
    let input = child.stdin.take().ok_or("the service has no input")?;
    let output = child.stdout.take().ok_or("the service has no output")?;
    let mut lines = BufReader::new(output).lines();
    let line = timeout(Duration::from_secs(20), lines.next_line()).await;
    let line = line.map_err(|_| "the service did not listen within 20 s")??;
    let line = line.ok_or("the service ended before it listened; its log says why")?;
    Ok((child, input, line.parse()?))
}
