//! Wakes tasks that wait for changes of rows with their keys. The tasks read the changes from the store.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::collections::KeyNumber;

/// The listeners of each key.
#[derive(Default)]
pub struct KeyListeners(Mutex<HashMap<KeyNumber, Vec<Arc<Notify>>>>);

/// A waiting task.
pub struct KeyListener {
    listeners: Arc<KeyListeners>,
    keys: Vec<KeyNumber>,
    woken: Arc<Notify>,
}

impl KeyListeners {
    /// The returned listener is woken by changes of rows of these keys.
    pub(super) fn listen(self: &Arc<Self>, keys: &[KeyNumber]) -> KeyListener {
        let woken = Arc::new(Notify::new());
        let mut listeners = self.0.lock();
        for key in keys {
            listeners.entry(*key).or_default().push(woken.clone());
        }
        KeyListener { listeners: self.clone(), keys: keys.to_vec(), woken }
    }

    /// Wakes the listeners of these keys.
    pub(super) fn notify(&self, mut keys: Vec<KeyNumber>) {
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
    /// Waits until rows changed since the listener was created, or since the last return.
    pub async fn changed(&self) {
        self.woken.notified().await;
    }
}

impl Drop for KeyListener {
    fn drop(&mut self) {
        let mut listeners = self.listeners.0.lock();
        for key in &self.keys {
            let Some(waiting) = listeners.get_mut(key) else { continue };
            waiting.retain(|woken| !Arc::ptr_eq(woken, &self.woken));
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
    fn only_listeners_of_a_changed_key_are_woken() {
        let listeners = Arc::new(KeyListeners::default());
        let (one, other) = (listeners.listen(&[1, 2]), listeners.listen(&[2, 3]));
        listeners.notify(vec![1, 1, 4]);
        assert!(one.changed().now_or_never().is_some() && other.changed().now_or_never().is_none());
        assert!(one.changed().now_or_never().is_none(), "woken once per change");
        listeners.notify(vec![2]);
        assert!(one.changed().now_or_never().is_some() && other.changed().now_or_never().is_some());
        drop((one, other));
        assert!(listeners.0.lock().is_empty());
    }
}
