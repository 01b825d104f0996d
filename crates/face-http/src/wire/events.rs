//! Submissions and event batches.

use serde::Serialize;
use tocsin_model::event::EventBatch;
use tocsin_model::time::Timestamp;
use tocsin_service::events::Submitted;
use tocsin_service::events::SubmittedLines;
use tocsin_store::journal::EventBatchState;
use utoipa::ToSchema;

/// A submission that is durable.
#[derive(Serialize, ToSchema)]
pub(crate) struct SubmittedBody {
    /// The batch that the events are in.
    batch: String,
    events: u32,
    /// Whether it came before; nothing was added.
    duplicate: bool,
}

/// The same without a serializer: this is the most frequent response.
pub(crate) fn submitted(submitted: Submitted) -> String {
    let Submitted { batch, events, duplicate } = submitted;
    format!(r#"{{"batch":"{batch}","events":{events},"duplicate":{duplicate}}}"#)
}

/// Submissions that are durable.
#[derive(Serialize, ToSchema)]
pub(crate) struct SubmittedLinesBody {
    pub(crate) batches: Vec<String>,
    pub(crate) events: u64,
    /// Number of duplicates.
    pub(crate) duplicates: u64,
}

impl From<&SubmittedLines> for SubmittedLinesBody {
    fn from(lines: &SubmittedLines) -> Self {
        let batches = lines.batches.iter().map(ToString::to_string).collect();
        SubmittedLinesBody { batches, events: lines.events, duplicates: lines.duplicates }
    }
}

/// The answer to a submission: of one batch, or of several.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Accepted)]
#[expect(dead_code, reason = "for the description of the API; the answers are written by the two types")]
pub(crate) enum AcceptedEventsBody {
    One(SubmittedBody),
    Lines(SubmittedLinesBody),
}

/// An event batch.
#[derive(Serialize, ToSchema)]
pub(crate) struct EventBatchBody {
    id: String,
    application: String,
    version: u32,
    class: String,
    source: String,
    #[schema(value_type = String, format = DateTime)]
    received_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    accepted_at: Timestamp,
    events: u32,
    /// `accepted`, `matched` or `failed`.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    matched_at: Option<Timestamp>,
    /// Why matching failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl From<(EventBatch, EventBatchState)> for EventBatchBody {
    fn from((batch, state): (EventBatch, EventBatchState)) -> Self {
        let word = state.word();
        let (matched_at, reason) = match state {
            EventBatchState::Accepted => (None, None),
            EventBatchState::Matched(at) => (Some(at), None),
            EventBatchState::Failed(reason) => (None, Some(reason)),
        };
        EventBatchBody {
            id: batch.id.to_string(),
            application: batch.application.to_string(),
            version: batch.version,
            class: batch.class.to_string(),
            source: batch.source.to_string(),
            received_at: batch.received_at,
            accepted_at: batch.accepted_at,
            events: batch.events.count(),
            state: word,
            matched_at,
            reason,
        }
    }
}

/// Number of event batches that are matched again.
#[derive(Serialize, ToSchema)]
pub(crate) struct RematchedBody {
    pub(crate) batches: u64,
}
