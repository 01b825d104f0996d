//! Wake-ups for readers of a feed. Listeners read the changes from the store, so no messages are queued for slow
//! ones.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tocsin_model::id::SubscriberNumber;
use tokio::sync::watch;

/// Registry of listeners by subscriber.
#[derive(Default)]
pub struct ListenerRegistry(Mutex<HashMap<SubscriberNumber, watch::Sender<()>>>);

/// Listener of one subscriber's feed.
pub struct Listener {
    listeners: Arc<ListenerRegistry>,
    subscriber: SubscriberNumber,
    woken: watch::Receiver<()>,
}

impl ListenerRegistry {
    /// Subscribes to wake-ups for a subscriber.
    pub fn listen(self: &Arc<Self>, subscriber: SubscriberNumber) -> Listener {
        let woken = self.0.lock().entry(subscriber).or_insert_with(|| watch::Sender::new(())).subscribe();
        Listener { listeners: self.clone(), subscriber, woken }
    }

    /// Wakes the listeners of these subscribers.
    pub fn notify(&self, subscribers: impl IntoIterator<Item = SubscriberNumber>) {
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

    /// Wakes all listeners.
    pub fn notify_all(&self) {
        self.0.lock().values().for_each(|listener| listener.send_replace(()));
    }
}

impl Listener {
    /// Waits until the feed may have changed since the last call.
    pub async fn changed(&mut self) {
        // The sender lives as long as there are listeners.
        let _ = self.woken.changed().await;
    }

    /// Number of listeners of the same feed.
    pub fn listener_count(&self) -> usize {
        self.listeners.0.lock().get(&self.subscriber).map_or(0, watch::Sender::receiver_count)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut listeners = self.listeners.0.lock();
        // The receiver being dropped is still counted.
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
    fn listeners_wake_by_subscriber_and_leave_no_trace() {
        let listeners = Arc::new(ListenerRegistry::default());
        let (ann, bob) = (SubscriberNumber(1), SubscriberNumber(2));
        let (mut one, mut other, mut of_bob) = (listeners.listen(ann), listeners.listen(ann), listeners.listen(bob));
        assert!(one.changed().now_or_never().is_none());
        assert_eq!(one.listener_count(), 2);
        listeners.notify([ann, SubscriberNumber(3)]);
        assert!(one.changed().now_or_never().is_some() && other.changed().now_or_never().is_some());
        assert!(one.changed().now_or_never().is_none() && of_bob.changed().now_or_never().is_none());
        listeners.notify_all();
        assert!(one.changed().now_or_never().is_some() && of_bob.changed().now_or_never().is_some());
        drop((one, of_bob));
        assert_eq!(listeners.0.lock().len(), 1);
        drop(other);
        assert!(listeners.0.lock().is_empty());
    }
}
