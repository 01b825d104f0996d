//! The bounds and delays of the flow. Every one has a default that suits one machine.

use std::time::Duration;

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use tocsin_model::{hours::Hours, suppression::Policy, time::Timestamp};
use tocsin_sources::{Folders, Listeners};

/// Bounds and delays of the steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PipelineOptions {
    /// Most event batches that are matched and committed together, as one quantum.
    pub quantum_batches: usize,
    /// About how many packed bytes of events a quantum may hold. One batch is always taken, however large.
    pub quantum_bytes: usize,
    /// Shards of each application's match index, each with a thread of its own; at most 64. 0 is one for each core, up to
    /// 8.
    pub match_shards: usize,
    /// Most applications that are matched at the same time, at least 1. Those whose last quantum was slow are half of them at
    /// most, so that they leave room for the others.
    pub match_concurrency: usize,
    /// Most notifications of a channel that are formatted or on their way at the same time, and a quarter as many that are
    /// urgent or high. One work item is always taken, however large.
    pub in_flight_per_channel: usize,
    /// Most dispositions that wait to be recorded; reaching it records them at once.
    pub receipts_chunk: usize,
    /// How long a disposition may wait to be recorded, in milliseconds. A crash sends again what was not recorded.
    pub receipts_delay_ms: u64,
    /// From which time on a firing of a rule is listed as slow, in milliseconds.
    pub slow_rule_ms: u64,
    /// Most subscriptions of a due rule that are in its index at the same time. A run of more is done in parts.
    pub run_subscriptions: usize,
    /// After so many notifications the rest of a run of a due rule waits for the next quantum.
    pub run_notifications: usize,
    /// How often finished batches past their retention are looked for, in seconds.
    pub upkeep_seconds: u64,
    /// Batches that one step of retention removes, so that it never holds up the flow.
    pub prune_batches: usize,
    /// The hours of a day at which retention removes batches, by the clock of `retention_time_zone`; at any hour if there are
    /// none.
    pub retention_hours: Vec<Hours>,
    /// The IANA name of a time zone.
    pub retention_time_zone: String,
    /// How many days the sums of minutes are kept of which reports are made.
    pub activity_days: u32,
    /// Folders outside of the data folder that sources may take files from.
    pub source_folders: Folders,
    /// Where sources may listen beside their own addresses.
    pub source_listeners: Listeners,
    /// What bounces and complaints make of an address.
    pub suppression: Policy,
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
            source_listeners: Listeners::default(),
            suppression: Policy::default(),
        }
    }
}

impl PipelineOptions {
    /// Whether retention may remove batches at this time. A zone that nobody knows is that of Greenwich.
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
