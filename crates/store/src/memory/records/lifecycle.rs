//! Outbox of lifecycle events.

use tocsin_model::lifecycle::{ChangeOrigin, LifecycleChange, LifecycleSubject};

use super::*;
use crate::records::{
    ChangedSubscription, LifecycleEntry, LifecycleFilter, LifecycleStore, TrimLifecycle, lifecycle_event,
    lifecycle_row, person_events, subject_name,
};

/// The outbox, and the filters of each application.
#[derive(Default)]
pub(super) struct Outbox {
    filters: BTreeMap<Name, Vec<LifecycleFilter>>,
    /// Entries with their applications and subscribers, by position.
    entries: BTreeMap<u64, (Name, SubscriberNumber, LifecycleEntry)>,
    last: u64,
}

impl RecordsState {
    /// Adds an entry for a change of a subscription, if a filter covers it.
    pub(super) fn record_lifecycle(
        &mut self,
        change: LifecycleChange,
        id: SubscriptionId,
        before: Option<&str>,
        now: Timestamp,
    ) {
        let origin = self.origin.clone();
        self.record_lifecycle_by(change, id, before, &origin, now);
    }

    /// The same by another origin than that of the write.
    pub(super) fn record_lifecycle_by(
        &mut self,
        change: LifecycleChange,
        id: SubscriptionId,
        before: Option<&str>,
        origin: &ChangeOrigin,
        now: Timestamp,
    ) {
        let Some(subscription) = self.subscriptions.get(&id).filter(|_| !origin.quiet) else { return };
        let (application, class) = (&subscription.application, &subscription.class);
        let covers = |filter: &LifecycleFilter| {
            filter.change == change && filter.class.as_ref().is_none_or(|covered| covered == class)
        };
        if !self.outbox.filters.get(application).is_some_and(|filters| filters.iter().any(covers)) {
            return;
        }
        let subscriber = self.subscriber_of(subscription);
        let attributes = &subscriber.profile.attributes;
        let attributes = (!attributes.is_empty()).then(|| serde_json::to_string(attributes).unwrap_or_default());
        let changed = ChangedSubscription {
            id,
            subscriber: subscriber.id.as_str(),
            class: class.as_str(),
            key: subscription.key.as_deref(),
            device: subscription.device.as_ref().map(Name::as_str),
            values: &subscription.values,
            before,
            locale: subscriber.profile.locale.as_deref(),
            time_zone: subscriber.profile.time_zone.as_deref(),
            attributes: attributes.as_deref(),
        };
        let row = lifecycle_row(change, &lifecycle_event(change, &changed, origin, now)).expect("an event is a row");
        let (application, class, number) = (application.clone(), class.clone(), subscription.subscriber_number);
        self.outbox.last += 1;
        let position = self.outbox.last;
        let entry = LifecycleEntry { position, change, class, at: now, row };
        self.outbox.entries.insert(position, (application, number, entry));
    }

    /// Adds entries for the changes of a subscriber and its devices, for each application with a filter.
    pub(super) fn record_person(&mut self, old: Option<&Subscriber>, new: Option<&Subscriber>, now: Timestamp) {
        let Some(number) = new.or(old).map(|person| person.number) else { return };
        let is_of_person = |filter: &LifecycleFilter| filter.change.subject() != LifecycleSubject::Subscription;
        let covered = self.outbox.filters.values().flatten().any(is_of_person);
        if self.origin.quiet || !covered {
            return;
        }
        for (change, event) in person_events(old, new, &self.origin, now) {
            let class = subject_name(change);
            let row = lifecycle_row(change, &event).expect("an event is a row");
            let is_bound = |filters: &Vec<LifecycleFilter>| filters.iter().any(|filter| filter.change == change);
            let bound = self.outbox.filters.iter().filter(|(_, filters)| is_bound(filters));
            let applications: Vec<Name> = bound.map(|(application, _)| application.clone()).collect();
            for application in applications {
                self.outbox.last += 1;
                let position = self.outbox.last;
                let entry = LifecycleEntry { position, change, class: class.clone(), at: now, row: row.clone() };
                self.outbox.entries.insert(position, (application, number, entry));
            }
        }
    }

    /// Removes the entries of a removed subscriber.
    pub(super) fn forget_lifecycle(&mut self, subscriber: SubscriberNumber) {
        self.outbox.entries.retain(|_, (_, of, _)| *of != subscriber);
    }
}

#[async_trait]
impl LifecycleStore for MemoryRecords {
    async fn set_lifecycle_filters(&self, application: &Name, filters: Vec<LifecycleFilter>) -> Result<(), StoreError> {
        self.change(|state| {
            state.outbox.filters.insert(application.clone(), filters);
            Ok(())
        })
    }

    async fn lifecycle_entries(
        &self,
        application: &Name,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LifecycleEntry>, StoreError> {
        let state = self.state.lock();
        let later = state.outbox.entries.range(after.saturating_add(1)..);
        let of_application = later.filter(|(_, (of, ..))| of == application);
        Ok(of_application.map(|(_, (_, _, entry))| entry.clone()).take(limit).collect())
    }

    async fn last_lifecycle_position(&self) -> Result<u64, StoreError> {
        Ok(self.state.lock().outbox.entries.last_key_value().map_or(0, |(position, _)| *position))
    }

    async fn trim_lifecycle(&self, trim: TrimLifecycle<'_>) -> Result<usize, StoreError> {
        let TrimLifecycle { application, through, before, limit } = trim;
        self.change(|state| {
            let old = state.outbox.entries.range(..=through);
            let old = old.filter(|(_, (of, _, entry))| of == application && entry.at < before);
            let old: Vec<u64> = old.map(|(position, _)| *position).take(limit).collect();
            old.iter().for_each(|position| drop(state.outbox.entries.remove(position)));
            Ok(old.len())
        })
    }
}
