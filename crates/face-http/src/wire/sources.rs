//! Status of event sources.

use serde::Serialize;
use tocsin_model::{
    id::{EventBatchId, Name},
    time::Timestamp,
};
use tocsin_service::sources::SourceStatus;
use utoipa::ToSchema;

/// Current state of a running source; counters since it was started.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = SourceStatus)]
pub(crate) struct SourceStatusBody {
    /// Its name.
    #[schema(value_type = String)]
    source: Name,
    /// Its kind, such as `directory`.
    #[schema(value_type = String)]
    kind: Name,
    /// The class of its events.
    #[schema(value_type = String)]
    class: Name,
    /// `starting`, `running`, `waiting` for room in the journal, `held` while it is switched off, `backing_off` after a
    /// failure, or `failed` after many failures. In the last two states it is reopened automatically.
    state: &'static str,
    /// Since when.
    #[schema(value_type = String)]
    since: Timestamp,
    /// Current problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Failures in a row.
    failures: u32,
    /// Time at which it is opened again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    retry_at: Option<Timestamp>,
    /// Batches accepted.
    batches: u64,
    /// Events accepted.
    events: u64,
    /// Rejected items that are not valid events of the class; files are not counted, they become `.err`.
    refused: u64,
    /// Reason for the last rejection.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_reason: Option<String>,
    /// The last batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    last_batch: Option<EventBatchId>,
    /// When it was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    last_batch_at: Option<Timestamp>,
    /// Age of the oldest event of the last batch when it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    lag_seconds: Option<f64>,
    /// Backlog at the source's server: files or messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<u64>,
}

impl From<SourceStatus> for SourceStatusBody {
    fn from(found: SourceStatus) -> Self {
        SourceStatusBody {
            source: found.source,
            kind: found.kind,
            class: found.class,
            state: found.state,
            since: found.since,
            reason: found.reason,
            failures: found.failures,
            retry_at: found.retry_at,
            batches: found.batches,
            events: found.events,
            refused: found.refused,
            refused_reason: found.refused_reason,
            last_batch: found.last_batch,
            last_batch_at: found.last_batch_at,
            lag_seconds: found.lag_seconds,
            waiting: found.waiting,
        }
    }
}
