//! Runs event sources, each in its own task. A batch and its checkpoints are accepted in one commit; after an error
//! the source is opened again, with back-off.
//!
//! A source is owned by the application that runs it, in the process that owns the data folder. The next version
//! starts only when the previous one has ended, so two never read from the same place. A source locks its external
//! resources (a folder, a table) itself.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_model::{
    application::{Application, Source},
    id::{EventBatchId, Name},
    problem::Problem,
    time::Timestamp,
};
pub use tocsin_sources::SourceState;
use tocsin_sources::{
    OpenSource, RejectedItem, SourceBatch, SourceError, SourceOutput, SourceSettings,
    rejected::store_rejected,
    supervise::{Health, PAUSE_MAX, PAUSE_MIN, RunningSource, SourceHost, StoreOutcome},
};
use tocsin_store::journal::{EventAcceptance, Mark, SourceKey};
use tokio_util::sync::CancellationToken;

use crate::{
    Flow, Submission,
    accept_events::{self, AcceptError},
    compile::Compiled,
};

/// Checkpoints read at a time.
const MARKS_PAGE: usize = 10_000;

/// Status of a source, and its counters since the process started.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceStatus {
    /// Its name.
    pub name: Name,
    /// Its kind.
    pub kind: Name,
    /// The class of its events.
    pub class: Name,
    /// Health.
    pub health: Health,
    /// Batches accepted.
    pub batches: u64,
    /// Events accepted.
    pub events: u64,
    /// Items that are not valid events of the class.
    pub refused: u64,
    /// Reason for the last rejected item.
    pub refused_reason: Option<String>,
    /// The last batch, and when it was accepted.
    pub last: Option<(EventBatchId, Timestamp)>,
}

/// Running sources, by application.
#[derive(Default)]
pub(crate) struct Sources(Mutex<BTreeMap<Name, Vec<RunningSource<Runner>>>>);

impl Sources {
    /// Replaces the running sources by those of another version. The old ones end first.
    pub async fn change(&self, flow: &Arc<Flow>, compiled: &Arc<Compiled>) {
        let application = &compiled.application;
        self.stop(&application.name).await;
        let running = application.sources.iter().filter(|(_, source)| !source.is_submitted());
        let running =
            running.map(|(name, source)| RunningSource::start(Runner::new(flow, compiled, name, source))).collect();
        self.0.lock().insert(application.name.clone(), running);
    }

    /// Ends the sources of an application. Unaccepted items will be read again.
    pub async fn stop(&self, application: &Name) {
        let running = self.0.lock().remove(application).unwrap_or_default();
        RunningSource::end(running).await;
    }

    /// Ends all sources.
    pub async fn stop_all(&self) {
        let running = std::mem::take(&mut *self.0.lock());
        RunningSource::end(running.into_values().flatten().collect()).await;
    }

    /// Ends all sources at once, as a crash would.
    pub async fn abort(&self) {
        let running = std::mem::take(&mut *self.0.lock());
        for running in running.into_values().flatten() {
            running.abort().await;
        }
    }

    /// Status of an application's sources, by name.
    pub fn status(&self, application: &Name) -> Vec<SourceStatus> {
        let running = self.0.lock();
        running.get(application).into_iter().flatten().map(|running| running.host.status()).collect()
    }

    /// Status of all sources, by application.
    pub fn all(&self) -> Vec<(Name, SourceStatus)> {
        let running = self.0.lock();
        let of = |(name, running): (&Name, &Vec<RunningSource<Runner>>)| -> Vec<(Name, SourceStatus)> {
            running.iter().map(|running| (name.clone(), running.host.status())).collect()
        };
        running.iter().flat_map(of).collect()
    }
}

/// All problems in the options of an application's sources.
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

/// Problems for resources that an application's sources use and the operator of a machine has not allowed.
pub(crate) fn not_allowed(application: &Application, context: &tocsin_sources::Context) -> Vec<Problem> {
    let sources = application.sources.iter().filter(|(_, source)| !source.is_submitted());
    sources
        .flat_map(|(name, source)| tocsin_sources::not_allowed(source, context, &format!("sources.{name}")))
        .collect()
}

/// The context in which sources run.
pub(crate) fn context(flow: &Flow) -> tocsin_sources::Context {
    let context = &flow.context;
    tocsin_sources::Context {
        clock: flow.clock.clone(),
        data_folder: context.data_folder.clone(),
        networks: context.networks.clone(),
        programs: context.programs.clone(),
        files: context.files.clone(),
        folders: flow.options.source_folders.clone(),
        listeners: flow.options.source_listeners.clone(),
    }
}

/// Runs one source.
struct Runner {
    flow: Arc<Flow>,
    compiled: Arc<Compiled>,
    key: SourceKey,
    source: Source,
    class: Name,
    health: Mutex<Health>,
    counts: Mutex<Counts>,
}

/// Counters of a source since the process started.
#[derive(Default)]
struct Counts {
    batches: u64,
    events: u64,
    refused: u64,
    refused_reason: Option<String>,
    last: Option<(EventBatchId, Timestamp)>,
}

impl Runner {
    fn new(flow: &Arc<Flow>, compiled: &Arc<Compiled>, name: &Name, source: &Source) -> Runner {
        // The definition's checker ensures that there is one.
        let class = source.events.first().cloned().unwrap_or_else(|| name.clone());
        Runner {
            flow: flow.clone(),
            compiled: compiled.clone(),
            key: (compiled.application.name.clone(), name.clone()),
            source: source.clone(),
            class,
            health: Mutex::new(Health::new(flow.clock.now())),
            counts: Mutex::default(),
        }
    }

    fn status(&self) -> SourceStatus {
        let counts = self.counts.lock();
        SourceStatus {
            name: self.key.1.clone(),
            kind: self.source.kind.clone(),
            class: self.class.clone(),
            health: self.health.lock().clone(),
            batches: counts.batches,
            events: counts.events,
            refused: counts.refused,
            refused_reason: counts.refused_reason.clone(),
            last: counts.last,
        }
    }

    async fn marks(&self) -> Result<Vec<Mark>, SourceError> {
        let mut marks: Vec<Mark> = Vec::new();
        loop {
            let after = marks.last().map(|mark| mark.part.clone());
            let page = self.flow.checkpoints.marks(&self.key, after.as_deref(), MARKS_PAGE).await;
            let page = page.map_err(|error| SourceError::new("its marks cannot be read", error))?;
            let is_last = page.len() < MARKS_PAGE;
            marks.extend(page);
            if is_last {
                return Ok(marks);
            }
        }
    }

    fn count(&self, batch: EventBatchId, events: u32, since: Option<Timestamp>) {
        let now = self.flow.clock.now();
        self.health.lock().taken(since, now);
        let mut counts = self.counts.lock();
        counts.batches += 1;
        counts.events += u64::from(events);
        counts.last = Some((batch, now));
        metrics::counter!("tocsin_source_batches_total", &self.labels()).increment(1);
        metrics::counter!("tocsin_source_events_total", &self.labels()).increment(u64::from(events));
        if let Some(since) = since {
            metrics::histogram!("tocsin_source_lag_seconds", &self.labels()).record(now.since(since).as_secs_f64());
        }
    }

    fn labels(&self) -> [(&'static str, String); 2] {
        [("application", self.key.0.to_string()), ("source", self.key.1.to_string())]
    }

    /// Writes rejected items to a file in the data folder, before the source drops them.
    async fn store_refused(&self, refused: Vec<RejectedItem>) -> Result<(), SourceError> {
        let Some(last) = refused.last() else { return Ok(()) };
        let (count, reason) = (refused.len() as u64, last.reason.clone());
        tracing::warn!(application = %self.key.0, source = %self.key.1, count, reason, "items are rejected");
        let name = format!("{}.{}", self.key.0, self.key.1);
        store_rejected(&self.flow.context.data_folder, name, refused, self.flow.clock.now()).await?;
        let mut counts = self.counts.lock();
        counts.refused += count;
        counts.refused_reason = Some(reason);
        metrics::counter!("tocsin_source_refused_total", &self.labels()).increment(count);
        Ok(())
    }
}

#[async_trait]
impl SourceHost for Runner {
    fn health(&self) -> &Mutex<Health> {
        &self.health
    }

    fn now(&self) -> Timestamp {
        self.flow.clock.now()
    }

    fn jitter(&self) -> f64 {
        self.flow.jitter()
    }

    fn hold_reason(&self) -> Option<String> {
        let is_held = self.flow.switches.pauses_source(&self.key.0, &self.key.1);
        is_held.then(|| "it is switched off".to_owned())
    }

    async fn until(&self, may: bool) {
        let mut changes = self.flow.switches.changes();
        while self.hold_reason().is_none() != may {
            // The sender lives as long as the pipeline.
            let _ = changes.changed().await;
        }
    }

    async fn open(&self) -> Result<Box<dyn OpenSource>, SourceError> {
        let marks = self.marks().await?;
        let (application, name) = self.key.clone();
        let setting = SourceSettings {
            remote_name: format!("tocsin-{application}-{name}"),
            output: SourceOutput::Events(self.compiled.application.events[&self.class].fields.clone()),
            options: self.source.options.clone(),
            context: context(&self.flow),
            application,
            name,
        };
        tocsin_sources::open(self.source.kind.as_str(), setting, marks).map_err(|problems| {
            let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
            SourceError::of(shown.join("; "))
        })
    }

    async fn take(&self, portion: SourceBatch, stop: &CancellationToken) -> Result<StoreOutcome, SourceError> {
        let SourceBatch { events, marks, since, received_at, refused, .. } = portion;
        // Set before waiting for room: the latency counts from here.
        let received_at = received_at.unwrap_or_else(|| self.flow.clock.now());
        self.store_refused(refused).await?;
        let count = events.count();
        if count == 0 {
            if !marks.is_empty() {
                let recorded = self.flow.checkpoints.record_marks(&self.key, marks).await;
                recorded.map_err(|error| SourceError::new("its marks cannot be stored", error))?;
            }
            return Ok(StoreOutcome::Stored);
        }
        let submission = Submission {
            application: self.key.0.clone(),
            version: self.compiled.version,
            class: self.class.clone(),
            source: self.key.1.clone(),
            received_at,
            events,
            idempotency: None,
            marks,
        };
        let mut pause = PAUSE_MIN;
        let batch = loop {
            match accept_events::accept(&self.flow, submission.clone()).await {
                Ok(
                    EventAcceptance::New(batch) | EventAcceptance::Duplicate(batch) | EventAcceptance::KeyReused(batch),
                ) => break batch,
                Err(AcceptError::Full(why)) => {
                    if self.health.lock().wait(why.clone(), self.flow.clock.now()) {
                        tracing::warn!(application = %self.key.0, source = %self.key.1, why, "a source waits for room");
                    }
                    tokio::select! {
                        () = stop.cancelled() => return Ok(StoreOutcome::NotNow),
                        () = tokio::time::sleep(pause) => pause = (pause * 2).min(PAUSE_MAX / 10),
                    }
                }
                Err(error) => return Err(SourceError::new("a batch cannot be stored", error)),
            }
        };
        self.count(batch, count, since);
        Ok(StoreOutcome::Stored)
    }

    fn report_error(&self, error: &SourceError, failures: u32) {
        let (application, source) = &self.key;
        tracing::warn!(%application, %source, failures, reason = error.text, "a source is in trouble");
        metrics::counter!("tocsin_source_failures_total", &self.labels()).increment(1);
    }
}
