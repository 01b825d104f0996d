//! Change log of the in-memory records, with before-images: reads of a past sequence undo the changes after it.

use super::*;

impl RecordsState {
    pub(super) fn log_change(&mut self, sequences: u64, what: ChangeKind, before: BeforeImage) {
        self.change += sequences;
        self.feed.push_back((RecordChange { sequence: ChangeSequence(self.change), what }, before));
    }

    pub(super) fn log_suppressions(&mut self, targets: &[Target]) {
        for target in targets {
            match target {
                Target::Device { subscriber, .. } => {
                    let owner = self.subscribers.get(subscriber).map(|found| found.number);
                    self.recipients.subscribers.extend(owner);
                }
                target => self.recipients.addresses.push(target.clone()),
            }
        }
        for chunk in targets.chunks(LOGGED_TARGETS_MAX) {
            self.log_change(1, ChangeKind::Suppressions(chunk.to_vec()), BeforeImage::Nothing);
            self.newest_suppression = self.change;
        }
    }

    pub(super) fn log_profile(&mut self, before: &Subscriber) {
        self.log_change(1, ChangeKind::Profile(before.number), BeforeImage::Profile(ProfileImage::of(before)));
    }

    /// Filter of a segment at a sequence.
    pub(super) fn filter_at(&self, segment: &Name, at: ChangeSequence) -> Option<LdapFilter> {
        let changed = self.changes_after(at).find_map(|(change, before)| match (&change.what, before) {
            (ChangeKind::Segment(name), BeforeImage::Filter(filter)) if name == segment => Some(filter.clone()),
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
            BeforeImage::Profile(image) if change.what == ChangeKind::Profile(number) => Some(image.clone()),
            _ => None,
        });
        let present = || self.subscribers.values().find(|found| found.number == number);
        changed.or_else(|| present().map(ProfileImage::of))
    }

    /// Logs changed or removed subscriptions, ascending; each takes one sequence.
    pub(super) fn log_subscriptions(&mut self, before: &[Subscription]) {
        self.recipients.subscribers.extend(before.iter().map(|subscription| subscription.subscriber_number));
        for run in runs(before, |subscription| subscription.id.0) {
            let what = ChangeKind::Subscriptions(run[0].id, run[run.len() - 1].id);
            self.log_change(run.len() as u64, what, BeforeImage::Subscriptions(run.to_vec()));
        }
    }

    pub(super) fn trim(&mut self) {
        if let Some(end) = trim_to(self.change, self.trimmed, self.changes_kept, self.changes_needed) {
            self.feed.retain(|(change, _)| change.sequence.0 > end);
            self.trimmed = end;
        }
    }

    pub(super) fn check_kept(&self, after: ChangeSequence) -> Result<(), StoreError> {
        if after.0 < self.trimmed { Err(no_changes_after(after)) } else { Ok(()) }
    }

    /// Changes after a sequence, oldest first.
    pub(super) fn changes_after(&self, at: ChangeSequence) -> impl Iterator<Item = &(RecordChange, BeforeImage)> {
        self.feed.range(self.feed.partition_point(|(change, _)| change.sequence <= at)..)
    }

    /// Before-images of subscriptions after a sequence, oldest first.
    pub(super) fn images(&self, at: ChangeSequence) -> impl Iterator<Item = &Subscription> {
        self.changes_after(at).flat_map(|(_, before)| match before {
            BeforeImage::Subscriptions(images) => images.as_slice(),
            _ => &[],
        })
    }

    /// Subscription at a sequence. Subscriptions created later have numbers above `last`.
    pub(super) fn subscription_at(
        &self,
        id: SubscriptionId,
        last: SubscriptionId,
        at: ChangeSequence,
    ) -> Option<&Subscription> {
        let image = self.images(at).find(|image| image.id == id);
        image.or_else(|| self.subscriptions.get(&id)).filter(|_| id <= last)
    }

    /// Last subscription number assigned at a sequence.
    pub(super) fn last_at(&self, at: ChangeSequence) -> SubscriptionId {
        let made = self.changes_after(at).find_map(|(change, before)| match (&change.what, before) {
            (ChangeKind::Subscriptions(first, _), BeforeImage::Nothing) => Some(first.0 - 1),
            _ => None,
        });
        SubscriptionId(made.unwrap_or(self.last_subscription))
    }

    /// Channels of a subscriber's active devices by name, if it was enabled at a sequence.
    pub(super) fn reach_of(
        &self,
        number: SubscriberNumber,
        present: Option<&Subscriber>,
        at: ChangeSequence,
    ) -> Option<BTreeMap<Name, Name>> {
        let changed = self.changes_after(at).find_map(|(change, before)| match before {
            BeforeImage::Reach(reach) if change.what == ChangeKind::Subscriber(number) => Some(reach),
            _ => None,
        });
        changed.cloned().unwrap_or_else(|| present.and_then(|found| reach(&found.profile, &found.devices)))
    }

    /// Subscription as the index needs it at present.
    pub(super) fn indexed(&self, found: &Subscription) -> Option<IndexedSubscription> {
        let indexed = self.indexed_at(found, ChangeSequence(self.change))?;
        let subscriber = self.subscribers_enabled_at.get(&indexed.subscriber).copied();
        let enabled_at = self.enabled_at.get(&indexed.id).copied().max(subscriber);
        Some(IndexedSubscription { enabled_at, ..indexed })
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
            enabled_at: None,
            channel: channel.cloned(),
        })
    }
}
