//! The guardian: a shell process that runs the server on the owner's behalf and removes everything when the owner is gone.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::error::ClusterError;
use crate::folder::{Folder, User};
use crate::programs::{Programs, shield};

const SCRIPT: &str = include_str!("guardian.sh");

/// Names what the guardian can be asked to do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Errand {
    Create,
    /// Copies the running server at this port, as its standby.
    Copy(u16),
    Start,
    Stop,
    Crash,
}

/// Talks to the process that ends the server and removes its folder as soon as this handle, or the process that holds it, is gone.
#[derive(Debug)]
pub(crate) struct Guardian {
    process: Child,
    // `None` only while dropping. Closing the first of the two is what the guardian waits for.
    line: Mutex<Option<(ChildStdin, BufReader<ChildStdout>)>>,
}

impl Guardian {
    pub(crate) fn spawn(folder: &Folder, programs: &Programs) -> Result<Self, ClusterError> {
        let mut command = Command::new("sh");
        command
            .args(["-c", SCRIPT, "idem-cluster"])
            .args([folder.path(), programs.folder()])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // An interrupt from the terminal is for the owner; the guardian has to outlive it.
            .process_group(0);
        shield(&mut command);
        if let Some(User { user, group }) = folder.server_user() {
            command.uid(user).gid(group);
        }
        let failed = |source| ClusterError::io("start the guardian process", source);
        let mut process = command.spawn().map_err(failed)?;
        let line = process
            .stdin
            .take()
            .zip(process.stdout.take().map(BufReader::new));
        Ok(Self {
            process,
            line: Mutex::new(line),
        })
    }

    /// Has an errand done and waits for its end.
    pub(crate) fn send(&self, errand: Errand, folder: &Folder) -> Result<(), ClusterError> {
        let (word, action) = match errand {
            Errand::Create => ("create".to_owned(), "create a cluster"),
            Errand::Copy(port) => (format!("copy {port}"), "be copied"),
            Errand::Start => ("start".to_owned(), "start"),
            Errand::Stop => ("stop".to_owned(), "stop"),
            Errand::Crash => ("crash".to_owned(), "be stopped at once"),
        };
        match self.ask(&word) {
            Ok(status) if status.trim() == "0" => Ok(()),
            Ok(_) => Err(ClusterError::Server {
                action,
                log: folder.log_tail(),
            }),
            Err(source) => Err(ClusterError::io("reach the guardian process", source)),
        }
    }

    fn ask(&self, word: &str) -> io::Result<String> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let (input, output) = line.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(input, "{word}")?;
        let mut status = String::new();
        output.read_line(&mut status)?;
        Ok(status)
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.line
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        _ = self.process.wait();
    }
}
