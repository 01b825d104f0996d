//! Status and readiness of the platform.

mod disk_probe; // result of the last disk probe

use std::time::Duration;

pub use tocsin_capacity::saturation::{ResourceState, RoleState, Saturation};
use tocsin_exchange::{flow::Throttled, groups::GroupLoad, locations::LocationStatus};
use tocsin_model::{id::Name, time::Timestamp};
pub use tocsin_pipeline::{ApplicationStatus, DestinationState, SourceState, Switched, latency::Percentiles};
use tocsin_store::{
    inbox::InboxCounts,
    journal::{Backlog, Totals},
    records::RecordCounts,
    spool::PartitionLoad,
};

pub(crate) use self::disk_probe::DiskProbe;
use crate::{
    Service,
    attention::each_channel,
    error::ServiceError,
    keys::{Caller, Scope},
    sources::SourceStatus,
};

/// Lifetime of a disk probe.
const PROBE_FRESH: Duration = Duration::from_secs(5);
/// Write latency above which the disk counts as failed.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Status of the platform: totals only, no personal data.
#[derive(Debug, Clone)]
pub struct Status {
    /// The version of the program.
    pub version: &'static str,
    /// Start of this process.
    pub started_at: Timestamp,
    /// Now.
    pub now: Timestamp,
    /// Whether the index of every application is up to date.
    pub ready: bool,
    /// The applications that run.
    pub applications: Vec<(Name, ApplicationStatus)>,
    /// Totals by kind.
    pub counts: RecordCounts,
    /// Size of the feeds.
    pub inbox: InboxCounts,
    /// Waiting work.
    pub backlog: Backlog,
    /// Exchange messages that wait for an operator; `None` if they are not counted, or the spool is unavailable. The
    /// count ends at [`crate::attention::SUSPENDED_MESSAGES_MAX`].
    pub suspended_messages: Option<u64>,
    /// Totals since the journal was made.
    pub totals: Totals,
    /// Since the start of the process.
    pub latencies: LatencySummaries,
    /// Switched-off components.
    pub switches: Vec<Switched>,
    /// Throttling of exchanges.
    pub throttled: Vec<Throttled>,
    /// The worker groups of exchanges.
    pub workers: Vec<GroupLoad>,
    /// Size of each spool partition.
    pub partitions: Vec<PartitionLoad>,
    /// The locations of receive ports.
    pub locations: Vec<LocationStatus>,
    /// Running sources, by application.
    pub sources: Vec<(Name, SourceStatus)>,
    /// Saturation of this node, if monitored.
    pub saturation: Option<Saturation>,
    /// Number of destinations by application, channel and state, in the order of `DestinationState::ALL`.
    pub destinations: Vec<(Name, Name, [usize; DestinationState::ALL.len()])>,
}

/// Latency percentiles of the pipeline.
#[derive(Debug, Clone, Copy, Default)]
pub struct LatencySummaries {
    /// See `tocsin_pipeline::latency::Latencies`.
    pub accept: Percentiles,
    /// See `tocsin_pipeline::latency::Latencies`.
    pub matching: Percentiles,
    /// See `tocsin_pipeline::latency::Latencies`.
    pub deliver: Percentiles,
    /// See `tocsin_pipeline::latency::Latencies`.
    pub end_to_end: Percentiles,
}

impl Service {
    /// Returns the status of the platform.
    ///
    /// # Errors
    /// The scope `operations:read` is missing.
    pub async fn status(&self, caller: &Caller) -> Result<Status, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let suspended_messages = self.suspended_messages().await;
        if let Err(error) = &suspended_messages {
            tracing::warn!(%error, "the suspended messages are not counted: the spool is unavailable");
        }
        Ok(Status { suspended_messages: suspended_messages.ok(), ..self.totals() })
    }

    /// The public part of the status, without personal data, as the status page shows it.
    pub fn totals(&self) -> Status {
        let applications = self.pipeline.status();
        let latencies = self.pipeline.latencies();
        Status {
            version: self.version,
            started_at: self.started_at,
            now: self.clock.now(),
            ready: applications.iter().all(|(_, status)| status.ready),
            applications,
            counts: self.installation.counts(),
            inbox: self.inbox.counts(),
            backlog: self.open_work.backlog(),
            suspended_messages: None,
            totals: self.activity_log.totals(),
            latencies: LatencySummaries {
                accept: latencies.accept.percentiles(),
                matching: latencies.matching.percentiles(),
                deliver: latencies.deliver.percentiles(),
                end_to_end: latencies.end_to_end.percentiles(),
            },
            switches: self.pipeline.switches(),
            throttled: self.exchanges.as_ref().map(|exchanges| exchanges.operations.throttled()).unwrap_or_default(),
            workers: self.exchanges.as_ref().map(|exchanges| exchanges.workers()).unwrap_or_default(),
            partitions: self.exchanges.as_ref().map(|exchanges| exchanges.partitions()).unwrap_or_default(),
            locations: self
                .exchanges
                .as_ref()
                .map(|exchanges| exchanges.operations.all_locations())
                .unwrap_or_default(),
            sources: self.pipeline.all_sources().into_iter().map(|(name, source)| (name, source.into())).collect(),
            saturation: self.saturation.as_ref().map(|watch| watch.lock().state()),
            destinations: self.pipeline.destination_counts(),
        }
    }

    /// Faults that do not prevent service of the rest: definitions that do not run, and destinations whose messages
    /// wait and are not sent. The reasons of the former are only in `tocsin attention`, which needs a key.
    pub fn readiness_warnings(&self) -> Vec<String> {
        let applications = self.pipeline.failed_applications().into_iter();
        let exchanges = self.exchanges.as_ref().map(|all| all.operations.failed_exchanges()).unwrap_or_default();
        let failed = applications.map(|(name, _)| format!("the application `{name}` does not run"));
        let failed = failed.chain(exchanges.into_iter().map(|(name, _)| format!("the exchange `{name}` does not run")));
        let stalled = self.destinations_in(DestinationState::Stalled);
        let text = |stalled: &[(String, u64)]| {
            format!("messages wait for open destinations without being sent: {}", each_channel(stalled))
        };
        failed.chain((!stalled.is_empty()).then(|| text(&stalled))).collect()
    }

    /// Reasons why the platform is not ready; empty if it is. The disk is probed at most every few seconds.
    pub async fn ready(&self) -> Vec<String> {
        let mut reasons: Vec<String> = self
            .pipeline
            .status()
            .into_iter()
            .filter(|(_, status)| !status.ready)
            .map(|(name, _)| format!("the match index of `{name}` is being built"))
            .collect();
        let folder = self.free_space.as_ref().map(|space| &*space.folder);
        reasons.extend(folder.map(tocsin_store::sqlite::failed).unwrap_or_default());
        if let Some(space) = &self.free_space
            && let Some(free) = (space.bytes)()
            && free < space.bytes_min
        {
            reasons.push(format!("{free} bytes are free in {}; it needs {}", space.folder.display(), space.bytes_min));
        }
        let now = self.clock.now();
        let mut last = self.readiness.0.lock().await;
        let fresh = last.as_ref().filter(|(at, _)| now.since(*at) < PROBE_FRESH).map(|(_, said)| said.clone());
        let said = match fresh {
            Some(said) => said,
            None => {
                let said = match tokio::time::timeout(PROBE_TIMEOUT, self.probe()).await {
                    Ok(said) => said,
                    Err(_) => Err(format!("the disk took longer than {PROBE_TIMEOUT:?} for a few bytes")),
                };
                *last = Some((now, said.clone()));
                said
            }
        };
        reasons.extend(said.err());
        reasons
    }

    async fn probe(&self) -> Result<(), String> {
        self.maintenance.probe().await.map_err(|error| format!("the journal: {error}"))?;
        self.installation.probe().await.map_err(|error| format!("the records: {error}"))?;
        self.inbox.probe().await.map_err(|error| format!("the inbox: {error}"))?;
        Ok(())
    }
}
