//! Sources run: each on a task of its own, its portions accepted in one commit with its marks, and opened again after
//! trouble.
//!
//! A source is owned by the application that runs it, in the process that owns the data folder, and the next is started
//! only when the one before has ended; so no two ever take from the same place. What a source has outside of us (a folder,
//! a table) it locks itself.

use std::{collections::BTreeMap, io::Write, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tocsin_model::{
    application::{Application, Source},
    id::{EventBatchId, Name},
    problem::Problem,
    time::Timestamp,
};
use tocsin_sources::{OpenSource, Portion, Refusal, Setting, Trouble};
use tocsin_store::journal::{Accepted, Mark, SourceKey};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    Flow, Submission,
    accept_events::{self, AcceptError},
    compile::Compiled,
};

/// The pause after the first trouble; each further one doubles it.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// After so much trouble in a row a source counts as failed. It is still tried.
const FAILED_AFTER: u32 = 10;
/// A source that ran for so long begins to count anew.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);
/// Marks that are read at once.
const MARKS_PAGE: usize = 10_000;
/// The file of refused items begins anew at this size; the one before is kept.
const REFUSED_BYTES_MAX: u64 = 16 << 20;

/// How a source is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceState {
    /// It is being opened.
    Starting,
    /// It takes events, or waits for some.
    Running,
    /// The journal has no room, or takes none of its class; what it took is offered again.
    Waiting,
    /// It is switched off, and opened again when that is lifted.
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

/// How a source is doing, and what it did since it runs in this process.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceStatus {
    /// Its name.
    pub name: Name,
    /// Its kind.
    pub kind: Name,
    /// The class of its events.
    pub class: Name,
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
    /// Batches accepted.
    pub batches: u64,
    /// Events accepted.
    pub events: u64,
    /// Items that are no events of the class.
    pub refused: u64,
    /// Why the last of them is none.
    pub refused_reason: Option<String>,
    /// The last batch, and when it was accepted.
    pub last: Option<(EventBatchId, Timestamp)>,
    /// How long the oldest event of the last batch had waited to be taken.
    pub lag: Option<Duration>,
    /// How much waits at the far side, in its own units.
    pub waiting: Option<u64>,
}

/// All sources that run, by application.
#[derive(Default)]
pub(crate) struct Sources(Mutex<BTreeMap<Name, Vec<Running>>>);

struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
    status: Arc<Mutex<SourceStatus>>,
}

impl Sources {
    /// Runs the sources of a version in place of those of the version before, which end first.
    pub async fn change(&self, flow: &Arc<Flow>, compiled: &Arc<Compiled>) {
        let application = &compiled.application;
        self.stop(&application.name).await;
        let running = application.sources.iter().filter(|(_, source)| !source.is_submitted());
        let running = running.map(|(name, source)| Runner::start(flow, compiled, name, source)).collect();
        self.0.lock().insert(application.name.clone(), running);
    }

    /// Ends the sources of an application. What they have taken is accepted or will be taken again.
    pub async fn stop(&self, application: &Name) {
        let running = self.0.lock().remove(application).unwrap_or_default();
        end(running).await;
    }

    /// Ends all sources.
    pub async fn stop_all(&self) {
        let running = std::mem::take(&mut *self.0.lock());
        end(running.into_values().flatten().collect()).await;
    }

    /// Ends all at once, as a crash would.
    pub async fn abandon(&self) {
        let running = std::mem::take(&mut *self.0.lock());
        for running in running.into_values().flatten() {
            running.task.abort();
            let _ = running.task.await;
        }
    }

    /// How the sources of an application do, by name.
    pub fn status(&self, application: &Name) -> Vec<SourceStatus> {
        let running = self.0.lock();
        running.get(application).into_iter().flatten().map(|running| running.status.lock().clone()).collect()
    }

    /// How all do, by application.
    pub fn all(&self) -> Vec<(Name, SourceStatus)> {
        let running = self.0.lock();
        let of = |(name, running): (&Name, &Vec<Running>)| -> Vec<(Name, SourceStatus)> {
            running.iter().map(|running| (name.clone(), running.status.lock().clone())).collect()
        };
        running.iter().flat_map(of).collect()
    }
}

async fn end(running: Vec<Running>) {
    running.iter().for_each(|running| running.stop.cancel());
    for running in running {
        let _ = running.task.await;
    }
}

/// Every problem in the options of an application's sources.
pub(crate) fn check(application: &Application) -> Result<(), Vec<Problem>> {
    let sources = application.sources.iter().filter(|(_, source)| !source.is_submitted());
    let problems: Vec<Problem> = sources
        .flat_map(|(name, source)| {
            let class = source.events.first().and_then(|class| application.events.get(class));
            let fields = class.map(|class| class.fields.clone()).unwrap_or_default();
            tocsin_sources::check(source, &fields, &format!("sources.{name}"))
        })
        .collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Runs one source.
#[derive(Clone)]
struct Runner {
    flow: Arc<Flow>,
    compiled: Arc<Compiled>,
    key: SourceKey,
    source: Source,
    class: Name,
    stop: CancellationToken,
    status: Arc<Mutex<SourceStatus>>,
}

/// A source was asked to end.
struct Stopped;

/// Why a source ended without trouble.
enum End {
    Stopped,
    Held,
}

impl Runner {
    fn start(flow: &Arc<Flow>, compiled: &Arc<Compiled>, name: &Name, source: &Source) -> Running {
        // The definition's checker has seen to it that there is one.
        let class = source.events.first().cloned().unwrap_or_else(|| name.clone());
        let status = SourceStatus {
            name: name.clone(),
            kind: source.kind.clone(),
            class: class.clone(),
            state: SourceState::Starting,
            since: flow.clock.now(),
            reason: None,
            failures: 0,
            retry_at: None,
            batches: 0,
            events: 0,
            refused: 0,
            refused_reason: None,
            last: None,
            lag: None,
            waiting: None,
        };
        let runner = Runner {
            flow: flow.clone(),
            compiled: compiled.clone(),
            key: (compiled.application.name.clone(), name.clone()),
            source: source.clone(),
            class,
            stop: CancellationToken::new(),
            status: Arc::new(Mutex::new(status)),
        };
        let (stop, status) = (runner.stop.clone(), runner.status.clone());
        Running { stop, status, task: tokio::spawn(runner.run()) }
    }

    /// One life of the source after the other.
    async fn run(self) {
        while self.let_go().await.is_ok() {
            let began = self.flow.clock.now();
            // A task of its own, so that a source that panics is only a source in trouble.
            let mut life = Abort(tokio::spawn(self.clone().live()));
            let trouble = match (&mut life.0).await {
                Ok(Ok(End::Stopped)) => return,
                Ok(Ok(End::Held)) => continue,
                Ok(Err(trouble)) => trouble,
                Err(error) => Trouble::new("it broke", error),
            };
            if self.flow.clock.now().since(began) >= HEALTHY_AFTER {
                self.status.lock().failures = 0;
            }
            let pause = self.back_off(trouble);
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Waits while the source is switched off.
    async fn let_go(&self) -> Result<(), Stopped> {
        if self.is_held() {
            self.set(SourceState::Held);
        }
        tokio::select! {
            () = self.stop.cancelled() => Err(Stopped),
            () = self.switched(false) => Ok(()),
        }
    }

    fn is_held(&self) -> bool {
        self.flow.switches.holds_source(&self.key.0, &self.key.1)
    }

    /// Waits until the source is switched off, or on.
    async fn switched(&self, off: bool) {
        let mut changes = self.flow.switches.changes();
        while self.is_held() != off {
            // The sender lives as long as the flow.
            let _ = changes.changed().await;
        }
    }

    async fn live(self) -> Result<End, Trouble> {
        self.set(SourceState::Starting);
        let marks = self.marks().await?;
        let mut source = self.open(marks)?;
        self.set(SourceState::Running);
        loop {
            let portion = tokio::select! {
                biased;
                () = self.stop.cancelled() => {
                    source.close().await;
                    return Ok(End::Stopped);
                }
                () = self.switched(true) => {
                    source.close().await;
                    return Ok(End::Held);
                }
                portion = source.next() => portion?,
            };
            if let Err(Stopped) = self.take(portion).await? {
                source.close().await;
                return Ok(End::Stopped);
            }
            source.accepted().await?;
        }
    }

    fn open(&self, marks: Vec<Mark>) -> Result<Box<dyn OpenSource>, Trouble> {
        let setting = Setting {
            application: self.key.0.clone(),
            name: self.key.1.clone(),
            fields: self.compiled.application.events[&self.class].fields.clone(),
            options: self.source.options.clone(),
            context: self.context(),
        };
        tocsin_sources::open(self.source.kind.as_str(), setting, marks).map_err(|problems| {
            let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
            Trouble::of(shown.join("; "))
        })
    }

    fn context(&self) -> tocsin_sources::Context {
        let context = &self.flow.context;
        tocsin_sources::Context {
            clock: self.flow.clock.clone(),
            data_folder: context.data_folder.clone(),
            networks: context.networks.clone(),
            programs: context.programs.clone(),
            folders: self.flow.options.source_folders.clone(),
            listeners: self.flow.options.source_listeners.clone(),
        }
    }

    async fn marks(&self) -> Result<Vec<Mark>, Trouble> {
        let mut marks: Vec<Mark> = Vec::new();
        loop {
            let after = marks.last().map(|mark| mark.part.clone());
            let page = self.flow.journal.marks(&self.key, after.as_deref(), MARKS_PAGE).await;
            let page = page.map_err(|error| Trouble::new("its marks cannot be read", error))?;
            let is_last = page.len() < MARKS_PAGE;
            marks.extend(page);
            if is_last {
                return Ok(marks);
            }
        }
    }

    /// Stores a portion with its marks; waits while there is no room.
    async fn take(&self, portion: Portion) -> Result<Result<(), Stopped>, Trouble> {
        let Portion { events, marks, since, waiting, refused } = portion;
        self.keep_refused(refused).await?;
        self.status.lock().waiting = waiting;
        let count = events.count();
        if count == 0 {
            if !marks.is_empty() {
                let recorded = self.flow.journal.record_marks(&self.key, marks).await;
                recorded.map_err(|error| Trouble::new("its marks cannot be stored", error))?;
            }
            return Ok(Ok(()));
        }
        let submission = Submission {
            application: self.key.0.clone(),
            version: self.compiled.version,
            class: self.class.clone(),
            source: self.key.1.clone(),
            received_at: self.flow.clock.now(),
            events,
            idempotency: None,
            marks,
        };
        let mut pause = PAUSE_MIN;
        let batch = loop {
            match self.offer(submission.clone()).await {
                Ok(Accepted::New(batch) | Accepted::Duplicate(batch) | Accepted::KeyReused(batch)) => break batch,
                Err(AcceptError::Full(why)) => {
                    self.wait_for_room(why);
                    tokio::select! {
                        () = self.stop.cancelled() => return Ok(Err(Stopped)),
                        () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSE_MAX / 10),
                    }
                }
                Err(error) => return Err(Trouble::new("a batch cannot be stored", error)),
            }
        };
        self.count(batch, count, since);
        Ok(Ok(()))
    }

    async fn offer(&self, submission: Submission) -> Result<Accepted, AcceptError> {
        match self.flow.switches.refuse(&self.key.0, &self.class) {
            Some(reason) => Err(AcceptError::Full(reason)),
            None => accept_events::accept(&self.flow, submission).await,
        }
    }

    fn count(&self, batch: EventBatchId, events: u32, since: Option<Timestamp>) {
        let now = self.flow.clock.now();
        let mut status = self.status.lock();
        if status.state != SourceState::Running {
            (status.state, status.since) = (SourceState::Running, now);
        }
        (status.failures, status.reason, status.retry_at) = (0, None, None);
        status.batches += 1;
        status.events += u64::from(events);
        status.last = Some((batch, now));
        status.lag = since.map(|since| now.since(since));
        metrics::counter!("source_batches_total", &self.labels()).increment(1);
        metrics::counter!("source_events_total", &self.labels()).increment(u64::from(events));
        if let Some(lag) = status.lag {
            metrics::histogram!("source_lag_seconds", &self.labels()).record(lag.as_secs_f64());
        }
    }

    fn labels(&self) -> [(&'static str, String); 2] {
        [("application", self.key.0.to_string()), ("source", self.key.1.to_string())]
    }

    fn set(&self, state: SourceState) {
        let mut status = self.status.lock();
        (status.state, status.since, status.retry_at) = (state, self.flow.clock.now(), None);
    }

    fn wait_for_room(&self, why: String) {
        let mut status = self.status.lock();
        if status.state != SourceState::Waiting {
            tracing::warn!(application = %self.key.0, source = %self.key.1, why, "a source waits for room");
            (status.state, status.since) = (SourceState::Waiting, self.flow.clock.now());
        }
        status.reason = Some(why);
    }

    /// Notes what was in the way. Gives the pause until the next life.
    fn back_off(&self, Trouble { text: reason, retry_after }: Trouble) -> Duration {
        let now = self.flow.clock.now();
        let mut status = self.status.lock();
        status.failures = status.failures.saturating_add(1);
        let doubled = PAUSE_MIN.saturating_mul(1 << status.failures.saturating_sub(1).min(16)).min(PAUSE_MAX);
        let pause = doubled.mul_f64(0.75 + self.flow.luck() / 2.0).max(retry_after.unwrap_or_default());
        let failures = status.failures;
        tracing::warn!(application = %self.key.0, source = %self.key.1, failures, reason, "a source is in trouble");
        metrics::counter!("source_failures_total", &self.labels()).increment(1);
        let state = if failures >= FAILED_AFTER { SourceState::Failed } else { SourceState::BackingOff };
        if status.state != state {
            (status.state, status.since) = (state, now);
        }
        (status.reason, status.retry_at) = (Some(reason), Some(now + pause));
        pause
    }

    /// Keeps what cannot be taken in a file beside the data, before the source forgets it.
    async fn keep_refused(&self, refused: Vec<Refusal>) -> Result<(), Trouble> {
        let Some(last) = refused.last() else { return Ok(()) };
        let (count, reason) = (refused.len() as u64, last.reason.clone());
        tracing::warn!(application = %self.key.0, source = %self.key.1, count, reason, "items are not taken");
        let folder = self.flow.context.data_folder.join("refused");
        let file = folder.join(format!("{}.{}.ndjson", self.key.0, self.key.1));
        let now = self.flow.clock.now();
        let kept = tokio::task::spawn_blocking(move || append(folder, file, &refused, now)).await;
        kept.map_err(|error| Trouble::new("keeping what is refused broke", error))?
            .map_err(|error| Trouble::new("what is refused cannot be kept", error))?;
        let mut status = self.status.lock();
        status.refused += count;
        status.refused_reason = Some(reason);
        metrics::counter!("source_refused_total", &self.labels()).increment(count);
        Ok(())
    }
}

/// Appends refused items to a file, one in a line.
fn append(folder: PathBuf, file: PathBuf, refused: &[Refusal], now: Timestamp) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    if std::fs::metadata(&file).is_ok_and(|metadata| metadata.len() > REFUSED_BYTES_MAX) {
        std::fs::rename(&file, file.with_extension("ndjson.1"))?;
    }
    let mut out = std::fs::OpenOptions::new().create(true).append(true).open(file)?;
    for Refusal { reason, item } in refused {
        let line = serde_json::json!({ "at": now, "reason": reason, "item": String::from_utf8_lossy(item) });
        out.write_all(format!("{line}\n").as_bytes())?;
    }
    out.sync_all()
}

/// A task that ends with whoever waits for it.
struct Abort(JoinHandle<Result<End, Trouble>>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}
