//! Wakes those who wait for rows of their keys. What changed they read from the store.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::collections::KeyNumber;

/// Knows who waits for rows of which keys.
#[derive(Default)]
pub struct KeyBell(Mutex<HashMap<KeyNumber, Vec<Arc<Notify>>>>);

/// Someone who waits.
pub struct KeyListener {
    bell: Arc<KeyBell>,
    keys: Vec<KeyNumber>,
    rung: Arc<Notify>,
}

impl KeyBell {
    /// From now on whoever holds the listener is woken by changes of rows of these keys.
    pub(super) fn listen(self: &Arc<Self>, keys: &[KeyNumber]) -> KeyListener {
        let rung = Arc::new(Notify::new());
        let mut listeners = self.0.lock();
        for key in keys {
            listeners.entry(*key).or_default().push(rung.clone());
        }
        KeyListener { bell: self.clone(), keys: keys.to_vec(), rung }
    }

    /// Wakes those who wait for one of these.
    pub(super) fn ring(&self, mut keys: Vec<KeyNumber>) {
        let listeners = self.0.lock();
        if listeners.is_empty() {
            return;
        }
        keys.sort_unstable();
        keys.dedup();
        for listener in keys.iter().filter_map(|key| listeners.get(key)).flatten() {
            listener.notify_one();
        }
    }
}

impl KeyListener {
    /// Waits until rows changed since it listens, or since this returned last.
    pub async fn changed(&self) {
        self.rung.notified().await;
    }
}

impl Drop for KeyListener {
    fn drop(&mut self) {
        let mut listeners = self.bell.0.lock();
        for key in &self.keys {
            let Some(waiting) = listeners.get_mut(key) else { continue };
            waiting.retain(|rung| !Arc::ptr_eq(rung, &self.rung));
            if waiting.is_empty() {
                listeners.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn only_those_who_wait_for_a_key_are_woken_and_nobody_is_kept() {
        let bell = Arc::new(KeyBell::default());
        let (one, other) = (bell.listen(&[1, 2]), bell.listen(&[2, 3]));
        bell.ring(vec![1, 1, 4]);
        assert!(one.changed().now_or_never().is_some() && other.changed().now_or_never().is_none());
        assert!(one.changed().now_or_never().is_none(), "twice is once");
        bell.ring(vec![2]);
        assert!(one.changed().now_or_never().is_some() && other.changed().now_or_never().is_some());
        drop((one, other));
        assert!(bell.0.lock().is_empty());
    }
}
