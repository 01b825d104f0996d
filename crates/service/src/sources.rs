//! Event sources of applications, and their status.

use tocsin_model::{
    application::Source,
    id::{EventBatchId, Name},
    problem::{Code, Problem},
    time::Timestamp,
};

pub use tocsin_pipeline::{RejectedLine, Sample, SampleItem};
use tocsin_pipeline::{check_source, read_sample};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
};

/// Current state of a running source; counters since it was started.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceStatus {
    /// Its name.
    pub source: Name,
    /// Its kind, such as `directory`.
    pub kind: Name,
    /// The class of its events.
    pub class: Name,
    /// `starting`, `running`, `waiting` for room in the journal, `held` while it is switched off, `backing_off` after a
    /// failure, or `failed` after many failures. In the last two states it is reopened automatically.
    pub state: &'static str,
    /// Since when.
    pub since: Timestamp,
    /// Current problem.
    pub reason: Option<String>,
    /// Failures in a row.
    pub failures: u32,
    /// Time at which it is opened again.
    pub retry_at: Option<Timestamp>,
    /// Batches accepted.
    pub batches: u64,
    /// Events accepted.
    pub events: u64,
    /// Rejected items that are not valid events of the class; files are not counted, they become `.err`.
    pub refused: u64,
    /// Reason for the last rejection.
    pub refused_reason: Option<String>,
    /// The last batch.
    pub last_batch: Option<EventBatchId>,
    /// When it was accepted.
    pub last_batch_at: Option<Timestamp>,
    /// Age of the oldest event of the last batch when it was read.
    pub lag_seconds: Option<f64>,
    /// Backlog at the source's server: files or messages.
    pub waiting: Option<u64>,
}

impl From<tocsin_pipeline::SourceStatus> for SourceStatus {
    fn from(found: tocsin_pipeline::SourceStatus) -> Self {
        let health = found.health;
        SourceStatus {
            source: found.name,
            kind: found.kind,
            class: found.class,
            state: health.state.word(),
            since: health.since,
            reason: health.reason,
            failures: health.failures,
            retry_at: health.retry_at,
            batches: found.batches,
            events: found.events,
            refused: found.refused,
            refused_reason: found.refused_reason,
            last_batch: found.last.map(|(batch, _)| batch),
            last_batch_at: found.last.map(|(_, at)| at),
            lag_seconds: health.lag.map(|lag| lag.as_secs_f64()),
            waiting: health.waiting,
        }
    }
}

/// Items of a sample that are returned.
const SAMPLE_ITEMS_MAX: usize = 100;

/// A source to test with a sample.
#[derive(Debug, Clone)]
pub struct SampleRequest {
    /// Kind of the source.
    pub kind: Name,
    /// Event classes, as in the definition: one.
    pub events: Vec<Name>,
    /// Options of the kind.
    pub options: serde_json::Map<String, serde_json::Value>,
    /// The sample.
    pub sample: Vec<u8>,
}

impl Service {
    /// Reads a sample as a source with these options would, and maps its first 100 items to the event class. Also returns
    /// the names of the fields. Stores nothing.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the application has no such class; the options are invalid; the kind
    /// reads no text.
    pub async fn test_source(
        &self,
        caller: &Caller,
        application: &Name,
        request: SampleRequest,
    ) -> Result<(Vec<Name>, Sample), ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let compiled = self.running(application)?;
        let SampleRequest { kind, events, options, sample } = request;
        let several = || {
            let what = "a source that the platform runs has events of one class";
            Problem::new(Code::ConflictingMembers, "definition.events", what).hint("name it: `events: [...]`")
        };
        let [class] = <[Name; 1]>::try_from(events).map_err(|_| several())?;
        let missing = || {
            let problem =
                Problem::new(Code::UnknownReference, "definition.events", format!("`{class}` is not a class"));
            problem.param("kind", "event class").param("value", class.to_string())
        };
        let fields = compiled.application.events.get(&class).ok_or_else(missing)?.fields.clone();
        let source = Source { kind: kind.clone(), events: vec![class.clone()], options };
        let problems = check_source(&source, &fields, "definition");
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        let names = fields.iter().map(|field| field.name.clone()).collect();
        let reading = tokio::task::spawn_blocking(move || {
            read_sample(source.kind.as_str(), &source.options, &fields, &sample, SAMPLE_ITEMS_MAX)
        });
        let read = reading.await.map_err(|error| ServiceError::Unavailable(error.into()))?;
        let below = |problem: Problem| Problem { path: format!("definition.{}", problem.path), ..problem };
        Ok((names, read.map_err(below)?))
    }

    /// The newest rejected items of a source, newest first.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the application has no such source; the file cannot be read.
    pub async fn rejected_items(
        &self,
        caller: &Caller,
        application: &Name,
        source: &Name,
        limit: usize,
    ) -> Result<Vec<RejectedLine>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let compiled = self.running(application)?;
        if !compiled.application.sources.contains_key(source) {
            return Err(ServiceError::Missing(format!("the source `{source}`")));
        }
        let found = self.pipeline.rejected_items(application, source, limit).await;
        found.map_err(|error| ServiceError::Unavailable(error.into()))
    }

    /// Lists the running sources of an application, by name.
    ///
    /// # Errors
    /// The scope `operations:read` is missing, or the application does not exist.
    pub async fn sources(&self, caller: &Caller, application: &Name) -> Result<Vec<SourceStatus>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        self.current(application).await?.ok_or_else(|| ServiceError::no_application(application))?;
        Ok(self.pipeline.sources(application).into_iter().map(SourceStatus::from).collect())
    }
}
