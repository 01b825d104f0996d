//! Resource cost per item of a measurement.

use std::path::PathBuf;

pub use tocsin_command_line::resource_usage::*;

use super::{
    figure::{Counts, rounded},
    server::Server,
};

/// Accumulates resource cost per item over all turns of a measurement.
///
/// The speed of a machine changes from hour to hour, and all rates with it; the cost per item is reproducible.
#[derive(Debug)]
pub struct CostMeter {
    pid: u32,
    folder: PathBuf,
    begun: Option<ResourceUsage>,
    items: f64,
    total: ResourceUsage,
}

impl CostMeter {
    /// Creates a meter for a server.
    pub fn of(server: &Server) -> CostMeter {
        let total = ResourceUsage { syncs: Some(0.0), ..ResourceUsage::default() };
        CostMeter { pid: server.pid(), folder: server.folder.clone(), begun: None, items: 0.0, total }
    }

    /// Starts a measured part of a turn.
    pub fn begin(&mut self) {
        self.begun = Some(ResourceUsage::by(self.pid, &self.folder));
    }

    /// Ends the part, in which this many items were processed.
    pub fn end(&mut self, items: f64) {
        let Some(begun) = self.begun.take() else { return };
        let used = ResourceUsage::by(self.pid, &self.folder).since(&begun, &ResourceUsage::default(), 0.0);
        self.items += items;
        self.total.processor += used.processor;
        self.total.disk_bytes += used.disk_bytes;
        self.total.syncs = self.total.syncs.zip(used.syncs).map(|(total, syncs)| total + syncs);
    }

    /// Cost per item; `None` without items.
    pub fn counts(&self) -> Option<Counts> {
        let each = |total: f64| rounded(total / self.items, 3);
        (self.items > 0.0).then(|| Counts {
            processor_us: each(self.total.processor * 1e6),
            disk_bytes: each(self.total.disk_bytes),
            disk_flushes: self.total.syncs.map(each),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b40_a_tally_gives_the_cost_of_an_item() {
        let folder = std::env::temp_dir();
        let total = ResourceUsage { processor: 0.5, disk_bytes: 40_960.0, syncs: Some(5.0) };
        let tally = CostMeter { pid: std::process::id(), folder: folder.clone(), begun: None, items: 100.0, total };
        let counts = tally.counts().expect("items");
        assert_eq!(counts.to_string(), "5000 µs of processor, 410 bytes to disk, 0.05 disk flushes");

        let mut idle = CostMeter { items: 0.0, total: ResourceUsage::default(), ..tally };
        idle.end(7.0); // no part was started
        assert_eq!(idle.counts(), None);
        idle.begin();
        idle.end(7.0);
        assert!(idle.counts().is_some());
    }
}
