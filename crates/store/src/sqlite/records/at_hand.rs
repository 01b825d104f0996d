//! Subscribers and subscriptions as delivery sees them, kept in memory: an audience is mostly told more than once.
//!
//! Numbers are given one after the other, so a number's place in a table is its remainder: an installation with fewer of
//! them than places never pushes one out. What a commit changes is forgotten before its caller hears of it.

use std::sync::Arc;

use parking_lot::Mutex;
use tocsin_model::{
    id::{Name, SubscriberNumber, SubscriptionId},
    subscriber::Device,
};

use crate::records::{Interest, Person, Recipient};

/// Most subscribers, and most subscriptions, that are kept; another one takes the place of an older. About 400 and 150 bytes
/// each.
const KEPT_MAX: usize = 1 << 18;

/// Those that were looked up of late.
#[derive(Default)]
pub(super) struct AtHand(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    epoch: Epoch,
    people: Table<Person>,
    interests: Table<Interest>,
}

/// How often something was forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Epoch(u64);

impl AtHand {
    /// To be asked before anything is read that is to be kept.
    pub fn epoch(&self) -> Epoch {
        self.0.lock().epoch
    }

    /// All of these recipients as of one moment, if all are kept.
    pub fn recipients(&self, subscriptions: &[SubscriptionId]) -> Option<Vec<Option<Recipient>>> {
        let kept = self.0.lock();
        let interests = subscriptions.iter().map(|subscription| kept.interests.find(subscription.0));
        let interests: Vec<&Arc<Interest>> = interests.collect::<Option<_>>()?;
        let people = interests.iter().map(|interest| kept.people.find(interest.subscriber.0));
        let people: Vec<&Arc<Person>> = people.collect::<Option<_>>()?;
        // They are all over the memory. Whoever takes one after the other waits for it each time, and several times; looked
        // at first, which changes nothing, many are on their way at once.
        std::hint::black_box(people.iter().map(|person| look_at(person)).sum::<usize>());
        let recipient = |((subscription, interest), person): ((&SubscriptionId, &Arc<Interest>), &Arc<Person>)| {
            Some(Recipient { subscription: *subscription, interest: interest.clone(), person: person.clone() })
        };
        Some(subscriptions.iter().zip(interests).zip(people).map(recipient).collect())
    }

    /// Those of these subscribers that are kept, in their order.
    pub fn people(&self, numbers: impl Iterator<Item = SubscriberNumber>) -> Vec<Option<Arc<Person>>> {
        let kept = self.0.lock();
        numbers.map(|number| kept.people.find(number.0).cloned()).collect()
    }

    /// Keeps what was read since `epoch`; nothing of it if anything was forgotten meanwhile, for it may be out of date.
    pub fn keep<'r>(&self, epoch: Epoch, read: impl Iterator<Item = &'r Recipient>) {
        let mut kept = self.0.lock();
        if kept.epoch != epoch {
            return;
        }
        for Recipient { subscription, interest, person } in read {
            kept.interests.keep(subscription.0, interest);
            kept.people.keep(person.number.0, person);
        }
    }

    /// Forgets those that a commit has changed.
    pub fn forget(&self, subscribers: &[u64], subscriptions: &[u64]) {
        if subscribers.is_empty() && subscriptions.is_empty() {
            return;
        }
        let mut kept = self.0.lock();
        kept.epoch.0 += 1;
        subscribers.iter().for_each(|number| kept.people.forget(*number));
        subscriptions.iter().for_each(|number| kept.interests.forget(*number));
    }
}

/// Things by number, each at one place.
struct Table<T>(Vec<Option<(u64, Arc<T>)>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table(Vec::new())
    }
}

impl<T> Table<T> {
    fn find(&self, number: u64) -> Option<&Arc<T>> {
        match self.0.get(place(number)) {
            Some(Some((known, thing))) if *known == number => Some(thing),
            _ => None,
        }
    }

    fn keep(&mut self, number: u64, thing: &Arc<T>) {
        let place = place(number);
        if self.0.len() <= place {
            self.0.resize(place + 1, None);
        }
        self.0[place] = Some((number, thing.clone()));
    }

    fn forget(&mut self, number: u64) {
        if let Some(found) = self.0.get_mut(place(number))
            && found.as_ref().is_some_and(|(known, _)| *known == number)
        {
            *found = None;
        }
    }
}

/// Reads what delivery will read of a subscriber. The number means nothing.
fn look_at(person: &Person) -> usize {
    let of_device = |(name, device): (&Name, &Device)| {
        name.as_str().len() + usize::from(device.address.as_bytes().first().copied().unwrap_or_default())
    };
    person.devices.iter().map(of_device).sum()
}

fn place(number: u64) -> usize {
    number as usize % KEPT_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipient(number: u64, id: &str) -> Recipient {
        let id = id.parse().expect("an id");
        let subscriber = SubscriberNumber(number);
        let person = Person {
            id,
            number: subscriber,
            profile: Default::default(),
            preferences: Default::default(),
            devices: Default::default(),
        };
        let class = "near".parse().expect("a name");
        let interest = Interest { class, subscriber, device: None, enabled: true, values: "{}".into() };
        Recipient { subscription: SubscriptionId(number), interest: interest.into(), person: person.into() }
    }

    #[test]
    fn what_was_read_before_a_change_is_not_kept_after_it() {
        let at_hand = AtHand::default();
        let shown = |numbers: &[u64]| -> Vec<Option<String>> {
            let found = |number: &u64| {
                let found = at_hand.recipients(&[SubscriptionId(*number)])?.pop()??;
                Some(found.person.id.to_string())
            };
            numbers.iter().map(found).collect()
        };
        let epoch = at_hand.epoch();
        at_hand.keep(epoch, [recipient(1, "ann"), recipient(2, "bob")].iter());
        assert_eq!(shown(&[2, 3, 1]), [Some("bob".into()), None, Some("ann".into())]);
        assert_eq!(at_hand.recipients(&[1, 2, 3].map(SubscriptionId)), None, "all or nothing");
        for (subscribers, subscriptions) in [(&[2, 7][..], &[][..]), (&[][..], &[2, 7][..])] {
            let before = at_hand.epoch();
            at_hand.forget(subscribers, subscriptions);
            at_hand.keep(before, [recipient(2, "bob as he was")].iter());
            assert_eq!(shown(&[1, 2]), [Some("ann".into()), None]);
            at_hand.keep(at_hand.epoch(), [recipient(2, "bob")].iter());
            assert_eq!(shown(&[2]), [Some("bob".into())]);
        }
        let eve = 1 + KEPT_MAX as u64;
        at_hand.keep(at_hand.epoch(), [recipient(eve, "eve")].iter());
        assert_eq!(shown(&[1, eve]), [None, Some("eve".into())]);
        at_hand.forget(&[1], &[1]);
        assert_eq!(shown(&[eve]), [Some("eve".into())]);
    }
}
