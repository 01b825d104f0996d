//! What one operation costs, resource by resource, as a function of its size and of how many come together.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::profile::Node;

/// What may run out. Never added up into one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Time on processors.
    Processor,
    /// Bytes written to disk.
    Disk,
    /// Syncs of the disk.
    Syncs,
    /// Bytes on the wire.
    Wire,
}

impl Resource {
    /// All of them.
    pub const ALL: [Resource; 4] = [Resource::Processor, Resource::Disk, Resource::Syncs, Resource::Wire];

    /// Its one word.
    pub fn word(self) -> &'static str {
        match self {
            Resource::Processor => "processor",
            Resource::Disk => "disk",
            Resource::Syncs => "syncs",
            Resource::Wire => "wire",
        }
    }

    /// How much of it a node has in a second, in the unit of [`Cost::of`]; `None` if nobody knows.
    pub fn of_node(self, node: &Node) -> Option<f64> {
        match self {
            Resource::Processor => node.cores,
            Resource::Disk => node.disk_mb_per_second.map(|megabytes| megabytes * 1e6),
            Resource::Syncs => node.syncs_per_second,
            Resource::Wire => node.wire_mb_per_second.map(|megabytes| megabytes * 1e6),
        }
    }
}

/// Measured costs. Made by [`crate::read_vectors`].
#[derive(Debug, Clone, PartialEq)]
pub struct Vectors {
    /// Their name.
    pub name: String,
    /// Of what they were measured.
    pub version: Option<String>,
    /// How and when.
    pub measured: Option<String>,
    /// On what.
    pub machine: Node,
    /// Megabytes of memory of a node that does nothing; subtracted from what follows.
    pub base_memory_mb: f64,
    /// What can be done.
    pub operations: BTreeMap<String, Operation>,
    /// What can be kept.
    pub stored: BTreeMap<String, Stored>,
}

impl Vectors {
    /// What an operation costs, if they know it. A profile that only says that entries are changed means that a value takes
    /// the place of another; one whose channel is called `mail` means SMTP.
    pub fn operation(&self, name: &str) -> Option<&Operation> {
        let meant = match name {
            "directory.modify" => "directory.modify_replace",
            "deliver.mail" => "deliver.smtp",
            name => name,
        };
        self.operations.get(name).or_else(|| self.operations.get(meant))
    }
}

/// An operation and where its cost is known.
#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    /// What is done.
    pub about: Option<String>,
    /// What one costs in each role that takes part.
    pub roles: BTreeMap<String, Cost>,
    /// Bytes between which the cost was measured.
    pub bytes: Option<(f64, f64)>,
    /// Batches between which it was measured.
    pub batch: Option<(f64, f64)>,
    /// How many in a second a node of that machine did before the cost of one began to rise.
    pub knee: Option<f64>,
}

/// What one operation costs one role.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cost {
    /// Microseconds on processors.
    pub processor: Linear,
    /// Bytes written.
    pub disk: Linear,
    /// Syncs.
    pub syncs: Linear,
    /// Bytes on the wire.
    pub wire: Linear,
}

impl Cost {
    /// What one of so many bytes costs in a batch of so many: seconds, bytes, syncs, bytes.
    pub fn of(&self, resource: Resource, bytes: f64, batch: f64) -> f64 {
        match resource {
            Resource::Processor => self.processor.of(bytes, batch) / 1e6,
            Resource::Disk => self.disk.of(bytes, batch),
            Resource::Syncs => self.syncs.of(bytes, batch),
            Resource::Wire => self.wire.of(bytes, batch),
        }
    }
}

/// A cost that a batch has once, each item has, and each kilobyte (10^3) of an item has.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Linear {
    /// For the batch, however many are in it.
    pub batch: f64,
    /// For each.
    pub item: f64,
    /// For each kilobyte of one.
    pub kilobyte: f64,
}

impl Linear {
    fn of(self, bytes: f64, batch: f64) -> f64 {
        self.batch / batch.max(1.0) + self.item + self.kilobyte * bytes / 1e3
    }
}

/// What is kept for one thing.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stored {
    /// Bytes of memory.
    pub memory_bytes: f64,
    /// Bytes of disk.
    pub disk_bytes: f64,
}
