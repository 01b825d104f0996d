//! CPU-bound work in asynchronous tasks.

/// Runs CPU-bound work without blocking the other tasks of this thread.
pub(crate) fn keep_busy<T>(work: impl FnOnce() -> T) -> T {
    match tokio::runtime::Handle::current().runtime_flavor() {
        tokio::runtime::RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        _ => work(),
    }
}
