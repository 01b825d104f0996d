//! Event sources of applications, and their status.

use tocsin_model::{
    id::{EventBatchId, Name},
    time::Timestamp,
};

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

impl Service {
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
