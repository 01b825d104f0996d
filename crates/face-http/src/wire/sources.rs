//! Status of event sources.

use serde::{Deserialize, Serialize};
use tocsin_model::{
    id::{EventBatchId, Name},
    problem::Problem,
    time::Timestamp,
};
use tocsin_service::sources::{RejectedLine, Sample, SampleItem, SampleRequest, SourceStatus};
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

/// A rejected item of a source.
#[derive(Serialize, ToSchema)]
#[schema(as = RejectedItem)]
pub(crate) struct RejectedItemBody {
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// Reason of the rejection.
    reason: String,
    /// The item; its first 4 KiB.
    item: String,
}

impl From<RejectedLine> for RejectedItemBody {
    fn from(line: RejectedLine) -> Self {
        RejectedItemBody { at: line.at, reason: line.reason, item: line.item }
    }
}

/// A source to test with a sample.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SourceSampleRequest)]
pub(crate) struct SampleRequestBody {
    definition: SampleDefinitionBody,
    /// The sample: a text of the format, or a message in each line.
    sample: String,
}

/// Definition of the source, as in an application.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SourceSampleDefinition)]
struct SampleDefinitionBody {
    /// Kind, such as `directory`.
    #[schema(value_type = String)]
    kind: Name,
    /// The event class.
    #[schema(value_type = Vec<String>)]
    events: Vec<Name>,
    /// Options of the kind.
    #[serde(default)]
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    options: serde_json::Map<String, serde_json::Value>,
}

impl From<SampleRequestBody> for SampleRequest {
    fn from(body: SampleRequestBody) -> Self {
        let SampleDefinitionBody { kind, events, options } = body.definition;
        SampleRequest { kind, events, options, sample: body.sample.into_bytes() }
    }
}

/// The items of a sample.
#[derive(Serialize, ToSchema)]
#[schema(as = SourceSample)]
pub(crate) struct SampleBody {
    /// The first 100 items.
    items: Vec<SampleItemBody>,
    /// Number of items that are valid events.
    accepted: usize,
    /// Number of items that are rejected.
    rejected: usize,
    /// Whether the sample has more items.
    more: bool,
    /// Error that ended the reading.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::wire::ProblemItem>)]
    problem: Option<Problem>,
}

/// An item of a sample.
#[derive(Serialize, ToSchema)]
#[schema(as = SourceSampleItem)]
struct SampleItemBody {
    /// Its line, or its number.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    /// The item; its first 4 KiB.
    item: String,
    /// The fields of the event; absent: it is rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<std::collections::BTreeMap<String, serde_json::Value>>)]
    event: Option<std::collections::BTreeMap<String, serde_json::Value>>,
    /// Reasons of the rejection.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<crate::wire::ProblemItem>>)]
    problems: Vec<Problem>,
}

impl SampleBody {
    pub(crate) fn of(names: &[Name], sample: Sample) -> SampleBody {
        let item = |found: SampleItem| {
            let (event, problems) = match found.row {
                Ok(row) => {
                    let fields = names.iter().zip(row);
                    let value = |value| serde_json::to_value(value).unwrap_or_default();
                    (Some(fields.map(|(name, one)| (name.to_string(), value(one))).collect()), Vec::new())
                }
                Err(problems) => (None, problems),
            };
            SampleItemBody { line: found.line, item: found.item, event, problems }
        };
        let items: Vec<SampleItemBody> = sample.items.into_iter().map(item).collect();
        let accepted = items.iter().filter(|item| item.event.is_some()).count();
        SampleBody { rejected: items.len() - accepted, accepted, items, more: sample.is_cut, problem: sample.error }
    }
}
