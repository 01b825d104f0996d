//! Recall of formatted messages that wait in a channel: after a change of their recipient they are decided on again.
//!
//! A message carries the number of recalls at the time when its recipient was read. A channel does not begin an attempt of
//! a message that was recalled since: it returns the message untried.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::RwLock;
use tocsin_model::{id::SubscriberNumber, suppression::reply_address};

/// Most recalled subscribers and addresses in memory. At the bound all earlier messages are recalled.
const RECALLED_MAX: usize = 100_000;

/// The recalls of this process.
#[derive(Debug, Default)]
pub struct Recalls {
    count: AtomicU64,
    recalled: RwLock<Recalled>,
}

#[derive(Debug, Default)]
struct Recalled {
    /// Messages with a smaller number of recalls are recalled.
    floor: u64,
    subscribers: HashMap<SubscriberNumber, u64>,
    addresses: HashMap<String, u64>,
}

/// Time of a message among the recalls.
#[derive(Clone)]
pub struct RecallMark {
    recalls: Arc<Recalls>,
    count: u64,
}

impl Recalls {
    /// The mark for messages whose recipients are read from now on.
    pub fn mark(self: &Arc<Self>) -> RecallMark {
        RecallMark { recalls: self.clone(), count: self.count.load(Ordering::Acquire) }
    }

    /// Recalls all formatted messages to subscribers. Call it after a change of them is stored, and before it is
    /// acknowledged.
    pub fn recall_subscribers(&self, subscribers: impl IntoIterator<Item = SubscriberNumber>) {
        let mut recalled = self.recalled.write();
        let count = self.count.fetch_add(1, Ordering::AcqRel) + 1;
        recalled.subscribers.extend(subscribers.into_iter().map(|subscriber| (subscriber, count)));
        recalled.limit(count);
    }

    /// Recalls all formatted messages to addresses, in any spelling of a mailbox.
    pub fn recall_addresses<'a>(&self, addresses: impl IntoIterator<Item = &'a str>) {
        let mut recalled = self.recalled.write();
        let count = self.count.fetch_add(1, Ordering::AcqRel) + 1;
        recalled.addresses.extend(addresses.into_iter().map(|address| (reply_address(address), count)));
        recalled.limit(count);
    }
}

impl Recalled {
    fn limit(&mut self, count: u64) {
        if self.subscribers.len() + self.addresses.len() > RECALLED_MAX {
            *self = Recalled { floor: count, ..Recalled::default() };
        }
    }
}

impl RecallMark {
    /// Whether a message with this mark to a recipient was recalled.
    pub(crate) fn is_recalled(&self, subscriber: Option<SubscriberNumber>, address: &str) -> bool {
        // Usually nothing was recalled since.
        if self.recalls.count.load(Ordering::Acquire) == self.count {
            return false;
        }
        let recalled = self.recalls.recalled.read();
        let is_later = |count: Option<&u64>| count.is_some_and(|count| *count > self.count);
        self.count < recalled.floor
            || is_later(subscriber.and_then(|subscriber| recalled.subscribers.get(&subscriber)))
            || !recalled.addresses.is_empty() && is_later(recalled.addresses.get(&reply_address(address)))
    }
}

impl std::fmt::Debug for RecallMark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RecallMark({})", self.count)
    }
}

impl PartialEq for RecallMark {
    fn eq(&self, other: &Self) -> bool {
        self.count == other.count
    }
}

impl Eq for RecallMark {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_earlier_messages_to_the_same_recipient_are_recalled() {
        let recalls = Arc::new(Recalls::default());
        let (ann, bob) = (SubscriberNumber(1), SubscriberNumber(2));
        let before = recalls.mark();
        assert!(!before.is_recalled(Some(ann), "ann@example.org"));
        recalls.recall_subscribers([ann]);
        let between = recalls.mark();
        assert!(before.is_recalled(Some(ann), "ann@example.org"));
        assert!(!before.is_recalled(Some(bob), "bob@example.org") && !before.is_recalled(None, "x"));
        assert!(!between.is_recalled(Some(ann), "ann@example.org"));
        recalls.recall_addresses(["<BOB@müller.example>"]);
        assert!(between.is_recalled(Some(bob), "bob@xn--mller-kva.example"));
        assert!(!between.is_recalled(Some(ann), "ann@example.org"));
        assert!(!recalls.mark().is_recalled(Some(bob), "bob@xn--mller-kva.example"));
    }

    #[test]
    fn recalls_take_bounded_memory() {
        let recalls = Arc::new(Recalls::default());
        let before = recalls.mark();
        recalls.recall_subscribers((0..=RECALLED_MAX as u64).map(SubscriberNumber));
        let recalled = recalls.recalled.read();
        assert_eq!((recalled.subscribers.len(), recalled.floor), (0, 1));
        drop(recalled);
        assert!(before.is_recalled(None, "anyone"), "all earlier messages are decided on again");
        assert!(!recalls.mark().is_recalled(Some(SubscriberNumber(7)), "anyone"));
    }
}
