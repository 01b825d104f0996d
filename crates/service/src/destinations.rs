//! Destinations of channels, and the state of each.

use tocsin_model::id::Name;
use tocsin_pipeline::Destination;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
};

/// Maximum number of destinations returned per channel.
pub const DESTINATIONS_MAX: usize = 1000;

/// Current state of a destination of a channel. Known since the start of the process; destinations without messages
/// or failures for a long time are dropped.
#[derive(Debug, Clone, PartialEq)]
pub struct DestinationStatus {
    /// The channel.
    pub channel: Name,
    /// Scheme, host and port; of a paced mail channel the mailbox provider.
    pub destination: String,
    /// `open`; `paused` after failures in a row, or because a mailbox provider holds mail back; on `trial`: one message probes it; or `stalled`: messages have
    /// waited for a minute although it is not paused.
    pub state: &'static str,
    /// Maximum number of messages in flight (adaptive concurrency).
    pub concurrency: u32,
    /// Messages in flight.
    pub busy: u32,
    /// Messages waiting in the channel.
    pub waiting: u32,
    /// Recent response time, in milliseconds.
    pub latency_ms: Option<f64>,
    /// Failures in a row; one without any answer counts as four.
    pub failures: u32,
    /// Time since the first of these failures.
    pub failing_seconds: Option<u64>,
    /// Remaining pause.
    pub paused_seconds: Option<u64>,
    /// Last known problem.
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
            // Rounded up: a pause lasts at least a second.
            paused_seconds: found.paused_for.map(|time| time.as_millis().div_ceil(1000) as u64),
            reason: found.reason,
        }
    }
}

impl Service {
    /// Lists the destinations of an application's channels, by channel, failing ones first, then the busiest; at most
    /// `limit` per channel.
    ///
    /// # Errors
    /// The scope `operations:read` is missing, or the application does not exist.
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
