//! Where messages go, and how each destination does.

use serde::Serialize;
use tocsin_model::id::Name;
use tocsin_pipeline::Destination;
use utoipa::ToSchema;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
};

/// Destinations of a channel that are shown at most.
pub const DESTINATIONS_MAX: usize = 1000;

/// A destination of a channel, as it is at this moment. Known since the start of the process; one that has long had
/// neither messages nor trouble is forgotten.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct DestinationStatus {
    /// The channel.
    #[schema(value_type = String)]
    pub channel: Name,
    /// Scheme, host and port.
    pub destination: String,
    /// `open`, `paused` after failures in a row, on `trial`: one message finds out whether it is back, or `stalled`:
    /// messages have waited for a minute although none is held back.
    pub state: &'static str,
    /// How many messages it may get at the same time.
    pub concurrency: u32,
    /// How many are on their way.
    pub busy: u32,
    /// How many wait in the channel.
    pub waiting: u32,
    /// What an answer takes of late, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<f64>,
    /// Failures in a row; one without any answer counts as four.
    pub failures: u32,
    /// How long it has only failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failing_seconds: Option<u64>,
    /// How much longer nothing is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_seconds: Option<u64>,
    /// What is wrong, as far as that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl DestinationStatus {
    fn new(channel: &Name, found: Destination) -> Self {
        DestinationStatus {
            channel: channel.clone(),
            destination: found.name,
            state: found.state.word(),
            concurrency: found.concurrency,
            busy: found.busy,
            waiting: found.waiting,
            latency_ms: found.latency.map(|latency| (latency.as_secs_f64() * 1e5).round() / 100.0),
            failures: found.failures,
            failing_seconds: found.failing_for.map(|time| time.as_secs()),
            // Rounded up: one that is paused is so for a second at least.
            paused_seconds: found.paused_for.map(|time| time.as_millis().div_ceil(1000) as u64),
            reason: found.reason,
        }
    }
}

impl Service {
    /// The destinations of an application's channels, by channel, those with trouble first, then those with most to do;
    /// at most `limit` of each channel.
    ///
    /// # Errors
    /// The scope `operations:read` is missing, or there is no such application.
    pub async fn destinations(
        &self,
        caller: &Caller,
        application: &Name,
        limit: usize,
    ) -> Result<Vec<DestinationStatus>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        self.current(application).await?.ok_or_else(|| ServiceError::no_application(application))?;
        let found = self.pipeline.destinations(application, limit.min(DESTINATIONS_MAX));
        let statuses = found
            .into_iter()
            .flat_map(|(channel, found)| found.into_iter().map(move |found| DestinationStatus::new(&channel, found)));
        Ok(statuses.collect())
    }
}
