//! Digest windows of a channel: the open windows, and the notifications being added to them that are not stored yet.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use tocsin_model::time::Timestamp;
use tokio::sync::{Notify, OnceCell};

use crate::digest::GroupKey;

/// Maximum number of tracked windows opened by a first notification. Beyond it, expired ones are dropped; if none is
/// expired, each notification has a window of its own.
const OPEN_MAX: usize = 4_000_000;

/// The windows of one channel.
#[derive(Default)]
pub(crate) struct Windows {
    /// Open windows by grouping key.
    open: Mutex<HashMap<GroupKey, Timestamp>>,
    /// Number of work items with unstored notifications, by window.
    placing: Mutex<BTreeMap<Timestamp, usize>>,
    placed: Notify,
    /// Set once `open` holds the windows from before the process began.
    pub recovered: OnceCell<()>,
}

/// Holds a window closed for sending while a notification for it is not stored.
pub(crate) struct Placing {
    windows: Arc<Windows>,
    window: Timestamp,
}

impl Windows {
    /// Returns the end of the open window of this key, or opens one that ends at `end`.
    pub fn place<E>(
        &self,
        key: GroupKey,
        now: Timestamp,
        end: impl FnOnce() -> Result<Timestamp, E>,
    ) -> Result<Timestamp, E> {
        let mut open = self.open.lock();
        if let Some(end) = open.get(&key).filter(|end| **end > now) {
            return Ok(*end);
        }
        let end = end()?;
        if open.len() >= OPEN_MAX {
            open.retain(|_, end| *end > now);
        }
        if open.len() < OPEN_MAX {
            open.insert(key, end);
        }
        Ok(end)
    }

    /// Restores a window from before the process began.
    pub fn recover(&self, key: GroupKey, end: Timestamp) {
        self.open.lock().insert(key, end);
    }

    /// Drops the expired windows.
    pub fn close(&self, now: Timestamp) {
        self.open.lock().retain(|_, end| *end > now);
    }

    /// Registers a notification that is being added to a window.
    pub fn placing(self: &Arc<Self>, window: Timestamp) -> Placing {
        *self.placing.lock().entry(window).or_default() += 1;
        Placing { windows: self.clone(), window }
    }

    /// Waits until all notifications for a window are stored.
    pub async fn settled(&self, window: Timestamp) {
        loop {
            let mut placed = std::pin::pin!(self.placed.notified());
            placed.as_mut().enable();
            if !self.placing.lock().contains_key(&window) {
                return;
            }
            placed.await;
        }
    }
}

impl Drop for Placing {
    fn drop(&mut self) {
        let mut placing = self.windows.placing.lock();
        if let Some(count) = placing.get_mut(&self.window) {
            *count -= 1;
            if *count == 0 {
                placing.remove(&self.window);
            }
        }
        drop(placing);
        self.windows.placed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_window_waits_for_notifications_that_are_not_stored() {
        let windows = Arc::new(Windows::default());
        let (one, other) = (windows.placing(Timestamp(5)), windows.placing(Timestamp(5)));
        let settled =
            async |window| tokio::time::timeout(Duration::from_secs(1), windows.settled(window)).await.is_ok();
        assert!(settled(Timestamp(6)).await);
        drop(one);
        assert!(!settled(Timestamp(5)).await);
        let waiting = {
            let windows = windows.clone();
            tokio::spawn(async move { windows.settled(Timestamp(5)).await })
        };
        tokio::task::yield_now().await;
        drop(other);
        waiting.await.expect("it goes on");
    }

    #[test]
    fn the_first_opens_a_window_and_the_next_after_its_end_another() {
        let windows = Windows::default();
        let place = |now, end| {
            let key: GroupKey = Box::from(&b"alice"[..]);
            windows.place(key, Timestamp(now), || Ok::<_, ()>(Timestamp(end))).expect("placed").0
        };
        assert_eq!([place(1, 10), place(9, 20), place(10, 30), place(11, 40)], [10, 10, 30, 30]);
    }
}
