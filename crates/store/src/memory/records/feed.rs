//! What changed, in order, and what there was before.

use super::*;

impl Shelf {
    pub(super) fn tell(&mut self, places: u64, what: Changed, before: Before) {
        self.change += places;
        self.feed.push_back((Change { sequence: ChangeSequence(self.change), what }, before));
    }

    pub(super) fn tell_suppressions(&mut self, targets: &[Target]) {
        for told in targets.chunks(TARGETS_TOLD) {
            self.tell(1, Changed::Suppressions(told.to_vec()), Before::Nothing);
            self.newest_suppression = self.change;
        }
    }

    pub(super) fn tell_profile(&mut self, before: &Subscriber) {
        self.tell(1, Changed::Profile(before.number), Before::Profile(ProfileImage::of(before)));
    }

    /// The filter of a segment as it was at a place.
    pub(super) fn filter_at(&self, segment: &Name, at: ChangeSequence) -> Option<LdapFilter> {
        let changed = self.changes_after(at).find_map(|(change, before)| match (&change.what, before) {
            (Changed::Segment(name), Before::Filter(filter)) if name == segment => Some(filter.clone()),
            _ => None,
        });
        let text = changed.unwrap_or_else(|| self.segments.get(segment).map(|found| found.filter.clone()))?;
        read_filter(segment, &text)
    }

    pub(super) fn memberships_at(
        &self,
        number: SubscriberNumber,
        filters: &[Option<LdapFilter>],
        at: ChangeSequence,
    ) -> u64 {
        let Some(image) = self.profile_at(number, at) else { return 0 };
        let present = self.subscribers.values().find(|found| found.number == number);
        let reach = self.reach_of(number, present, at);
        image.memberships(filters, reach.as_ref().map(|reach| reach.values().collect()))
    }

    pub(super) fn profile_at(&self, number: SubscriberNumber, at: ChangeSequence) -> Option<ProfileImage> {
        let changed = self.changes_after(at).find_map(|(change, before)| match before {
            Before::Profile(image) if change.what == Changed::Profile(number) => Some(image.clone()),
            _ => None,
        });
        let present = || self.subscribers.values().find(|found| found.number == number);
        changed.or_else(|| present().map(ProfileImage::of))
    }

    /// Tells of changed or removed subscriptions, ascending, each of which takes up a place.
    pub(super) fn tell_changed(&mut self, before: &[Subscription]) {
        for run in runs(before, |subscription| subscription.id.0) {
            let what = Changed::Subscriptions(run[0].id, run[run.len() - 1].id);
            self.tell(run.len() as u64, what, Before::Subscriptions(run.to_vec()));
        }
    }

    pub(super) fn trim(&mut self) {
        if let Some(end) = trim_to(self.change, self.trimmed, self.feed_kept, self.feed_needed) {
            self.feed.retain(|(change, _)| change.sequence.0 > end);
            self.trimmed = end;
        }
    }

    pub(super) fn check_kept(&self, after: ChangeSequence) -> Result<(), StoreError> {
        if after.0 < self.trimmed { Err(no_changes_after(after)) } else { Ok(()) }
    }

    /// The changes after a place, oldest first.
    pub(super) fn changes_after(&self, at: ChangeSequence) -> impl Iterator<Item = &(Change, Before)> {
        self.feed.range(self.feed.partition_point(|(change, _)| change.sequence <= at)..)
    }

    /// The images from after a place, oldest first.
    pub(super) fn images(&self, at: ChangeSequence) -> impl Iterator<Item = &Subscription> {
        self.changes_after(at).flat_map(|(_, before)| match before {
            Before::Subscriptions(images) => images.as_slice(),
            _ => &[],
        })
    }

    /// A subscription as it was at a place; numbers only grow, so what was made later is beyond `last`.
    pub(super) fn subscription_at(
        &self,
        id: SubscriptionId,
        last: SubscriptionId,
        at: ChangeSequence,
    ) -> Option<&Subscription> {
        let image = self.images(at).find(|image| image.id == id);
        image.or_else(|| self.subscriptions.get(&id)).filter(|_| id <= last)
    }

    /// The last number that was given out by a place.
    pub(super) fn last_at(&self, at: ChangeSequence) -> SubscriptionId {
        let made = self.changes_after(at).find_map(|(change, before)| match (&change.what, before) {
            (Changed::Subscriptions(first, _), Before::Nothing) => Some(first.0 - 1),
            _ => None,
        });
        SubscriptionId(made.unwrap_or(self.last_subscription))
    }

    /// The channels of a subscriber's active devices by name, if it was enabled then.
    pub(super) fn reach_of(
        &self,
        number: SubscriberNumber,
        present: Option<&Subscriber>,
        at: ChangeSequence,
    ) -> Option<BTreeMap<Name, Name>> {
        let changed = self.changes_after(at).find_map(|(change, before)| match before {
            Before::Reach(reach) if change.what == Changed::Subscriber(number) => Some(reach),
            _ => None,
        });
        changed.cloned().unwrap_or_else(|| present.and_then(|found| reach(&found.profile, &found.devices)))
    }

    pub(super) fn indexed_at(&self, found: &Subscription, at: ChangeSequence) -> Option<IndexedSubscription> {
        let number = found.subscriber_number;
        let present = self.subscribers.get(&found.subscriber).filter(|found| found.number == number);
        let reach = self.reach_of(number, present, at).filter(|_| found.enabled)?;
        let channel = match &found.device {
            Some(device) => reach.get(device),
            None => reach.values().next(),
        };
        Some(IndexedSubscription {
            id: found.id,
            subscriber: found.subscriber_number,
            class: found.class.clone(),
            values: found.values.clone(),
            terms: found.terms.clone(),
            created_at: found.created_at,
            channel: channel.cloned(),
        })
    }
}
