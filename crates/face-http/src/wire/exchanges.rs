//! Throttles and receive locations of exchanges.

use serde::Serialize;
use tocsin_exchange::{flow::Throttled, locations::LocationStatus};
use tocsin_model::{
    exchange::{FlowSide, ThrottleReason},
    id::Name,
    time::Timestamp,
};
use utoipa::ToSchema;

/// An active throttle.
#[derive(Serialize, ToSchema)]
#[schema(as = Throttled)]
pub(crate) struct ThrottledBody {
    #[schema(value_type = String)]
    exchange: Name,
    /// `publishing`: where messages come in; `delivery`: where they leave.
    #[schema(value_type = String)]
    side: FlowSide,
    /// The port that causes it, if it is a single one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    port: Option<Name>,
    /// `operator`, `memory`, `disk`, `store_growth`, `in_flight` or `rate_imbalance`.
    #[schema(value_type = String)]
    reason: ThrottleReason,
    #[schema(value_type = String, format = DateTime)]
    since: Timestamp,
    /// In words.
    detail: String,
}

impl From<Throttled> for ThrottledBody {
    fn from(Throttled { exchange, side, port, reason, since, detail }: Throttled) -> Self {
        ThrottledBody { exchange, side, port, reason, since, detail }
    }
}

/// Current state of a receive location; counters start at its last start.
#[derive(Serialize, ToSchema)]
#[schema(as = Location)]
pub(crate) struct LocationBody {
    #[schema(value_type = String)]
    exchange: Name,
    #[schema(value_type = String)]
    port: Name,
    #[schema(value_type = String)]
    location: Name,
    /// Its kind, such as `directory`.
    #[schema(value_type = String)]
    kind: Name,
    /// `starting`, `running`, `waiting` while throttled, `held` while switched off or outside its service window,
    /// `backing_off` after errors, or `failed` after many; in the last two states it is retried automatically.
    state: &'static str,
    #[schema(value_type = String, format = DateTime)]
    since: Timestamp,
    /// The obstacle. While waiting, it begins with the reason of throttling, such as `rate_imbalance`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Consecutive errors.
    failures: u32,
    /// When it is opened again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    retry_at: Option<Timestamp>,
    /// Messages taken.
    messages: u64,
    /// Time of the last message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    last_at: Option<Timestamp>,
    /// Age of the oldest message of the last batch, in seconds, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    lag_seconds: Option<f64>,
    /// Backlog at the source: files or messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<u64>,
}

impl From<LocationStatus> for LocationBody {
    fn from(LocationStatus { key, kind, health, messages, last_at }: LocationStatus) -> Self {
        LocationBody {
            exchange: key.exchange,
            port: key.port,
            location: key.location,
            kind,
            state: health.state.word(),
            since: health.since,
            reason: health.reason,
            failures: health.failures,
            retry_at: health.retry_at,
            messages,
            last_at,
            lag_seconds: health.lag.map(|lag| lag.as_secs_f64()),
            waiting: health.waiting,
        }
    }
}
