//! State of destinations.

use serde::Serialize;
use tocsin_model::id::Name;
use tocsin_service::destinations::DestinationStatus;
use utoipa::ToSchema;

/// Current state of a destination of a channel. Known since the start of the process; destinations without messages
/// or failures for a long time are dropped.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = DestinationStatus)]
pub(crate) struct DestinationStatusBody {
    /// The channel.
    #[schema(value_type = String)]
    channel: Name,
    /// Scheme, host and port; of a paced mail channel the mailbox provider.
    destination: String,
    /// `open`; `paused` after failures in a row, or because a mailbox provider holds mail back; on `trial`: one message probes it; or `stalled`: messages have
    /// waited for a minute although it is not paused.
    state: &'static str,
    /// Maximum number of messages in flight (adaptive concurrency).
    concurrency: u32,
    /// Messages in flight.
    busy: u32,
    /// Messages waiting in the channel.
    waiting: u32,
    /// Recent response time, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ms: Option<f64>,
    /// Failures in a row; one without any answer counts as four.
    failures: u32,
    /// Time since the first of these failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    failing_seconds: Option<u64>,
    /// Remaining pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_seconds: Option<u64>,
    /// Last known problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl From<DestinationStatus> for DestinationStatusBody {
    fn from(found: DestinationStatus) -> Self {
        DestinationStatusBody {
            channel: found.channel,
            destination: found.destination,
            state: found.state,
            concurrency: found.concurrency,
            busy: found.busy,
            waiting: found.waiting,
            latency_ms: found.latency_ms,
            failures: found.failures,
            failing_seconds: found.failing_seconds,
            paused_seconds: found.paused_seconds,
            reason: found.reason,
        }
    }
}
