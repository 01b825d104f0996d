//! The windows in which notifications of one channel are gathered for their digests: which are open, and which have
//! notifications on their way into them that are not yet stored.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use tocsin_model::time::Timestamp;
use tokio::sync::{Notify, OnceCell};

use crate::digest::GroupKey;

/// Most windows that are remembered to have been opened by a first notification. Beyond it those that are over are
/// forgotten, and if none is, each notification has a window of its own.
const OPEN_MAX: usize = 4_000_000;

/// The windows of one channel.
#[derive(Default)]
pub(crate) struct Windows {
    /// Those that a first notification opened, by what their digests have in common.
    open: Mutex<HashMap<GroupKey, Timestamp>>,
    /// How many work items have notifications for a window that are not stored yet.
    placing: Mutex<BTreeMap<Timestamp, usize>>,
    placed: Notify,
    /// Set once `open` knows what was gathered before the process began.
    pub recovered: OnceCell<()>,
}

/// Keeps a window from being told, as long as something for it is not stored.
pub(crate) struct Placing {
    windows: Arc<Windows>,
    window: Timestamp,
}

impl Windows {
    /// The end of the window of these that is open, or else of the one that `end` opens.
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

    /// Notes a window that was open before the process began.
    pub fn recover(&self, key: GroupKey, end: Timestamp) {
        self.open.lock().insert(key, end);
    }

    /// Forgets the windows that are over.
    pub fn close(&self, now: Timestamp) {
        self.open.lock().retain(|_, end| *end > now);
    }

    /// Something is on its way into a window.
    pub fn placing(self: &Arc<Self>, window: Timestamp) -> Placing {
        *self.placing.lock().entry(window).or_default() += 1;
        Placing { windows: self.clone(), window }
    }

    /// Waits until all that is on its way into a window is stored.
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
    async fn a_window_waits_for_what_is_on_its_way() {
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
