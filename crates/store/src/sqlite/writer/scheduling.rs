//! Wake-up latency of a thread while all processors are busy.
//!
//! The writer sleeps while the disk syncs, and all callers wait for it. When the disk is done, Linux lets the running
//! thread finish its slice before the writer continues: usually 3 ms, ten times the latency of a good disk. Since
//! 6.12, a thread can request shorter slices: it gets no more time, but gets it sooner and in smaller portions.
#![allow(unsafe_code)]

/// Shorter than the default, and long enough to write most groups at once.
#[cfg(target_os = "linux")]
const SLICE_NANOS: u64 = 500_000;

/// Requests short scheduler slices for the calling thread. No effect where they are not supported.
#[cfg(target_os = "linux")]
pub(super) fn request_short_slices() {
    const BYTES: usize = size_of::<libc::sched_attr>();
    let mut attributes = libc::sched_attr {
        size: 0,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: 0 is the calling thread. The first call writes at most `BYTES` bytes into `attributes`, which has as
    // many; the second reads them. They affect only when this thread runs; a system that does not support or allow
    // the calls returns an error and changes nothing.
    unsafe {
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, BYTES, 0) == 0 {
            attributes.sched_runtime = SLICE_NANOS;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0);
        }
    }
}

/// Other systems have no such setting.
#[cfg(not(target_os = "linux"))]
pub(super) fn request_short_slices() {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn short_slices_change_neither_policy_nor_niceness() {
        let fields = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux has it");
            let fields: Vec<String> =
                stat.rsplit(')').next().expect("a name ends").split(' ').map(str::to_owned).collect();
            // Fields after the name: priority, niceness and policy.
            [17, 18, 40].map(|at| fields[at - 1].clone())
        };
        std::thread::spawn(move || {
            let before = fields();
            request_short_slices();
            assert_eq!(fields(), before);
        })
        .join()
        .expect("it ends well");
    }
}
