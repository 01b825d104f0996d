//! Server under test: `tocsin serve` as a child process with its own folder.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use bytes::Bytes;
use reqwest::{Method, header::CONTENT_TYPE};
use serde_json::Value;
use tokio::sync::mpsc;

use super::{
    child_process::{Child, reserve_port},
    context::Context,
    http_client::Connection,
    progress::{CountedProgress, Progress},
};
use crate::{
    client::{ADMIN_KEY_FILE, Client, segment, with_query},
    failure::{Failure, Outcome},
};

/// Time without progress after which a delivery counts as stalled.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Minimum pause between two progress requests to the server.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// Precision of polled times: one part in this many.
const POLL_PRECISION: u32 = 50;
/// Chunk size of an import request body.
const PART_BYTES: usize = 256 << 10;

/// Running server. Killed on drop.
pub struct Server {
    /// HTTP port.
    pub port: u16,
    /// Admin API key.
    pub key: String,
    /// Data folder.
    pub folder: PathBuf,
    /// Time from its start to the first 200 at `/readyz`.
    pub ready_after: Duration,
    client: Client,
    process: Child,
    progress: Progress,
}

impl Server {
    /// Starts a server on `data` below this folder and waits until it is ready.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn start(context: &Context, folder: &Path) -> Outcome<Self> {
        Server::start_with(context, folder, &[]).await
    }

    /// Starts a server with additional environment variables.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn start_with(context: &Context, folder: &Path, variables: &[(&str, &str)]) -> Outcome<Self> {
        let (data, port) = (folder.join("data"), reserve_port()?);
        let mut command = Command::new(&context.program);
        // Isolated from the environment: no configuration file, no variables.
        command
            .arg("serve")
            .current_dir(folder)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", folder)
            .env("TOCSIN_DATA_FOLDER", &data)
            .env("TOCSIN_HTTP_LISTEN", format!("127.0.0.1:{port}"))
            .env("TOCSIN_LOG_LEVEL", "warn")
            .envs(variables.iter().copied());
        let started = Instant::now();
        let mut process = Child::start(&mut command, "tocsin serve", folder.join("log"))?;
        let ready_after = process.until(started, async || is_ready(port).await.unwrap_or(false)).await?;
        let file = data.join(ADMIN_KEY_FILE);
        let key = fs::read_to_string(&file)
            .map_err(|error| Failure::file("read the key from", &file, &error))?
            .trim()
            .to_owned();
        let client = Client::new(format!("http://127.0.0.1:{port}"), Some(key.clone()))?;
        Ok(Server { port, key, folder: data, ready_after, client, process, progress: context.progress.clone() })
    }

    /// Sends SIGTERM and waits until the server has ended.
    pub async fn stop(self) {
        self.process.terminate().await;
    }

    /// Applies a definition.
    ///
    /// # Errors
    /// If the definition is rejected.
    pub async fn apply(&self, application: &str, definition: &str) -> Outcome {
        let path = format!("/v1/applications/{}", segment(application));
        let request = self.client.request(Method::PUT, &path).header(CONTENT_TYPE, "application/yaml");
        self.client.send(request.body(definition.to_owned())).await?;
        Ok(())
    }

    /// Streams NDJSON subscribers into an import. Returns the number stored and the duration.
    ///
    /// # Errors
    /// If a line is rejected.
    pub async fn import_subscribers(&self, write: impl Lines) -> Outcome<(u64, Duration)> {
        self.import("/v1/import/subscribers".to_owned(), write).await
    }

    /// Streams NDJSON subscriptions of one class into an import.
    ///
    /// # Errors
    /// If a line is rejected.
    pub async fn import_subscriptions(
        &self,
        application: &str,
        class: &str,
        write: impl Lines,
    ) -> Outcome<(u64, Duration)> {
        self.import(with_query("/v1/import/subscriptions", &[("application", application), ("class", class)]), write)
            .await
    }

    async fn import(&self, path: String, write: impl Lines) -> Outcome<(u64, Duration)> {
        let (parts, body) = mpsc::channel::<io::Result<Bytes>>(16);
        let writing = tokio::task::spawn_blocking(move || {
            let mut out = ChunkWriter { parts, part: Vec::with_capacity(PART_BYTES) };
            // If the server closed the connection, its response has the reason.
            let _ = write(&mut out).and_then(|()| out.flush());
        });
        let body = futures_util::stream::unfold(body, |mut body| async { body.recv().await.map(|part| (part, body)) });
        let request = self.client.request(Method::POST, &path).header(CONTENT_TYPE, "application/x-ndjson");
        let started = Instant::now();
        let answer = self.client.send(request.body(reqwest::Body::wrap_stream(body))).await?;
        let text = answer.text().await.map_err(|error| self.client.unreachable(&error))?;
        let took = started.elapsed();
        let _ = writing.await;
        let last: Value = text.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
        match (last["stored"].as_u64(), last["failed"].as_u64()) {
            (Some(stored), Some(0)) => Ok((stored, took)),
            _ => Err(Failure::failed("not all lines were imported").detail(text.lines().next().unwrap_or_default())),
        }
    }

    /// Status of the server.
    ///
    /// # Errors
    /// If it does not respond.
    pub async fn status(&self) -> Outcome<Value> {
        self.client.get("/v1/status", &[]).await
    }

    /// Posts JSON events of a class over a new connection; they are durable on return.
    ///
    /// # Errors
    /// If they are rejected.
    pub async fn publish(&self, application: &str, class: &str, events: &Value) -> Outcome {
        self.client
            .post(&format!("/v1/applications/{}/events/{}", segment(application), segment(class)), events)
            .await?;
        Ok(())
    }

    /// Sends a broadcast.
    ///
    /// # Errors
    /// If the server refuses it.
    pub async fn send_broadcast(&self, draft: &Value) -> Outcome {
        self.client.post("/v1/broadcasts", draft).await?;
        Ok(())
    }

    /// Number of delivered notifications since the folder was created.
    ///
    /// # Errors
    /// If the server does not respond.
    pub async fn delivered(&self) -> Outcome<u64> {
        Ok(self.status().await?["totals"]["attempts"]["delivered"].as_u64().unwrap_or_default())
    }

    /// Waits until `wanted` notifications are delivered, with durable receipts. Returns the last status.
    ///
    /// # Errors
    /// If a delivery fails, or there is no progress any more.
    pub async fn until_delivered(&mut self, wanted: u64) -> Outcome<Value> {
        let begun = Instant::now();
        let (mut before, mut moved) = (0, begun);
        let mut way: Option<(u64, CountedProgress)> = None;
        loop {
            let status = self.status().await?;
            let attempts = &status["totals"]["attempts"];
            let delivered = attempts["delivered"].as_u64().unwrap_or_default();
            let other: u64 = attempts
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(outcome, _)| *outcome != "delivered")
                .filter_map(|(_, count)| count.as_u64())
                .sum();
            if other > 0 {
                return Err(Failure::failed("not everything was delivered").detail(attempts.to_string()));
            }
            if delivered >= wanted {
                return if delivered == wanted {
                    Ok(status)
                } else {
                    Err(Failure::failed(format!("{delivered} notifications were delivered; expected {wanted}")))
                };
            }
            let (from, goal) = way.get_or_insert_with(|| (delivered, self.progress.goal(wanted - delivered)));
            goal.reached(delivered.saturating_sub(*from));
            if delivered > before {
                (before, moved) = (delivered, Instant::now());
            }
            if moved.elapsed() > STALL_TIMEOUT {
                return Err(Failure::failed(format!(
                    "{delivered} of {wanted} notifications were delivered, then progress stopped"
                )));
            }
            self.process.check_running()?;
            tokio::time::sleep(next_poll(begun.elapsed())).await;
        }
    }

    /// HTTP client with the admin key.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Current resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        memory(self.process.pid(), "VmRSS:")
    }

    /// Peak resident memory in bytes.
    pub fn peak_bytes(&self) -> u64 {
        memory(self.process.pid(), "VmHWM:")
    }
}

/// Writer of NDJSON lines for an import.
pub trait Lines: FnOnce(&mut ChunkWriter) -> io::Result<()> + Send + 'static {}

impl<T: FnOnce(&mut ChunkWriter) -> io::Result<()> + Send + 'static> Lines for T {}

/// Writer that streams to the server in chunks. A slow server blocks the writer (backpressure).
pub struct ChunkWriter {
    parts: mpsc::Sender<io::Result<Bytes>>,
    part: Vec<u8>,
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.part.extend_from_slice(bytes);
        if self.part.len() >= PART_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let part = std::mem::replace(&mut self.part, Vec::with_capacity(PART_BYTES));
        self.parts.blocking_send(Ok(part.into())).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Time of the next progress request, `passed` after the start. Requests cost the server something, so a time is
/// measured to a fiftieth of itself.
pub fn next_poll(passed: Duration) -> Duration {
    (passed / POLL_PRECISION).max(POLL_INTERVAL_MIN)
}

async fn is_ready(port: u16) -> io::Result<bool> {
    let mut connection = Connection::open(port).await?;
    let (status, _) = connection.exchange(b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await?;
    Ok(status == 200)
}

/// Value of a line of `/proc/<pid>/status` in bytes; 0 where there is no such file.
pub fn memory(pid: u32, line: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kilobytes =
        text.lines().find_map(|found| found.strip_prefix(line)?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kilobytes.unwrap_or_default() * 1024
}

/// Converts bytes to megabytes of 10^6.
pub fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
