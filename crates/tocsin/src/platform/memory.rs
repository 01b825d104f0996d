//! Memory use and memory limit of the process, known on Linux.

use std::{fs, sync::Arc};

use tocsin_exchange::flow::Memory;

/// Memory of this process. A `most` of 0 means nine tenths of the limit.
pub fn of_process(most: u64) -> Memory {
    let most = if most > 0 { most } else { limit().map_or(0, |limit| limit / 10 * 9) };
    Memory { used: Arc::new(resident), most }
}

fn resident() -> Option<u64> {
    kilobytes(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// Memory of the machine, or of the control group if that is less.
fn limit() -> Option<u64> {
    let machine = kilobytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")?;
    let groups = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let allowed = groups.into_iter().filter_map(|file| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok());
    Some(allowed.fold(machine, u64::min))
}

/// Value of a line in kilobytes, in bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
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
        let used = (memory.used)().expect("Linux provides it");
        assert!(used > 0 && used < memory.most, "{used} {}", memory.most);
        assert_eq!(of_process(7).most, 7);
    }
}
