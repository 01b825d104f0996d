//! Child processes that are killed when their owner is dropped.

use std::{
    fs,
    path::PathBuf,
    process::{self, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::failure::{Failure, Outcome};

/// Maximum time until a started server answers.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Child process of a server under test or of a peer. Killed on drop.
#[derive(Debug)]
pub struct Child {
    process: process::Child,
    what: String,
    log: PathBuf,
}

impl Child {
    /// Starts a server with its output redirected to a log file.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub fn start(command: &mut process::Command, what: &str, log: PathBuf) -> Outcome<Self> {
        let file = fs::File::create(&log).map_err(|error| Failure::file("make the log", &log, &error))?;
        let same = file.try_clone().map_err(|error| Failure::file("share the log", &log, &error))?;
        let process = command.stdin(Stdio::null()).stdout(file).stderr(same).spawn();
        let process = process.map_err(|error| Failure::failed(format!("cannot start {what}: {error}")))?;
        Ok(Child { process, what: what.to_owned(), log })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Polls `answers` each millisecond until it returns true; returns the time since `started`.
    ///
    /// # Errors
    /// If the process ends, or does not answer in time.
    pub async fn until(&mut self, started: Instant, mut answers: impl AsyncFnMut() -> bool) -> Outcome<Duration> {
        loop {
            if answers().await {
                return Ok(started.elapsed());
            }
            if let Ok(Some(status)) = self.process.try_wait() {
                return Err(self.ended(status));
            }
            if started.elapsed() > TIMEOUT {
                let last = self.log_tail();
                return Err(Failure::failed(format!("{} did not answer in time", self.what)).detail(last));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Fails if the process has ended.
    ///
    /// # Errors
    /// The process has ended; the error contains the end of its log.
    pub fn check_running(&mut self) -> Outcome {
        match self.process.try_wait() {
            Ok(Some(status)) => Err(self.ended(status)),
            _ => Ok(()),
        }
    }

    /// Sends SIGTERM and waits for the end; kills the process if it does not end in time.
    pub async fn terminate(mut self) {
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let asked = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) && asked.elapsed() < TIMEOUT {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn ended(&self, status: ExitStatus) -> Failure {
        Failure::failed(format!("{} ended: {status}", self.what)).detail(self.log_tail())
    }

    fn log_tail(&self) -> String {
        let text = fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n  ")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a program to its end and returns its output. Killed when the future is dropped.
///
/// # Errors
/// If the program cannot be started, fails, or takes longer than `patience`.
pub async fn run(command: &mut tokio::process::Command, what: &str, patience: Duration) -> Outcome<String> {
    let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = match tokio::time::timeout(patience, running).await {
        Ok(output) => output.map_err(|error| Failure::failed(format!("cannot run {what}: {error}")))?,
        Err(_) => return Err(Failure::failed(format!("{what} did not finish within {} s", patience.as_secs()))),
    };
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let last = words.lines().last().unwrap_or_default().to_owned();
        return Err(Failure::failed(format!("{what} failed: {}", output.status)).detail(last));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Reserves a TCP port of 127.0.0.1 for a server or a peer, until this process ends.
///
/// # Errors
/// If there is no free port.
pub fn reserve_port() -> Outcome<u16> {
    tocsin_test_peers::reserve_port().map_err(|error| Failure::failed("there is no free port").because(&error))
}

/// Whether a server listens on this port.
pub async fn listens(port: u16) -> bool {
    tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()
}
