//! How much memory the process has, and may have; known on Linux.

use std::{fs, sync::Arc};

use tocsin_exchange::flow::Memory;

/// The memory of this process. `most` of 0 is nine tenths of what it may have.
pub fn of_process(most: u64) -> Memory {
    let most = if most > 0 { most } else { limit().map_or(0, |limit| limit / 10 * 9) };
    Memory { used: Arc::new(resident), most }
}

fn resident() -> Option<u64> {
    kilobytes(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// What the machine has, or what the control group allows if that is less.
fn limit() -> Option<u64> {
    let machine = kilobytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")?;
    let groups = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let allowed = groups.into_iter().filter_map(|file| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok());
    Some(allowed.fold(machine, u64::min))
}

/// The bytes that a line tells in kilobytes.
fn kilobytes(told: &str, name: &str) -> Option<u64> {
    let line = told.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_has_less_than_the_machine() {
        assert_eq!(kilobytes("MemFree: 1 kB\nMemTotal:       24689760 kB\n", "MemTotal:"), Some(24_689_760 << 10));
        assert_eq!(kilobytes("nothing", "MemTotal:"), None);
        let memory = of_process(0);
        let used = (memory.used)().expect("Linux tells");
        assert!(used > 0 && used < memory.most, "{used} {}", memory.most);
        assert_eq!(of_process(7).most, 7);
    }
}
