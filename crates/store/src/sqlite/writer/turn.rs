//! How soon a thread has its turn while all processors are busy.
//!
//! A writer sleeps while the disk syncs, and everybody waits for it. When the disk is done, Linux lets whoever runs finish
//! a slice before the writer goes on: 3 ms as a rule, ten times as long as a good disk takes. Since 6.12 a thread may ask
//! for shorter slices: it gets no more time for that, but gets it at once, and in smaller portions.
#![allow(unsafe_code)]

/// Shorter than what others have, and long enough for most groups to be written in one go.
#[cfg(target_os = "linux")]
const SLICE_NANOS: u64 = 500_000;

/// Asks for short slices for the thread that calls. Where there are none, nothing changes.
#[cfg(target_os = "linux")]
pub(super) fn ask_for_short_slices() {
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
    // SAFETY: 0 is the calling thread. The first call writes at most `BYTES` bytes into `attributes`, which has as many, the
    // second reads them. What they say decides when this thread runs and nothing else; a system that does not know the calls,
    // or does not allow them, answers with an error and changes nothing.
    unsafe {
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, BYTES, 0) == 0 {
            attributes.sched_runtime = SLICE_NANOS;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0);
        }
    }
}

/// Other systems have nothing like it.
#[cfg(not(target_os = "linux"))]
pub(super) fn ask_for_short_slices() {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn asking_changes_neither_policy_nor_niceness() {
        let told = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux has it");
            let fields: Vec<String> =
                stat.rsplit(')').next().expect("a name ends").split(' ').map(str::to_owned).collect();
            // Of those behind the name: priority, niceness and policy.
            [17, 18, 40].map(|at| fields[at - 1].clone())
        };
        std::thread::spawn(move || {
            let before = told();
            ask_for_short_slices();
            assert_eq!(told(), before);
        })
        .join()
        .expect("it ends well");
    }
}
