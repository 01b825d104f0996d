//! Limits and delays of the pipeline. The defaults suit one machine.

use std::{path::PathBuf, time::Duration};

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use tocsin_model::{hours::Hours, suppression::Policy, time::Timestamp};
use tocsin_sources::{Folders, Listeners};

/// Limits and delays of the steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PipelineOptions {
    /// Maximum number of event batches that are matched and committed together, as one quantum.
    pub quantum_batches: usize,
    /// Approximate limit of packed event bytes per quantum. At least one batch is taken, of any size.
    pub quantum_bytes: usize,
    /// Shards of each application's match index, each with its own thread; at most 64. 0: one per core, up to 8.
    pub match_shards: usize,
    /// Maximum number of applications matched at the same time, at least 1. Applications whose last quantum was slow
    /// may use at most half of this.
    pub match_concurrency: usize,
    /// Maximum number of notifications of a channel that are formatted or in flight, plus a quarter as many of urgent
    /// or high priority. At least one work item is taken, of any size.
    pub in_flight_per_channel: usize,
    /// Maximum number of dispositions waiting to be recorded; at this number they are recorded at once.
    pub receipts_chunk: usize,
    /// Maximum time a disposition waits to be recorded, in milliseconds. After a crash, unrecorded notifications are
    /// sent again.
    pub receipts_delay_ms: u64,
    /// Duration from which a firing of a rule is listed as slow, in milliseconds.
    pub slow_rule_ms: u64,
    /// Maximum number of subscriptions of a due rule in its index at a time. A larger run is done in parts.
    pub run_subscriptions: usize,
    /// Number of notifications after which the rest of a run of a due rule waits for the next quantum.
    pub run_notifications: usize,
    /// Interval of the retention check, in seconds.
    pub upkeep_seconds: u64,
    /// Batches removed per step of retention, so that it never blocks the pipeline for long.
    pub prune_batches: usize,
    /// Hours of the day at which retention removes batches, in `retention_time_zone`; empty: at any hour.
    pub retention_hours: Vec<Hours>,
    /// IANA time zone of `retention_hours`.
    pub retention_time_zone: String,
    /// Days for which the per-minute sums for reports are kept.
    pub activity_days: u32,
    /// Folders outside of the data folder from which sources may read files.
    pub source_folders: Folders,
    /// Folders outside of the data folder to which channels may write.
    pub channel_folders: Vec<PathBuf>,
    /// Further addresses on which sources may listen.
    pub source_listeners: Listeners,
    /// Policy that decides how bounces and complaints suppress an address.
    pub suppression: Policy,
    /// Retention of the evidence of consents after its person was erased. It has no address then.
    pub evidence_kept: Duration,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        PipelineOptions {
            quantum_batches: 256,
            quantum_bytes: 4 << 20,
            match_shards: 1,
            match_concurrency: 32,
            in_flight_per_channel: 10_000,
            receipts_chunk: 2_048,
            receipts_delay_ms: 25,
            slow_rule_ms: 1_000,
            run_subscriptions: 50_000,
            run_notifications: 500_000,
            upkeep_seconds: 60,
            prune_batches: 200,
            retention_hours: Vec::new(),
            retention_time_zone: "UTC".to_owned(),
            activity_days: 90,
            source_folders: Folders::default(),
            channel_folders: Vec::new(),
            source_listeners: Listeners::default(),
            suppression: Policy::default(),
            evidence_kept: Duration::from_secs(3 * 365 * 86_400),
        }
    }
}

impl PipelineOptions {
    /// Whether retention may remove batches at this time. An unknown time zone means UTC.
    pub fn may_prune(&self, now: Timestamp) -> bool {
        let zone = TimeZone::get(&self.retention_time_zone).unwrap_or(TimeZone::UTC);
        self.retention_hours.is_empty() || self.retention_hours.iter().any(|hours| hours.end_of(&zone, now).is_some())
    }

    /// See `slow_rule_ms`.
    pub fn slow_rule(&self) -> Duration {
        Duration::from_millis(self.slow_rule_ms)
    }

    /// See `receipts_delay_ms`.
    pub fn receipts_delay(&self) -> Duration {
        Duration::from_millis(self.receipts_delay_ms)
    }
}
