//! Timer for the earliest of several times.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use tocsin_connect::Clock;
use tocsin_model::time::Timestamp;
use tokio::sync::Notify;

/// Longest wait, whatever is scheduled.
const RING_MAX: Duration = Duration::from_secs(3_600);

/// Timer for the earliest of the scheduled times.
pub(crate) struct Alarm {
    next: AtomicI64,
    earlier: Notify,
}

impl Default for Alarm {
    fn default() -> Self {
        Alarm { next: AtomicI64::new(i64::MIN), earlier: Notify::new() }
    }
}

impl Alarm {
    /// Schedules this time.
    pub fn expect(&self, at: Timestamp) {
        if self.next.fetch_min(at.0, Ordering::AcqRel) > at.0 {
            self.earlier.notify_one();
        }
    }

    /// Clears the timer. Times that are scheduled from here on wake it.
    pub fn clear(&self) {
        self.next.store(i64::MAX, Ordering::Release);
    }

    /// Waits for the earliest scheduled time.
    pub async fn ring(&self, clock: &dyn Clock) {
        loop {
            let left = Timestamp(self.next.load(Ordering::Acquire)).since(clock.now());
            tokio::select! {
                () = tokio::time::sleep(left.min(RING_MAX)) => return,
                () = self.earlier.notified() => {}
            }
        }
    }
}
