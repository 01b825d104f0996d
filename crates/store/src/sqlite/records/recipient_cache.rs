//! Recipient cache: subscribers and subscriptions as needed for delivery. Most audiences are notified repeatedly.
//!
//! The cache is direct-mapped: the slot of a number is its remainder. Numbers are assigned consecutively, so nothing
//! is evicted while there are fewer rows than slots. A commit invalidates the changed entries before it is
//! acknowledged.

use std::sync::Arc;

use parking_lot::Mutex;
use tocsin_model::{
    id::{Name, SubscriberNumber, SubscriptionId},
    subscriber::Device,
};

use crate::records::{Recipient, RecipientSubscriber, RecipientSubscription};

/// Maximum number of cached subscribers, and of cached subscriptions. They take about 400 and 150 bytes each.
const KEPT_MAX: usize = 1 << 18;

/// Recently read recipients.
#[derive(Default)]
pub(super) struct RecipientCache(Mutex<CacheTables>);

#[derive(Default)]
struct CacheTables {
    generation: CacheGeneration,
    subscribers: DirectMappedTable<RecipientSubscriber>,
    interests: DirectMappedTable<RecipientSubscription>,
}

/// Number of invalidations so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct CacheGeneration(u64);

impl RecipientCache {
    /// Generation of the cache. Read it before reading rows that are to be cached.
    pub fn generation(&self) -> CacheGeneration {
        self.0.lock().generation
    }

    /// Recipients of these subscriptions from one generation, if all are cached.
    pub fn recipients(&self, subscriptions: &[SubscriptionId]) -> Option<Vec<Option<Recipient>>> {
        let tables = self.0.lock();
        let interests = subscriptions.iter().map(|subscription| tables.interests.find(subscription.0));
        let interests: Vec<&Arc<RecipientSubscription>> = interests.collect::<Option<_>>()?;
        let subscribers = interests.iter().map(|interest| tables.subscribers.find(interest.subscriber.0));
        let subscribers: Vec<&Arc<RecipientSubscriber>> = subscribers.collect::<Option<_>>()?;
        // Prefetch: the entries are scattered over the memory. Touching all of them first lets the cache misses
        // overlap.
        std::hint::black_box(subscribers.iter().map(|person| touch(person)).sum::<usize>());
        let recipient = |((subscription, interest), person): (
            (&SubscriptionId, &Arc<RecipientSubscription>),
            &Arc<RecipientSubscriber>,
        )| {
            Some(Recipient { subscription: *subscription, interest: interest.clone(), person: person.clone() })
        };
        Some(subscriptions.iter().zip(interests).zip(subscribers).map(recipient).collect())
    }

    /// Cached subscribers, in the order asked.
    pub fn subscribers(
        &self,
        numbers: impl Iterator<Item = SubscriberNumber>,
    ) -> Vec<Option<Arc<RecipientSubscriber>>> {
        let tables = self.0.lock();
        numbers.map(|number| tables.subscribers.find(number.0).cloned()).collect()
    }

    /// Caches rows read since `generation`. Does nothing if there was an invalidation since, because the rows may be
    /// outdated.
    pub fn insert<'r>(&self, generation: CacheGeneration, read: impl Iterator<Item = &'r Recipient>) {
        let mut tables = self.0.lock();
        if tables.generation != generation {
            return;
        }
        for Recipient { subscription, interest, person } in read {
            tables.interests.insert(subscription.0, interest);
            tables.subscribers.insert(person.number.0, person);
        }
    }

    /// Invalidates the rows changed by a commit.
    pub fn invalidate(&self, subscribers: &[u64], subscriptions: &[u64]) {
        if subscribers.is_empty() && subscriptions.is_empty() {
            return;
        }
        let mut tables = self.0.lock();
        tables.generation.0 += 1;
        subscribers.iter().for_each(|number| tables.subscribers.invalidate(*number));
        subscriptions.iter().for_each(|number| tables.interests.invalidate(*number));
    }
}

/// Direct-mapped table by number.
struct DirectMappedTable<T>(Vec<Option<(u64, Arc<T>)>>);

impl<T> Default for DirectMappedTable<T> {
    fn default() -> Self {
        DirectMappedTable(Vec::new())
    }
}

impl<T> DirectMappedTable<T> {
    fn find(&self, number: u64) -> Option<&Arc<T>> {
        match self.0.get(slot(number)) {
            Some(Some((known, thing))) if *known == number => Some(thing),
            _ => None,
        }
    }

    fn insert(&mut self, number: u64, thing: &Arc<T>) {
        let slot = slot(number);
        if self.0.len() <= slot {
            self.0.resize(slot + 1, None);
        }
        self.0[slot] = Some((number, thing.clone()));
    }

    fn invalidate(&mut self, number: u64) {
        if let Some(found) = self.0.get_mut(slot(number))
            && found.as_ref().is_some_and(|(known, _)| *known == number)
        {
            *found = None;
        }
    }
}

/// Reads the parts of a subscriber that delivery will read. The result has no meaning.
fn touch(person: &RecipientSubscriber) -> usize {
    let of_device = |(name, device): (&Name, &Device)| {
        name.as_str().len() + usize::from(device.address.as_bytes().first().copied().unwrap_or_default())
    };
    person.devices.iter().map(of_device).sum()
}

fn slot(number: u64) -> usize {
    number as usize % KEPT_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipient(number: u64, id: &str) -> Recipient {
        let id = id.parse().expect("an id");
        let subscriber = SubscriberNumber(number);
        let person = RecipientSubscriber {
            id,
            number: subscriber,
            profile: Default::default(),
            preferences: Default::default(),
            devices: Default::default(),
        };
        let class = "near".parse().expect("a name");
        let interest = RecipientSubscription {
            class,
            subscriber,
            device: None,
            enabled: true,
            values: "{}".into(),
            consent_request: None,
        };
        Recipient { subscription: SubscriptionId(number), interest: interest.into(), person: person.into() }
    }

    #[test]
    fn rows_read_before_an_invalidation_are_not_cached() {
        let recipient_cache = RecipientCache::default();
        let shown = |numbers: &[u64]| -> Vec<Option<String>> {
            let found = |number: &u64| {
                let found = recipient_cache.recipients(&[SubscriptionId(*number)])?.pop()??;
                Some(found.person.id.to_string())
            };
            numbers.iter().map(found).collect()
        };
        let generation = recipient_cache.generation();
        recipient_cache.insert(generation, [recipient(1, "ann"), recipient(2, "bob")].iter());
        assert_eq!(shown(&[2, 3, 1]), [Some("bob".into()), None, Some("ann".into())]);
        assert_eq!(recipient_cache.recipients(&[1, 2, 3].map(SubscriptionId)), None, "all or nothing");
        for (subscribers, subscriptions) in [(&[2, 7][..], &[][..]), (&[][..], &[2, 7][..])] {
            let before = recipient_cache.generation();
            recipient_cache.invalidate(subscribers, subscriptions);
            recipient_cache.insert(before, [recipient(2, "bob as he was")].iter());
            assert_eq!(shown(&[1, 2]), [Some("ann".into()), None]);
            recipient_cache.insert(recipient_cache.generation(), [recipient(2, "bob")].iter());
            assert_eq!(shown(&[2]), [Some("bob".into())]);
        }
        let eve = 1 + KEPT_MAX as u64;
        recipient_cache.insert(recipient_cache.generation(), [recipient(eve, "eve")].iter());
        assert_eq!(shown(&[1, eve]), [None, Some("eve".into())]);
        recipient_cache.invalidate(&[1], &[1]);
        assert_eq!(shown(&[eve]), [Some("eve".into())]);
    }
}
