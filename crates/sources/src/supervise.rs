//! A source runs: on a task of its own, which opens it, takes its portions, lets it rest while it is held, and opens it again
//! after trouble, with pauses that grow.
//!
//! What becomes of portions is for a [`Host`], which stores each in one commit with its marks.

use std::{fs, io::Write, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_model::{folder, time::Timestamp};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::source::{OpenSource, Portion, Refusal, Trouble};

/// The pause after the first trouble; each further one doubles it.
pub const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause.
pub const PAUSE_MAX: Duration = Duration::from_secs(300);
/// After so much trouble in a row a source counts as failed. It is still tried.
const FAILED_AFTER: u32 = 10;
/// A source that ran for so long begins to count anew.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);
/// The file of refused items begins anew at this size; the one before is kept.
const REFUSED_BYTES_MAX: u64 = 16 << 20;

/// How a source is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceState {
    /// It is being opened.
    Starting,
    /// It takes what comes, or waits for some.
    Running,
    /// There is no room for what it took, which is offered again.
    Waiting,
    /// It may not run, and is opened again when it may.
    Held,
    /// It had trouble and is opened again after a pause.
    BackingOff,
    /// It had trouble many times in a row; it is still opened again.
    Failed,
}

impl SourceState {
    /// All of them.
    pub const ALL: [SourceState; 6] = [
        SourceState::Starting,
        SourceState::Running,
        SourceState::Waiting,
        SourceState::Held,
        SourceState::BackingOff,
        SourceState::Failed,
    ];

    /// As it is written: `backing_off`.
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

/// How a source is doing, and what was in its way.
#[derive(Debug, Clone, PartialEq)]
pub struct Health {
    /// How it does.
    pub state: SourceState,
    /// Since when.
    pub since: Timestamp,
    /// What is or was last in the way.
    pub reason: Option<String>,
    /// How often in a row.
    pub failures: u32,
    /// When it is opened again.
    pub retry_at: Option<Timestamp>,
    /// How long the oldest of the last portion had waited to be taken.
    pub lag: Option<Duration>,
    /// How much waits at the far side, in its own units.
    pub waiting: Option<u64>,
}

impl Health {
    /// Of one that is about to be opened.
    pub fn new(now: Timestamp) -> Health {
        let state = SourceState::Starting;
        Health { state, since: now, reason: None, failures: 0, retry_at: None, lag: None, waiting: None }
    }

    fn set(&mut self, state: SourceState, now: Timestamp) {
        (self.state, self.since, self.retry_at) = (state, now, None);
    }

    /// There is no room for what was taken. Gives whether that is new.
    pub fn wait(&mut self, why: String, now: Timestamp) -> bool {
        let is_new = self.state != SourceState::Waiting;
        if is_new {
            (self.state, self.since) = (SourceState::Waiting, now);
        }
        self.reason = Some(why);
        is_new
    }

    /// What was taken is durable.
    pub fn taken(&mut self, since: Option<Timestamp>, now: Timestamp) {
        if self.state != SourceState::Running {
            (self.state, self.since) = (SourceState::Running, now);
        }
        (self.failures, self.reason, self.retry_at) = (0, None, None);
        self.lag = since.map(|since| now.since(since));
    }

    /// Notes what was in the way. Gives the pause until the next life; luck is from 0 to 1.
    fn back_off(&mut self, trouble: Trouble, luck: f64, now: Timestamp) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let doubled = PAUSE_MIN.saturating_mul(1 << self.failures.saturating_sub(1).min(16)).min(PAUSE_MAX);
        let pause = doubled.mul_f64(0.75 + luck / 2.0).max(trouble.retry_after.unwrap_or_default());
        let state = if self.failures >= FAILED_AFTER { SourceState::Failed } else { SourceState::BackingOff };
        if self.state != state {
            (self.state, self.since) = (state, now);
        }
        (self.reason, self.retry_at) = (Some(trouble.text), Some(now + pause));
        pause
    }
}

/// What became of a portion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It is durable with its marks.
    Stored,
    /// The source may not run any more, or is to end; nothing of it was stored, and it will be given again.
    NotNow,
}

/// Who has a source run, and stores what it gives.
#[async_trait]
pub trait Host: Send + Sync + 'static {
    /// How it does.
    fn health(&self) -> &Mutex<Health>;

    /// The time.
    fn now(&self) -> Timestamp;

    /// A number from 0 to 1, so that not all are opened at the same moment.
    fn luck(&self) -> f64;

    /// Why the source may not run now, if it may not.
    fn holds(&self) -> Option<String>;

    /// Waits until it may, or may not.
    async fn until(&self, may: bool);

    /// Opens it with its marks.
    async fn open(&self) -> Result<Box<dyn OpenSource>, Trouble>;

    /// Stores a portion with its marks; waits while there is no room, but not when it is told to stop.
    async fn take(&self, portion: Portion, stop: &CancellationToken) -> Result<Taken, Trouble>;

    /// Tells of trouble in logs and metrics.
    fn troubled(&self, trouble: &Trouble, failures: u32);
}

/// A source that runs.
pub struct Running<H> {
    /// Who has it run.
    pub host: Arc<H>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl<H: Host> Running<H> {
    /// Runs it until it is ended.
    pub fn start(host: H) -> Running<H> {
        let (host, stop) = (Arc::new(host), CancellationToken::new());
        let task = tokio::spawn(run(host.clone(), stop.clone()));
        Running { host, stop, task }
    }

    /// Ends some. What they have taken is stored, or will be taken again.
    pub async fn end(running: Vec<Running<H>>) {
        running.iter().for_each(|running| running.stop.cancel());
        for running in running {
            let _ = running.task.await;
        }
    }

    /// Ends it at once, as a crash would.
    pub async fn abandon(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// Runs a source until it is told to stop.
async fn run<H: Host>(host: Arc<H>, stop: CancellationToken) {
    loop {
        if let Some(reason) = host.holds() {
            let mut health = host.health().lock();
            health.set(SourceState::Held, host.now());
            health.reason = Some(reason);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = host.until(true) => {}
        }
        let began = host.now();
        // A task of its own, so that a source that panics is only a source in trouble.
        let mut life = Abort(tokio::spawn(live(host.clone(), stop.clone())));
        let trouble = match (&mut life.0).await {
            Ok(Ok(())) if stop.is_cancelled() => return,
            Ok(Ok(())) => continue,
            Ok(Err(trouble)) => trouble,
            Err(error) => Trouble::new("it broke", error),
        };
        let now = host.now();
        let (pause, failures) = {
            let mut health = host.health().lock();
            if now.since(began) >= HEALTHY_AFTER {
                health.failures = 0;
            }
            (health.back_off(trouble.clone(), host.luck(), now), health.failures)
        };
        host.troubled(&trouble, failures);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// From one opening to the next: until it is to rest or to end.
async fn live<H: Host>(host: Arc<H>, stop: CancellationToken) -> Result<(), Trouble> {
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
        let portion = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = host.until(false) => break,
            portion = source.next() => portion?,
        };
        host.health().lock().waiting = portion.waiting;
        match host.take(portion, &stop).await? {
            Taken::Stored => source.accepted().await?,
            Taken::NotNow => break,
        }
    }
    source.close().await;
    Ok(())
}

/// A task that ends with whoever waits for it.
struct Abort(JoinHandle<Result<(), Trouble>>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Keeps refused items in a file, one in a line, before their source forgets them.
///
/// # Errors
/// They are not kept.
pub async fn keep_refused(folder: &Path, name: String, refused: Vec<Refusal>, now: Timestamp) -> Result<(), Trouble> {
    let folder = folder.join("refused");
    let kept = tokio::task::spawn_blocking(move || append(&folder, &name, &refused, now)).await;
    kept.map_err(|error| Trouble::new("keeping what is refused broke", error))?
        .map_err(|error| Trouble::new("what is refused cannot be kept", error))
}

fn append(folder: &Path, name: &str, refused: &[Refusal], now: Timestamp) -> std::io::Result<()> {
    folder::make(folder, 0o777)?;
    let file = folder.join(format!("{name}.ndjson"));
    if fs::metadata(&file).is_ok_and(|metadata| metadata.len() > REFUSED_BYTES_MAX) {
        fs::rename(&file, file.with_extension("ndjson.1"))?;
    }
    let mut out = fs::OpenOptions::new().create(true).append(true).open(file)?;
    for Refusal { reason, item } in refused {
        let line = serde_json::json!({ "at": now, "reason": reason, "item": String::from_utf8_lossy(item) });
        out.write_all(format!("{line}\n").as_bytes())?;
    }
    out.sync_all()?;
    folder::sync(folder)
}
