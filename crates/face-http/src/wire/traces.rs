//! Trace of one object: every step of an event, batch, notification, message or subscriber.

use std::collections::BTreeMap;

use serde::Serialize;
use tocsin_model::{time::Timestamp, trace_context::TraceContext};
use tocsin_service::trace;
use utoipa::ToSchema;

use super::millis;

/// Trace of one object.
#[derive(Serialize, ToSchema)]
pub(crate) struct TraceBody {
    id: String,
    /// `event`, `event batch`, `notification`, `notification batch` or `subscriber`.
    kind: &'static str,
    timeline: Vec<PointBody>,
    /// Number of notifications by outcome of their last attempt.
    notifications: BTreeMap<&'static str, u64>,
    latencies: TraceLatenciesBody,
    /// Trace context of its event or message (W3C Trace Context); of a batch, if all its events share it.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<TraceContextBody>,
    /// Whether the result is truncated.
    truncated: bool,
}

/// One step of the trace.
#[derive(Serialize, ToSchema)]
pub(crate) struct PointBody {
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    what: &'static str,
    id: String,
    text: String,
}

/// A W3C trace context.
#[derive(Serialize, ToSchema)]
pub(crate) struct TraceContextBody {
    trace_id: String,
    /// The span from which it came; none if the trace began here.
    parent_span_id: Option<String>,
    /// Whether earlier steps sampled the trace.
    sampled: bool,
    /// Details, as received.
    #[serde(skip_serializing_if = "str::is_empty")]
    tracestate: Box<str>,
}

impl From<TraceContext> for TraceContextBody {
    fn from(context: TraceContext) -> Self {
        TraceContextBody {
            trace_id: hex::encode(context.trace),
            parent_span_id: context.parent().map(hex::encode),
            sampled: context.is_sampled(),
            tracestate: context.state,
        }
    }
}

/// Durations of the steps, in milliseconds.
#[derive(Serialize, ToSchema)]
pub(crate) struct TraceLatenciesBody {
    /// From acceptance to the match.
    generation_ms: Option<f64>,
    /// From the match to the first hand-over.
    wait_ms: Option<f64>,
    /// From the first hand-over to the last delivery.
    delivery_ms: Option<f64>,
}

impl TraceBody {
    pub(crate) fn new(id: String, trace: trace::Trace) -> Self {
        let point = |point: trace::Point| PointBody { at: point.at, what: point.what, id: point.id, text: point.text };
        let latencies = trace.latencies;
        TraceBody {
            id,
            kind: trace.subject.kind(),
            timeline: trace.timeline.into_iter().map(point).collect(),
            notifications: trace.notifications,
            latencies: TraceLatenciesBody {
                generation_ms: latencies.generation.map(millis),
                wait_ms: latencies.wait.map(millis),
                delivery_ms: latencies.delivery.map(millis),
            },
            context: trace.context.map(TraceContextBody::from),
            truncated: trace.truncated,
        }
    }
}
