//! Who does how much of what: populations, events, other operations, and when.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

/// What is expected of an installation. Made by [`crate::read_profile`], which checks that numbers are in their bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// What it is about.
    pub description: Option<String>,
    /// Whether each node does everything, or each role has nodes of its own.
    pub roles: Roles,
    /// Nodes to look at; as many as are needed if not given.
    pub nodes: Option<f64>,
    /// What a node has; where it says nothing, what the machine had on which the costs were measured.
    pub node: Node,
    /// How much of a resource may be in use at the busiest time, from 0 to 1.
    pub utilisation: f64,
    /// What latencies should be.
    pub goals: Goals,
    /// People who come, do something and leave.
    pub populations: BTreeMap<String, Population>,
    /// What happens, and whom it concerns.
    pub events: BTreeMap<String, Events>,
    /// Operations that just come at a rate.
    pub operations: BTreeMap<String, Load>,
    /// How notifications leave, and how fast the far side is.
    pub channels: BTreeMap<String, Channel>,
    /// What is kept, and how many of it there are.
    pub stored: BTreeMap<String, f64>,
    /// For how long what happened is kept.
    pub keep: Duration,
    /// How the load is spread over a day.
    pub day: Day,
}

/// Where the roles run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Roles {
    /// Every node does everything.
    Together,
    /// Each role has nodes of its own.
    Apart,
}

/// What a node has. `None` is not known, and bounds nothing.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Node {
    /// What `cores` counts: `core`, or a unit of an older method such as `MHz`.
    pub unit: Option<String>,
    /// Processors.
    pub cores: Option<f64>,
    /// Megabytes (10^6) of memory.
    pub memory_mb: Option<f64>,
    /// Megabytes that its disk writes in a second.
    pub disk_mb_per_second: Option<f64>,
    /// Syncs, or transactions of the disk, in a second.
    pub syncs_per_second: Option<f64>,
    /// Megabytes that its network carries in a second.
    pub wire_mb_per_second: Option<f64>,
}

/// The longest that latencies may be.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Goals {
    /// Of half of all.
    pub p50: Option<Duration>,
    /// Of 95 in 100.
    pub p95: Option<Duration>,
    /// Of 99 in 100.
    pub p99: Option<Duration>,
}

/// People who come, do something and leave; as many are there at any time.
#[derive(Debug, Clone, PartialEq)]
pub struct Population {
    /// How many are there at the same time.
    pub users: f64,
    /// What one does in a visit.
    pub operations_per_visit: f64,
    /// How long a visit is.
    pub visit: Duration,
    /// What they do; the shares are fractions of `operations_per_visit`.
    pub shares: BTreeMap<String, Share>,
    /// What is kept for each, and how many.
    pub stored_each: BTreeMap<String, f64>,
    /// Whether they come at the same rate all day.
    pub steady: bool,
}

/// A part of what is done in a visit.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// From 0 to 1.
    pub share: f64,
    /// Bytes of one.
    pub bytes: f64,
}

/// The operation that formats, if a profile names no other.
pub const FORMAT: &str = "format";

/// What happens, and whom it concerns.
#[derive(Debug, Clone, PartialEq)]
pub struct Events {
    /// Events in a second, at factor 1 of the day.
    pub rate: f64,
    /// How many come together.
    pub batch: f64,
    /// Bytes of one.
    pub bytes: f64,
    /// Notifications that one makes.
    pub matches: f64,
    /// Bytes of a notification, formatted.
    pub notification_bytes: f64,
    /// The operation that formats a message.
    pub format: String,
    /// Notifications that one message tells.
    pub digest: f64,
    /// Recipients that get a message formatted once.
    pub recipients: f64,
    /// How they leave; fractions of the notifications.
    pub channels: BTreeMap<String, f64>,
    /// Whether they come at the same rate all day.
    pub steady: bool,
}

/// Operations at a rate.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// Which.
    pub operation: String,
    /// How many in a second, at factor 1 of the day.
    pub rate: f64,
    /// Bytes of one.
    pub bytes: f64,
    /// How many come together.
    pub batch: f64,
    /// The channel by which they leave, if any.
    pub channel: Option<String>,
    /// Whether they come at the same rate all day.
    pub steady: bool,
}

/// How notifications leave. What it can take is a bound of all nodes together.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Channel {
    /// The operation that is a delivery.
    pub operation: String,
    /// Most connections, sessions or workers at the same time.
    pub connections: Option<f64>,
    /// How long the far side takes for one.
    pub answer: Option<Duration>,
    /// Most that it takes in a second.
    pub rate: Option<f64>,
}

impl Channel {
    /// Most messages in a second, if anything bounds them: by its rate, or by connections that each wait for an answer.
    pub fn rate_max(&self) -> Option<f64> {
        let waiting = self.connections.zip(self.answer).map(|(connections, answer)| connections / answer.as_secs_f64());
        match (self.rate, waiting) {
            (Some(rate), Some(waiting)) => Some(rate.min(waiting)),
            (rate, waiting) => rate.or(waiting),
        }
    }
}

/// How the load is spread over a day. Loads say what they are at factor 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Day {
    /// A factor for each hour.
    pub curve: [f64; 24],
    /// Times at which the load is another.
    pub peaks: Vec<Peak>,
}

impl Default for Day {
    fn default() -> Self {
        Day { curve: [1.0; 24], peaks: Vec::new() }
    }
}

/// A time at which the load is another.
#[derive(Debug, Clone, PartialEq)]
pub struct Peak {
    /// When it begins, in seconds of the day.
    pub at: f64,
    /// How long it lasts.
    pub lasts: Duration,
    /// The factor in that time, in place of the curve's.
    pub times: f64,
}
