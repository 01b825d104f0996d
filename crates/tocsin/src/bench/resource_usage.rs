//! Resource usage of a process and its disk, sampled before and after a measurement.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{
    figure::{Counts, rounded},
    server::{Server, processor_seconds, written_bytes},
};

/// Cumulative resource usage.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ResourceUsage {
    /// CPU seconds.
    pub processor: f64,
    /// Bytes written to disk by the process.
    pub disk_bytes: f64,
    /// Disk flushes of all processes; `None` where the system does not count them.
    pub syncs: Option<f64>,
}

impl ResourceUsage {
    /// Samples a process whose data are in this folder.
    pub fn by(pid: u32, folder: &Path) -> ResourceUsage {
        ResourceUsage {
            processor: processor_seconds(pid),
            disk_bytes: written_bytes(pid) as f64,
            syncs: flushes(folder),
        }
    }

    /// Usage since `before`, minus what an idle process uses in the same time.
    pub fn since(&self, before: &ResourceUsage, idle: &ResourceUsage, seconds: f64) -> ResourceUsage {
        let less = |now: f64, before: f64, idle: f64| (now - before - idle * seconds).max(0.0);
        let syncs = self.syncs.zip(before.syncs).map(|(now, before)| less(now, before, idle.syncs.unwrap_or_default()));
        ResourceUsage {
            processor: less(self.processor, before.processor, idle.processor),
            disk_bytes: less(self.disk_bytes, before.disk_bytes, idle.disk_bytes),
            syncs,
        }
    }

    /// Usage per second, over this many seconds.
    pub fn per_second(&self, seconds: f64) -> ResourceUsage {
        ResourceUsage {
            processor: self.processor / seconds,
            disk_bytes: self.disk_bytes / seconds,
            syncs: self.syncs.map(|syncs| syncs / seconds),
        }
    }
}

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

/// Completed flushes of the folder's disk: field 19 of `/proc/diskstats` (Linux 5.5 and later).
fn flushes(folder: &Path) -> Option<f64> {
    let device = fs::metadata(folder).ok()?.dev();
    let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xf_ff00));
    let text = fs::read_to_string("/proc/diskstats").ok()?;
    flushes_in(&text, major, minor)
}

fn flushes_in(text: &str, major: u64, minor: u64) -> Option<f64> {
    let device = [major.to_string(), minor.to_string()];
    let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|line| line.len() > 2 && line[..2] == device)?;
    line.get(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_are_parsed_from_diskstats() {
        let text = " 254 0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 777 17\n 254 1 vda1 1 2 3\n";
        assert_eq!(flushes_in(text, 254, 0), Some(777.0));
        assert_eq!(flushes_in(text, 254, 1), None);
        assert_eq!(flushes_in(text, 8, 0), None);
    }

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

    #[test]
    fn idle_usage_is_subtracted() {
        let used = |processor, syncs| ResourceUsage { processor, disk_bytes: 0.0, syncs: Some(syncs) };
        let spent = used(5.0, 100.0).since(&used(1.0, 20.0), &used(0.1, 2.0), 10.0);
        assert_eq!((spent.processor, spent.syncs), (3.0, Some(60.0)));
    }
}
