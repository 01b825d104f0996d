//! Resource usage of a process and its disk, sampled before and after a measurement.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

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

/// CPU seconds of a process; 0 where the system does not provide them.
pub fn processor_seconds(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The program name is in parentheses and may contain anything.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or_default();
    // The unit is 1/100 s, whatever the kernel's tick rate.
    (ticks(11) + ticks(12)) as f64 / 100.0
}

/// Bytes written to disk on behalf of a process; 0 where the system does not provide them.
pub fn written_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or_default()
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
    fn idle_usage_is_subtracted() {
        let used = |processor, syncs| ResourceUsage { processor, disk_bytes: 0.0, syncs: Some(syncs) };
        let spent = used(5.0, 100.0).since(&used(1.0, 20.0), &used(0.1, 2.0), 10.0);
        assert_eq!((spent.processor, spent.syncs), (3.0, Some(60.0)));
    }
}
