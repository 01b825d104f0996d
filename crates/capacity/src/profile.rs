//! Load profiles: populations, events, other operations, and their distribution over the day.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

/// The expected load of an installation. Created by [`crate::read_profile`], which checks ranges.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// The name of the profile.
    pub name: String,
    /// The description, for people.
    pub description: Option<String>,
    /// Whether all roles share the nodes, or each role has its own nodes.
    pub roles: Roles,
    /// The number of nodes to evaluate; the required number if `None`.
    pub nodes: Option<f64>,
    /// The resources of a node; unknown ones default to those of the machine on which the costs were measured.
    pub node: Node,
    /// The target utilisation of a resource at the busiest time, from 0 to 1.
    pub utilisation: f64,
    /// Latency goals.
    pub goals: Goals,
    /// Populations: users who arrive, perform some operations and leave.
    pub populations: BTreeMap<String, Population>,
    /// Event streams, and their notifications.
    pub events: BTreeMap<String, Events>,
    /// Operations at a fixed rate.
    pub operations: BTreeMap<String, Load>,
    /// Delivery channels, and the capacity of their servers.
    pub channels: BTreeMap<String, Channel>,
    /// Stored objects, and the number of each.
    pub stored: BTreeMap<String, f64>,
    /// Retention time of history.
    pub keep: Duration,
    /// The distribution of the load over the day.
    pub day: Day,
}

/// The assignment of roles to nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Roles {
    /// All roles share the nodes.
    Together,
    /// Each role has its own nodes.
    Apart,
}

/// The resources of a node. `None` is unknown, and not a limit.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Node {
    /// The unit of `cores`: `core`, or a unit of an older method such as `MHz`.
    pub unit: Option<String>,
    /// The number of processors.
    pub cores: Option<f64>,
    /// Megabytes (10^6) of memory.
    pub memory_mb: Option<f64>,
    /// Disk bandwidth for writes, in megabytes per second.
    pub disk_mb_per_second: Option<f64>,
    /// Syncs, or disk transactions, per second.
    pub syncs_per_second: Option<f64>,
    /// Network bandwidth, in megabytes per second.
    pub wire_mb_per_second: Option<f64>,
}

/// Upper limits of latencies.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Goals {
    /// The median.
    pub p50: Option<Duration>,
    /// The 95th percentile.
    pub p95: Option<Duration>,
    /// The 99th percentile.
    pub p99: Option<Duration>,
}

/// A population: users who arrive, perform some operations and leave, with a constant number present.
#[derive(Debug, Clone, PartialEq)]
pub struct Population {
    /// The number of concurrent users.
    pub users: f64,
    /// Operations per visit.
    pub operations_per_visit: f64,
    /// The duration of a visit.
    pub visit: Duration,
    /// The operations; shares are fractions of `operations_per_visit`.
    pub shares: BTreeMap<String, Share>,
    /// Stored objects per user, and the number of each.
    pub stored_each: BTreeMap<String, f64>,
    /// Whether the rate is constant over the day.
    pub steady: bool,
}

/// The share of an operation in a visit.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// From 0 to 1.
    pub share: f64,
    /// Bytes of one operation.
    pub bytes: f64,
}

/// The default formatting operation.
pub const FORMAT: &str = "format";

/// An event stream, and its notifications.
#[derive(Debug, Clone, PartialEq)]
pub struct Events {
    /// Events per second, at a day factor of 1.
    pub rate: f64,
    /// Events per batch.
    pub batch: f64,
    /// Bytes of an event.
    pub bytes: f64,
    /// Notifications per event.
    pub matches: f64,
    /// Bytes of a formatted notification.
    pub notification_bytes: f64,
    /// The formatting operation.
    pub format: String,
    /// Notifications per message.
    pub digest: f64,
    /// Recipients per formatted message.
    pub recipients: f64,
    /// The channels; fractions of the notifications.
    pub channels: BTreeMap<String, f64>,
    /// Whether the rate is constant over the day.
    pub steady: bool,
}

/// An operation at a given rate.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// The operation.
    pub operation: String,
    /// Rate per second, at a day factor of 1.
    pub rate: f64,
    /// Bytes of one operation.
    pub bytes: f64,
    /// Items per batch.
    pub batch: f64,
    /// Channel, for deliveries.
    pub channel: Option<String>,
    /// Whether the rate is constant over the day.
    pub steady: bool,
}

/// A delivery channel. Its limits apply to all nodes together.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Channel {
    /// The delivery operation.
    pub operation: String,
    /// Most concurrent connections, sessions or workers.
    pub connections: Option<f64>,
    /// The response time of the server.
    pub answer: Option<Duration>,
    /// Most messages per second that the server accepts.
    pub rate: Option<f64>,
}

impl Channel {
    /// The highest message rate per second, if it is limited: by the rate, or by connections that each wait for the
    /// response.
    pub fn rate_max(&self) -> Option<f64> {
        let waiting = self.connections.zip(self.answer).map(|(connections, answer)| connections / answer.as_secs_f64());
        match (self.rate, waiting) {
            (Some(rate), Some(waiting)) => Some(rate.min(waiting)),
            (rate, waiting) => rate.or(waiting),
        }
    }
}

/// The distribution of the load over the day. Rates of the profile are at a factor of 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Day {
    /// A factor for each hour.
    pub curve: [f64; 24],
    /// Times with another factor.
    pub peaks: Vec<Peak>,
}

impl Default for Day {
    fn default() -> Self {
        Day { curve: [1.0; 24], peaks: Vec::new() }
    }
}

/// A time with another load.
#[derive(Debug, Clone, PartialEq)]
pub struct Peak {
    /// The start, in seconds of the day.
    pub at: f64,
    /// The duration.
    pub lasts: Duration,
    /// The factor during the peak, instead of the curve's.
    pub times: f64,
}
