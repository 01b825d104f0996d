//! Status of the platform.

use std::collections::BTreeMap;

use serde::Serialize;
use tocsin_exchange::groups::GroupLoad;
use tocsin_model::id::Name;
use tocsin_model::receipt::Outcome;
use tocsin_model::time::Timestamp;
use tocsin_service::status;
use tocsin_store::spool::PartitionLoad;
use utoipa::ToSchema;

use super::{
    exchanges::{LocationBody, ThrottledBody},
    millis,
    switches::SwitchBody,
};
use crate::app::App;

/// Status of the platform.
#[derive(Serialize, ToSchema)]
pub(crate) struct StatusBody {
    version: &'static str,
    #[schema(value_type = String, format = DateTime)]
    started_at: Timestamp,
    ready: bool,
    applications: Vec<ApplicationStatusBody>,
    counts: CountsBody,
    backlog: BacklogBody,
    totals: TotalsBody,
    latencies: LatenciesBody,
    /// Everything that is switched off.
    switches: Vec<SwitchBody>,
    /// Active throttles of exchanges.
    throttled: Vec<ThrottledBody>,
    /// The worker groups of exchanges.
    workers: Vec<WorkersBody>,
    /// The partitions of the spool, in their order.
    partitions: Vec<PartitionBody>,
    /// Receive locations.
    locations: Vec<LocationBody>,
    /// Headroom of this node, by the last minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    saturation: Option<SaturationBody>,
}

/// A worker group of exchanges.
#[derive(Serialize, ToSchema)]
pub(crate) struct WorkersBody {
    /// `receive`, `route`, `send` or `track`.
    group: &'static str,
    /// Messages that are worked on.
    busy: usize,
    /// Messages that wait for a worker.
    waiting: usize,
    /// Present limit of workers.
    most: usize,
}

impl From<GroupLoad> for WorkersBody {
    fn from(GroupLoad { group, busy, waiting, most }: GroupLoad) -> Self {
        WorkersBody { group: group.word(), busy, waiting, most }
    }
}

/// A partition of the spool.
#[derive(Serialize, ToSchema)]
#[schema(as = SpoolPartition)]
pub(crate) struct PartitionBody {
    /// Its number; that of `spool.db` is 0.
    partition: usize,
    /// Messages in it that are not ended.
    open: u64,
    /// Bytes of its file and its log.
    bytes: u64,
}

impl From<(usize, PartitionLoad)> for PartitionBody {
    fn from((partition, PartitionLoad { open, bytes }): (usize, PartitionLoad)) -> Self {
        PartitionBody { partition, open, bytes }
    }
}

/// Headroom of a node.
#[derive(Serialize, ToSchema)]
pub(crate) struct SaturationBody {
    /// Period of the rates, in seconds.
    seconds: f64,
    /// Whether costs are configured (`capacity.vectors`), which a report per role needs.
    has_vectors: bool,
    /// Resources, the most used first.
    resources: Vec<ResourceStateBody>,
    /// Roles, the one with the least headroom first.
    roles: Vec<RoleStateBody>,
}

/// A resource of a node.
#[derive(Serialize, ToSchema)]
pub(crate) struct ResourceStateBody {
    /// `processor`, `disk`, `syncs` or `wire`.
    resource: &'static str,
    /// Used share, 0 to 1: measured, or else by the vectors.
    used: f64,
    /// Used share by the vectors; if it differs much from the measured one, the vectors belong to another machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    by_vectors: Option<f64>,
    /// Factor by which the total load can grow before the resource is exhausted.
    #[serde(skip_serializing_if = "Option::is_none")]
    headroom: Option<f64>,
    /// Seconds until exhaustion, if the load continues to grow as in the last hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    full_in_seconds: Option<f64>,
}

/// A role of a node.
#[derive(Serialize, ToSchema)]
pub(crate) struct RoleStateBody {
    /// The role.
    role: String,
    /// Factor by which its load can grow, if the others stay the same, until `first` is exhausted.
    #[serde(skip_serializing_if = "Option::is_none")]
    headroom: Option<f64>,
    /// Bottleneck: a resource, or an operation beyond the rate to which its cost is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<String>,
    /// The share of the processors that it uses, by the vectors.
    processor: f64,
    /// Operations per second.
    per_second: BTreeMap<String, f64>,
}

impl From<status::Saturation> for SaturationBody {
    fn from(found: status::Saturation) -> Self {
        let resource = |found: status::ResourceState| ResourceStateBody {
            resource: found.resource.word(),
            used: found.used,
            by_vectors: found.by_vectors,
            headroom: found.headroom,
            full_in_seconds: found.full_in_seconds,
        };
        let role = |found: status::RoleState| RoleStateBody {
            role: found.role,
            headroom: found.headroom,
            first: found.first,
            processor: found.processor,
            per_second: found.per_second,
        };
        SaturationBody {
            seconds: found.seconds,
            has_vectors: found.has_vectors,
            resources: found.resources.into_iter().map(resource).collect(),
            roles: found.roles.into_iter().map(role).collect(),
        }
    }
}

/// Status of one application.
#[derive(Serialize, ToSchema)]
pub(crate) struct ApplicationStatusBody {
    name: String,
    version: u32,
    /// Subscriptions in the match index.
    indexed: u64,
    index_bytes: u64,
    /// Shards of the match index.
    shards: u64,
    /// Subscriptions that cannot be matched by this version; see `unusable-subscriptions`.
    unusable: u64,
    /// Changes of the records that the match index has not followed yet.
    changes_behind: u64,
    ready: bool,
    /// Until when its events wait because it made more notifications than its throttle allows, about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    throttled_until: Option<Timestamp>,
    /// Until when events of a class wait because of a throttle of the class, about. Runs of schedules are of the class `due`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, String>)]
    throttled_classes: BTreeMap<String, Timestamp>,
}

/// Counts.
#[derive(Serialize, ToSchema)]
pub(crate) struct CountsBody {
    subscribers: u64,
    devices: u64,
    subscriptions: u64,
    /// Items of all feeds, broadcasts not among them.
    inbox_items: u64,
}

/// Waiting work.
#[derive(Serialize, ToSchema)]
pub(crate) struct BacklogBody {
    event_batches: u64,
    events: u64,
    event_bytes: u64,
    failed_batches: u64,
    notifications: u64,
    work_items: u64,
    /// Notifications that wait for an operator.
    suspended: u64,
    /// Exchange messages that wait for an operator; counted up to 100,000 in each partition of the spool. `null` if the
    /// spool is unavailable.
    suspended_messages: Option<u64>,
    #[schema(value_type = Option<String>, format = DateTime)]
    oldest_event: Option<Timestamp>,
}

/// Totals since the journal was made.
#[derive(Serialize, ToSchema)]
pub(crate) struct TotalsBody {
    event_batches: u64,
    events: u64,
    notification_batches: u64,
    notifications: u64,
    /// Attempts by outcome.
    attempts: BTreeMap<&'static str, u64>,
}

/// Latencies since the start of the process.
#[derive(Serialize, ToSchema)]
pub(crate) struct LatenciesBody {
    accept: PercentilesBody,
    #[serde(rename = "match")]
    matching: PercentilesBody,
    deliver: PercentilesBody,
    end_to_end: PercentilesBody,
}

/// Percentiles in milliseconds.
#[derive(Serialize, ToSchema)]
pub(crate) struct PercentilesBody {
    p50_ms: f64,
    p95_ms: f64,
    p99_ms: f64,
    count: u64,
}

impl From<tocsin_service::status::Percentiles> for PercentilesBody {
    fn from(found: tocsin_service::status::Percentiles) -> Self {
        PercentilesBody {
            p50_ms: millis(found.p50),
            p95_ms: millis(found.p95),
            p99_ms: millis(found.p99),
            count: found.count,
        }
    }
}

impl StatusBody {
    /// Adds the descriptions of keys.
    pub(crate) fn named(mut self, app: &App) -> Self {
        self.switches = self.switches.into_iter().map(|switch| switch.named(app)).collect();
        self
    }
}

impl From<status::Status> for StatusBody {
    fn from(status: status::Status) -> Self {
        let application = |(name, status): (Name, status::ApplicationStatus)| ApplicationStatusBody {
            name: name.to_string(),
            version: status.version,
            indexed: status.indexed,
            index_bytes: status.index_bytes,
            shards: status.shards,
            unusable: status.unusable,
            changes_behind: status.changes_behind,
            ready: status.ready,
            throttled_until: status.throttled_until,
            throttled_classes: {
                let classes = status.throttled_classes.into_iter();
                classes.map(|(class, until)| (class.to_string(), until)).collect()
            },
        };
        let (counts, backlog, totals, latencies) = (status.counts, status.backlog, status.totals, status.latencies);
        StatusBody {
            version: status.version,
            started_at: status.started_at,
            ready: status.ready,
            applications: status.applications.into_iter().map(application).collect(),
            counts: CountsBody {
                subscribers: counts.subscribers,
                devices: counts.devices,
                subscriptions: counts.subscriptions,
                inbox_items: status.inbox.items,
            },
            backlog: BacklogBody {
                event_batches: backlog.event_batches,
                events: backlog.events,
                event_bytes: backlog.event_bytes,
                failed_batches: backlog.failed_batches,
                notifications: backlog.notifications,
                work_items: backlog.work_items,
                suspended: backlog.suspended,
                suspended_messages: status.suspended_messages,
                oldest_event: backlog.oldest_event,
            },
            totals: TotalsBody {
                event_batches: totals.event_batches,
                events: totals.events,
                notification_batches: totals.notification_batches,
                notifications: totals.notifications,
                attempts: Outcome::ALL.iter().map(|outcome| outcome.word()).zip(totals.attempts).collect(),
            },
            switches: status.switches.into_iter().map(SwitchBody::from).collect(),
            throttled: status.throttled.into_iter().map(ThrottledBody::from).collect(),
            workers: status.workers.into_iter().map(WorkersBody::from).collect(),
            partitions: status.partitions.into_iter().enumerate().map(PartitionBody::from).collect(),
            locations: status.locations.into_iter().map(LocationBody::from).collect(),
            saturation: status.saturation.map(SaturationBody::from),
            latencies: LatenciesBody {
                accept: latencies.accept.into(),
                matching: latencies.matching.into(),
                deliver: latencies.deliver.into(),
                end_to_end: latencies.end_to_end.into(),
            },
        }
    }
}
