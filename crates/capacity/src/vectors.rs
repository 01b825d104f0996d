//! Cost vectors: the measured cost of each operation per resource, as a function of item size and batch size.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::profile::Node;

/// A limited resource. Resources are never added up into one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Processor time.
    Processor,
    /// Bytes written to disk.
    Disk,
    /// Syncs of the disk.
    Syncs,
    /// Bytes on the network.
    Wire,
}

impl Resource {
    /// All of them.
    pub const ALL: [Resource; 4] = [Resource::Processor, Resource::Disk, Resource::Syncs, Resource::Wire];

    /// The name in files and output.
    pub fn word(self) -> &'static str {
        match self {
            Resource::Processor => "processor",
            Resource::Disk => "disk",
            Resource::Syncs => "syncs",
            Resource::Wire => "wire",
        }
    }

    /// The capacity of a node per second, in the unit of [`Cost::of`]; `None` if unknown.
    pub fn of_node(self, node: &Node) -> Option<f64> {
        match self {
            Resource::Processor => node.cores,
            Resource::Disk => node.disk_mb_per_second.map(|megabytes| megabytes * 1e6),
            Resource::Syncs => node.syncs_per_second,
            Resource::Wire => node.wire_mb_per_second.map(|megabytes| megabytes * 1e6),
        }
    }
}

/// Measured costs. Created by [`crate::read_vectors`].
#[derive(Debug, Clone, PartialEq)]
pub struct Vectors {
    /// The name of the vectors.
    pub name: String,
    /// The version of the measured software.
    pub version: Option<String>,
    /// Date and method of the measurement.
    pub measured: Option<String>,
    /// The machine.
    pub machine: Node,
    /// Memory of an idle node in megabytes; not included in the sizes of stored objects.
    pub base_memory_mb: f64,
    /// The operations.
    pub operations: BTreeMap<String, Operation>,
    /// The stored objects.
    pub stored: BTreeMap<String, Stored>,
}

impl Vectors {
    /// The operation of a name, if it is known. The generic name for changed entries means replacing a value; the
    /// channel name `mail` means SMTP.
    pub fn operation(&self, name: &str) -> Option<&Operation> {
        let meant = match name {
            "directory.modify" => "directory.modify_replace",
            "deliver.mail" => "deliver.smtp",
            name => name,
        };
        self.operations.get(name).or_else(|| self.operations.get(meant))
    }
}

/// An operation, and the range in which its cost was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    /// The description of the operation.
    pub about: Option<String>,
    /// The cost per role.
    pub roles: BTreeMap<String, Cost>,
    /// The measured sizes, in bytes.
    pub bytes: Option<(f64, f64)>,
    /// The measured batch sizes.
    pub batch: Option<(f64, f64)>,
    /// The rate per second of a node of that machine before the cost per operation began to rise.
    pub knee: Option<f64>,
}

/// The cost of one operation in one role.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cost {
    /// Processor time, in microseconds.
    pub processor: Linear,
    /// Bytes written.
    pub disk: Linear,
    /// Disk syncs.
    pub syncs: Linear,
    /// Bytes on the network.
    pub wire: Linear,
}

impl Cost {
    /// The cost per item of a size in a batch of a size: seconds, bytes, syncs, bytes.
    pub fn of(&self, resource: Resource, bytes: f64, batch: f64) -> f64 {
        match resource {
            Resource::Processor => self.processor.of(bytes, batch) / 1e6,
            Resource::Disk => self.disk.of(bytes, batch),
            Resource::Syncs => self.syncs.of(bytes, batch),
            Resource::Wire => self.wire.of(bytes, batch),
        }
    }
}

/// A linear cost: per batch, per item, and per kilobyte (10^3) of an item.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Linear {
    /// Per batch.
    pub batch: f64,
    /// Per item.
    pub item: f64,
    /// Per kilobyte of an item.
    pub kilobyte: f64,
}

impl Linear {
    fn of(self, bytes: f64, batch: f64) -> f64 {
        self.batch / batch.max(1.0) + self.item + self.kilobyte * bytes / 1e3
    }
}

/// The size of a stored object.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stored {
    /// Bytes of memory.
    pub memory_bytes: f64,
    /// Bytes of disk.
    pub disk_bytes: f64,
}
