//! Runs work on a large stack, for recursive libraries: compilers of templates and mails, validators of schemas.
//!
//! The input is checked before the library is called, which bounds its recursion. A worker's stack of 1 MiB is too
//! small for some of these bounds, so such work runs on its own thread.

use std::{cell::Cell, io, panic, thread};

/// Size of the stack. Pages that are not touched take no memory.
const STACK_BYTES: usize = 64 << 20;

thread_local! {
    static IS_LARGE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` on a stack of 64 MiB and waits for it. A nested call costs nothing.
///
/// # Errors
/// The operating system cannot start a thread.
pub fn with_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    if IS_LARGE.get() {
        return Ok(work());
    }
    thread::scope(|scope| {
        let run = || {
            IS_LARGE.set(true);
            work()
        };
        let thread = thread::Builder::new().name("large-stack".to_owned()).stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, run)?.join() {
            Ok(done) => Ok(done),
            Err(panic) => panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a14_work_that_recurses_has_room_and_nests() {
        fn deep(levels: u32) -> u32 {
            let frame = std::hint::black_box([levels; 256]);
            if levels == 0 { 0 } else { deep(levels - 1) + frame[7] / levels }
        }
        // 20,000 frames of 1 KiB do not fit into the 2 MiB of a test's thread.
        let sum = with_large_stack(|| with_large_stack(|| deep(20_000)).expect("the same thread")).expect("a thread");
        assert_eq!(sum, 20_000);
    }
}
