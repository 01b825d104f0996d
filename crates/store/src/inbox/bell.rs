//! Wakes those who look at a feed when it may have changed. What changed they read from the store, so that nothing is kept
//! for those who are slow.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tocsin_model::id::SubscriberNumber;
use tokio::sync::watch;

/// Knows who listens to which feed.
#[derive(Default)]
pub struct Bell(Mutex<HashMap<SubscriberNumber, watch::Sender<()>>>);

/// Someone who looks at a feed.
pub struct Listener {
    bell: Arc<Bell>,
    subscriber: SubscriberNumber,
    rung: watch::Receiver<()>,
}

impl Bell {
    /// From now on whoever holds the listener is woken.
    pub fn listen(self: &Arc<Self>, subscriber: SubscriberNumber) -> Listener {
        let rung = self.0.lock().entry(subscriber).or_insert_with(|| watch::Sender::new(())).subscribe();
        Listener { bell: self.clone(), subscriber, rung }
    }

    /// Wakes those who look at these feeds.
    pub fn ring(&self, subscribers: impl IntoIterator<Item = SubscriberNumber>) {
        let listeners = self.0.lock();
        if listeners.is_empty() {
            return;
        }
        for subscriber in subscribers {
            if let Some(listener) = listeners.get(&subscriber) {
                listener.send_replace(());
            }
        }
    }

    /// Wakes all.
    pub fn ring_all(&self) {
        self.0.lock().values().for_each(|listener| listener.send_replace(()));
    }
}

impl Listener {
    /// Waits until the feed may have changed since this was asked last.
    pub async fn changed(&mut self) {
        // The sender lives as long as somebody listens.
        let _ = self.rung.changed().await;
    }

    /// How many look at the same feed.
    pub fn company(&self) -> usize {
        self.bell.0.lock().get(&self.subscriber).map_or(0, watch::Sender::receiver_count)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut listeners = self.bell.0.lock();
        // This one is still counted.
        if listeners.get(&self.subscriber).is_some_and(|listener| listener.receiver_count() <= 1) {
            listeners.remove(&self.subscriber);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn only_those_who_listen_are_woken_and_nobody_is_kept() {
        let bell = Arc::new(Bell::default());
        let (ann, bob) = (SubscriberNumber(1), SubscriberNumber(2));
        let (mut one, mut other, mut of_bob) = (bell.listen(ann), bell.listen(ann), bell.listen(bob));
        assert!(one.changed().now_or_never().is_none());
        assert_eq!(one.company(), 2);
        bell.ring([ann, SubscriberNumber(3)]);
        assert!(one.changed().now_or_never().is_some() && other.changed().now_or_never().is_some());
        assert!(one.changed().now_or_never().is_none() && of_bob.changed().now_or_never().is_none());
        bell.ring_all();
        assert!(one.changed().now_or_never().is_some() && of_bob.changed().now_or_never().is_some());
        drop((one, of_bob));
        assert_eq!(bell.0.lock().len(), 1);
        drop(other);
        assert!(bell.0.lock().is_empty());
    }
}
