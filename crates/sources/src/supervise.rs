//! Supervisor of a source: a task that opens it, takes its batches, pauses it while it is held, and reopens it after an
//! error with exponential back-off and jitter.
//!
//! A [`SourceHost`] stores each batch in one commit with its marks.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_model::time::Timestamp;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::source::{OpenSource, SourceBatch, SourceError};

/// The pause after the first error; each further one doubles it.
pub const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause.
pub const PAUSE_MAX: Duration = Duration::from_secs(300);
/// Consecutive errors after which a source counts as failed. It is still retried.
const FAILED_AFTER: u32 = 10;
/// After running this long, the error count is reset.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// The state of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceState {
    /// Being opened.
    Starting,
    /// Reads items, or waits for some.
    Running,
    /// Waits to store a batch for which there is no space.
    Waiting,
    /// Stopped by an operator, or outside its service window; reopened when it may run.
    Held,
    /// Closed by an error; reopened after a pause.
    BackingOff,
    /// Closed by many consecutive errors; still reopened.
    Failed,
}

impl SourceState {
    /// All states.
    pub const ALL: [SourceState; 6] = [
        SourceState::Starting,
        SourceState::Running,
        SourceState::Waiting,
        SourceState::Held,
        SourceState::BackingOff,
        SourceState::Failed,
    ];

    /// The name in API and metrics: `backing_off`.
    pub const fn word(self) -> &'static str {
        match self {
            SourceState::Starting => "starting",
            SourceState::Running => "running",
            SourceState::Waiting => "waiting",
            SourceState::Held => "held",
            SourceState::BackingOff => "backing_off",
            SourceState::Failed => "failed",
        }
    }
}

/// The health of a source.
#[derive(Debug, Clone, PartialEq)]
pub struct Health {
    /// The state of the source.
    pub state: SourceState,
    /// The time of the last state change.
    pub since: Timestamp,
    /// The present or last error.
    pub reason: Option<String>,
    /// The number of consecutive errors.
    pub failures: u32,
    /// The time of the next attempt.
    pub retry_at: Option<Timestamp>,
    /// The age of the oldest item of the last batch, when it was taken.
    pub lag: Option<Duration>,
    /// The backlog at the server, in its own units.
    pub waiting: Option<u64>,
}

impl Health {
    /// The health of a source before it is opened.
    pub fn new(now: Timestamp) -> Health {
        let state = SourceState::Starting;
        Health { state, since: now, reason: None, failures: 0, retry_at: None, lag: None, waiting: None }
    }

    fn set(&mut self, state: SourceState, now: Timestamp) {
        (self.state, self.since, self.retry_at) = (state, now, None);
    }

    /// Records that the batch cannot be stored for lack of space. Returns whether that is new.
    pub fn wait(&mut self, why: String, now: Timestamp) -> bool {
        let is_new = self.state != SourceState::Waiting;
        if is_new {
            (self.state, self.since) = (SourceState::Waiting, now);
        }
        self.reason = Some(why);
        is_new
    }

    /// Records that the batch is stored.
    pub fn taken(&mut self, since: Option<Timestamp>, now: Timestamp) {
        if self.state != SourceState::Running {
            (self.state, self.since) = (SourceState::Running, now);
        }
        (self.failures, self.reason, self.retry_at) = (0, None, None);
        self.lag = since.map(|since| now.since(since));
    }

    /// Records an error. Returns the pause until the next attempt; `jitter` is from 0 to 1.
    fn back_off(&mut self, error: SourceError, jitter: f64, now: Timestamp) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let doubled = PAUSE_MIN.saturating_mul(1 << self.failures.saturating_sub(1).min(16)).min(PAUSE_MAX);
        let pause = doubled.mul_f64(0.75 + jitter / 2.0).max(error.retry_after.unwrap_or_default());
        let state = if self.failures >= FAILED_AFTER { SourceState::Failed } else { SourceState::BackingOff };
        if self.state != state {
            (self.state, self.since) = (state, now);
        }
        (self.reason, self.retry_at) = (Some(error.text), Some(now + pause));
        pause
    }
}

/// The outcome of storing a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreOutcome {
    /// Stored with its marks.
    Stored,
    /// The source is held or stopping; nothing was stored, and the batch will be delivered again.
    NotNow,
}

/// The host of a source: stores its batches and controls it.
#[async_trait]
pub trait SourceHost: Send + Sync + 'static {
    /// The health of the source, which the supervisor updates.
    fn health(&self) -> &Mutex<Health>;

    /// The time.
    fn now(&self) -> Timestamp;

    /// Random jitter from 0 to 1, so that sources do not reconnect at the same time.
    fn jitter(&self) -> f64;

    /// The reason why the source is held, if it is.
    fn hold_reason(&self) -> Option<String>;

    /// Waits until the source may run (`may`), or must be held (not `may`).
    async fn until(&self, may: bool);

    /// Opens the source with its stored marks.
    async fn open(&self) -> Result<Box<dyn OpenSource>, SourceError>;

    /// Stores a batch with its marks; waits while there is no space, unless `stop` is cancelled.
    async fn take(&self, batch: SourceBatch, stop: &CancellationToken) -> Result<StoreOutcome, SourceError>;

    /// Reports an error in logs and metrics.
    fn report_error(&self, error: &SourceError, failures: u32);
}

/// A supervised source.
pub struct RunningSource<H> {
    /// The host of the source.
    pub host: Arc<H>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl<H: SourceHost> RunningSource<H> {
    /// Starts a source; it runs until `end` or `abort`.
    pub fn start(host: H) -> RunningSource<H> {
        let (host, stop) = (Arc::new(host), CancellationToken::new());
        let task = tokio::spawn(run(host.clone(), stop.clone()));
        RunningSource { host, stop, task }
    }

    /// Ends sources gracefully. Batches they have taken are stored, or will be delivered again.
    pub async fn end(running: Vec<RunningSource<H>>) {
        running.iter().for_each(|running| running.stop.cancel());
        for running in running {
            let _ = running.task.await;
        }
    }

    /// Aborts the source at once, like a crash.
    pub async fn abort(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// Runs a source until it is stopped.
async fn run<H: SourceHost>(host: Arc<H>, stop: CancellationToken) {
    loop {
        if let Some(reason) = host.hold_reason() {
            let mut health = host.health().lock();
            health.set(SourceState::Held, host.now());
            health.reason = Some(reason);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = host.until(true) => {}
        }
        let began = host.now();
        // A separate task, so that a panic in a source is only an error of this source.
        let mut life = Abort(tokio::spawn(run_once(host.clone(), stop.clone())));
        let error = match (&mut life.0).await {
            Ok(Ok(())) if stop.is_cancelled() => return,
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error,
            Err(error) => SourceError::new("it broke", error),
        };
        let now = host.now();
        let (pause, failures) = {
            let mut health = host.health().lock();
            if now.since(began) >= HEALTHY_AFTER {
                health.failures = 0;
            }
            (health.back_off(error.clone(), host.jitter(), now), health.failures)
        };
        host.report_error(&error, failures);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// From one opening to the next: until it is held or stopped.
async fn run_once<H: SourceHost>(host: Arc<H>, stop: CancellationToken) -> Result<(), SourceError> {
    {
        let mut health = host.health().lock();
        health.set(SourceState::Starting, host.now());
        if health.failures == 0 {
            health.reason = None;
        }
    }
    let mut source = host.open().await?;
    host.health().lock().set(SourceState::Running, host.now());
    loop {
        let batch = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = host.until(false) => break,
            batch = source.next() => batch?,
        };
        host.health().lock().waiting = batch.waiting;
        match host.take(batch, &stop).await? {
            StoreOutcome::Stored => source.accepted().await?,
            StoreOutcome::NotNow => break,
        }
    }
    source.close().await;
    Ok(())
}

/// A task that is aborted on drop.
struct Abort(JoinHandle<Result<(), SourceError>>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}
