//! Concurrency limit of the matchers. Applications whose last quantum was slow share half of the permits, so that any
//! number of slow applications leaves room for the others.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Permits of all matchers, granted in order of request.
pub(crate) struct Permits {
    all: Arc<Semaphore>,
    slow: Arc<Semaphore>,
}

/// Permission to match, until it is dropped.
pub(crate) struct Permit {
    _all: OwnedSemaphorePermit,
    _slow: Option<OwnedSemaphorePermit>,
}

impl Permits {
    /// Creates permits for `most` applications at a time, at least one.
    pub fn new(most: usize) -> Permits {
        let most = most.clamp(1, Semaphore::MAX_PERMITS);
        Permits { all: Arc::new(Semaphore::new(most)), slow: Arc::new(Semaphore::new(most.div_ceil(2))) }
    }

    /// Waits for a permit; `is_slow` says whether the last quantum was slow.
    pub async fn acquire(&self, is_slow: bool) -> Permit {
        let acquire = async |semaphore: &Arc<Semaphore>| {
            semaphore.clone().acquire_owned().await.expect("the semaphore is never closed")
        };
        let slow = if is_slow { Some(acquire(&self.slow).await) } else { None };
        Permit { _all: acquire(&self.all).await, _slow: slow }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn b7_slow_applications_leave_room_for_others() {
        let permits = Permits::new(4);
        let slow = [permits.acquire(true).await, permits.acquire(true).await];
        assert!(permits.acquire(true).now_or_never().is_none(), "half of four");
        let fast = [permits.acquire(false).await, permits.acquire(false).await];
        assert!(permits.acquire(false).now_or_never().is_none(), "four at most");
        drop(fast);
        assert!(permits.acquire(true).now_or_never().is_none());
        drop(slow);
        assert!(permits.acquire(true).now_or_never().is_some());
    }
}
