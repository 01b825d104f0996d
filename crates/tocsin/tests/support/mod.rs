//! Test harness: the real binary in its own folder, and receivers that record requests.

#![allow(dead_code, reason = "each test uses its part")]

pub mod hooks;
pub mod ldap;
pub mod mails;
pub mod postfix;
pub mod push;
pub mod socket_map;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use serde_json::Value;
use tocsin_test_peers::reserved_port;
#[allow(unused_imports, reason = "each test uses its part")]
pub use tocsin_test_peers::{until, until_within, wait_timeout};

/// Timeout of a readiness probe before it is repeated.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Outcome of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Ready,
    Ended(ExitStatus),
    NotReady,
}

/// Server that is killed when the test ends.
pub struct Platform {
    pub folder: PathBuf,
    pub url: String,
    pub client: reqwest::Client,
    /// File for standard error, if the test reads it.
    pub log: Option<PathBuf>,
    environment: Vec<(String, String)>,
    port: u16,
    child: Option<Child>,
    /// Removed with the platform, unless the test owns the folder.
    _temporary: Option<tempfile::TempDir>,
}

impl Platform {
    /// Starts a server on an empty folder and waits until it is ready.
    pub async fn start(environment: &[(&str, &str)]) -> Platform {
        let temporary = tempfile::tempdir().expect("a temporary folder");
        let folder = temporary.path().join("data");
        let mut platform = Platform::prepare(folder, environment);
        platform._temporary = Some(temporary);
        platform.restart().await;
        platform
    }

    /// As `start`, in this folder, which outlives the platform.
    pub async fn start_in(folder: &Path, environment: &[(&str, &str)]) -> Platform {
        let mut platform = Platform::prepare(folder.to_owned(), environment);
        platform.restart().await;
        platform
    }

    /// Prepares a server in this folder without starting it.
    pub fn prepare(folder: PathBuf, environment: &[(&str, &str)]) -> Platform {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let port = reserved_port();
        Platform {
            folder,
            url: format!("http://127.0.0.1:{port}"),
            client: reqwest::Client::builder().timeout(wait_timeout()).build().expect("a client"),
            environment: environment.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
            port,
            log: None,
            child: None,
            _temporary: None,
        }
    }

    /// Starts the process (again) and waits until it is ready.
    pub async fn restart(&mut self) {
        match self.try_restart(|_| false).await {
            Start::Ready => {}
            Start::Ended(status) => {
                panic!("the server ended before it was ready: {status}; TEST_LOG=1 shows its log")
            }
            Start::NotReady => unreachable!("restart waits until it is ready"),
        }
    }

    /// As `restart`, but the process may end before it is ready, or `/readyz` may have a final status.
    pub async fn try_restart(&mut self, is_final: impl Fn(u16) -> bool) -> Start {
        assert!(self.child.is_none(), "it runs");
        let log = match &self.log {
            Some(path) => fs::OpenOptions::new().create(true).append(true).open(path).expect("a log").into(),
            None if std::env::var_os("TEST_LOG").is_some() => Stdio::inherit(),
            None => Stdio::null(),
        };
        let child = self
            .command()
            .arg("serve")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the binary starts");
        self.child = Some(child);
        let ready = format!("{}/readyz", self.url);
        let Platform { client, child, .. } = self;
        let mut start = None;
        // There is no signal before the socket listens.
        until("the server is ready", async || {
            // A connection to a killed process may never report it.
            match client.get(&ready).timeout(PROBE_TIMEOUT).send().await {
                Ok(answer) if answer.status().is_success() => start = Some(Start::Ready),
                Ok(answer) if is_final(answer.status().as_u16()) => start = Some(Start::NotReady),
                _ => {}
            }
            if start.is_none()
                && let Some(status) = child.as_mut().and_then(|child| child.try_wait().ok().flatten())
            {
                *child = None;
                start = Some(Start::Ended(status));
            }
            start.is_some()
        })
        .await;
        start.expect("it was awaited")
    }

    /// Command with this platform's folder and variables.
    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tocsin"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.folder)
            .env("TOCSIN_DATA_FOLDER", &self.folder)
            .env("TOCSIN_HTTP_LISTEN", format!("127.0.0.1:{}", self.port))
            .env("TOCSIN_SERVER", &self.url)
            .env("TOCSIN_LOG_LEVEL", "warn")
            .envs(self.environment.iter().cloned());
        if let Ok(key) = fs::read_to_string(self.folder.join("admin.key")) {
            command.env("TOCSIN_KEY", key.trim());
        }
        command
    }

    /// Runs a command to its end; returns its standard output.
    pub fn run(&self, arguments: &[&str]) -> String {
        let done = self.command().args(arguments).stdin(Stdio::null()).output().expect("the binary starts");
        let error = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "tocsin {arguments:?}: {}\n{error}", done.status);
        String::from_utf8(done.stdout).expect("output is UTF-8")
    }

    /// Kills the process without a handler, as a power loss would.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
    }

    /// Sends SIGTERM and returns the exit code; `None` if the process had to be killed.
    pub fn terminate(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("it runs");
        let process = child.id().to_string();
        let signal = |name: &str| Command::new("kill").args([name, &process]).status().expect("kill runs").success();
        assert!(signal("-TERM"));
        let (ended, ending) = std::sync::mpsc::channel::<()>();
        let timeout = wait_timeout();
        std::thread::scope(|scope| {
            let kill = || signal("-KILL");
            scope.spawn(move || {
                if ending.recv_timeout(timeout) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    kill();
                }
            });
            let status = child.wait().expect("it ends");
            drop(ended);
            status.code()
        })
    }

    /// Exit status, if the process has ended by itself.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        let ended = self.child.as_mut()?.try_wait().expect("asked");
        if ended.is_some() {
            self.child = None;
        }
        ended
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// First admin key.
    pub fn key(&self) -> String {
        fs::read_to_string(self.folder.join("admin.key")).expect("the key is in the data folder").trim().to_owned()
    }

    /// Request with the key.
    pub fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url)).bearer_auth(self.key())
    }

    /// GET of JSON.
    pub async fn get(&self, path: &str) -> Value {
        let answer = self.request(reqwest::Method::GET, path).send().await.expect("an answer");
        let status = answer.status();
        let text = answer.text().await.expect("a body");
        assert!(status.is_success(), "GET {path}: {status} {text}");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Waits until all accepted events are matched and delivered.
    pub async fn settled(&self) {
        // Receipts have no external signal.
        let timeout = wait_timeout() * 3; // Retries have pauses of seconds.
        until_within(timeout, "everything is matched and delivered", async || {
            let backlog = self.get("/v1/status").await["backlog"].clone();
            backlog["event_batches"] == 0 && backlog["notifications"] == 0
        })
        .await;
    }

    /// POST of JSON; returns status and response.
    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.request(reqwest::Method::POST, path).json(body).send().await.expect("an answer");
        let status = answer.status().as_u16();
        (status, answer.json().await.unwrap_or_default())
    }

    /// Applies a definition.
    pub async fn apply(&self, name: &str, yaml: &str) {
        let path = format!("/v1/applications/{name}");
        let request = self.request(reqwest::Method::PUT, &path).header("content-type", "application/yaml");
        let answer = request.body(yaml.to_owned()).send().await.expect("an answer");
        let status = answer.status();
        assert!(status.is_success(), "apply {name}: {status} {}", answer.text().await.unwrap_or_default());
    }

    /// Creates a subscriber with one device, and a subscription.
    pub async fn subscribe(
        &self,
        application: &str,
        class: &str,
        subscriber: &str,
        channel: &str,
        address: &str,
        values: Value,
    ) {
        let device = serde_json::json!({"channel": channel, "address": address});
        let body = serde_json::json!({"id": subscriber, "devices": {"main": device}});
        let (status, answer) = self.post("/v1/subscribers", &body).await;
        assert_eq!(status, 201, "{answer}");
        let body =
            serde_json::json!({"application": application, "class": class, "subscriber": subscriber, "values": values});
        let (status, answer) = self.post("/v1/subscriptions", &body).await;
        assert_eq!(status, 201, "{answer}");
    }
}

impl Drop for Platform {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Seed of a random test: `SEED` or a new one; printed for reproduction.
pub fn seed() -> u64 {
    let seed = match std::env::var("SEED") {
        Ok(seed) => seed.parse().expect("SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    println!("SEED={seed}");
    seed
}

/// Path of a file of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}
