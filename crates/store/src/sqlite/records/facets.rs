//! The facets of the records port and the port of entries, each a few lines over the files above.

use std::{
    ops::RangeInclusive,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use rusqlite::Connection;
use tocsin_model::{
    consent::{Confirmation, Consent, ConsentRequest, Evidence, EvidenceRecord, Requested},
    feedback::FeedbackEntry,
    id::{ChangeSequence, Name, SubscriberId, SubscriberNumber, SubscriptionId},
    ldap::LdapFilter,
    lifecycle::ChangeOrigin,
    notifybc::Collection,
    segment::Segment,
    subscriber::Subscriber,
    subscription::Subscription,
    suppression::{Suppression, Target},
    time::Timestamp,
};
use tokio::sync::watch;

use crate::{
    bounded_scan::ScanPage,
    entries::{DiskCheck, Entries, EntryReadJob, EntryWatcher, EntryWriteJob, PreparedAdd, PreparedModify},
    error::StoreError,
    inbox::Listener,
    records::{
        ApiKey, ApiKeyStore, ApiKeyUse, ApplicationStore, ApplicationVersion, CapacityProfile, CapacityProfileStore,
        ChangeLog, ConfirmConsent, ConsentStore, DocumentScan, DocumentVersion, EndpointKey, EvidenceOf,
        FailingEndpoint, FeedbackChange, FeedbackFilter, FeedbackState, FeedbackStore, FollowedSchedule,
        IndexedSubscription, Installation, KeyFilter, LifecycleEntry, LifecycleFilter, LifecycleStore, MatchStore,
        Merge, MergeRefusal, NewApplicationVersion, NewCapacityProfile, NewConsented, NewSegment, NewSubscriber,
        NewSubscription, NotifybcStore, Precondition, ProfileImage, PutDevice, PutDocument, Recipient, RecipientStore,
        RecipientWatcher, RecordChange, RecordCounts, RemoveSubscription, ScheduleMembers, ScheduleStore,
        ScheduledSubscription, SegmentScan, SegmentScanBounds, SegmentStore, Session, StoredDocument, SubscriberFilter,
        SubscriberStore, SubscriptionCounts, SubscriptionFilter, SubscriptionStore, SuppressionFilter,
        SuppressionStore, TrimLifecycle, UpdateSubscription, User, UserStore, Written, no_subscription,
    },
    sqlite::records::{
        api_keys, applications, capacity_profiles, consent_rows, consents,
        database::SqliteRecords,
        endpoints,
        entries::Writer,
        erasure, feedback, lifecycle, matching, merges,
        notifybc_documents::{self, DocumentPuts, GROUPED_DOCUMENTS_MAX},
        prepared, recipients, schedules, segments, subscriber_rows, subscribers, subscriptions, suppressions,
        transaction::{self, RecordsTransaction},
        users,
    },
};

#[async_trait]
impl ApplicationStore for SqliteRecords {
    async fn put_application(&self, new: NewApplicationVersion<'_>) -> Result<u32, StoreError> {
        let NewApplicationVersion { name, text, author, now } = new;
        let (name, text, author) = (name.clone(), self.keys.seal(text)?, author.to_owned());
        self.change(move |tx| applications::put(tx, &name, &text, &author, now)).await
    }

    async fn applications(&self) -> Result<Vec<ApplicationVersion>, StoreError> {
        let found = self.database.read(applications::all).await?;
        found.into_iter().map(|version| self.opened(version)).collect()
    }

    async fn application(&self, name: &Name, version: Option<u32>) -> Result<Option<ApplicationVersion>, StoreError> {
        let name = name.clone();
        let found = self.database.read(move |connection| applications::one(connection, &name, version)).await?;
        found.map(|version| self.opened(version)).transpose()
    }

    async fn application_history(&self, name: &Name) -> Result<Vec<ApplicationVersion>, StoreError> {
        let name = name.clone();
        let found = self.database.read(move |connection| applications::history(connection, &name)).await?;
        found.into_iter().map(|version| self.opened(version)).collect()
    }

    async fn remove_application(&self, name: &Name, now: Timestamp) -> Result<(), StoreError> {
        loop {
            let name = name.clone();
            if self.change(move |tx| applications::remove_step(tx, &name, now)).await? {
                return Ok(());
            }
        }
    }
}

#[async_trait]
impl SubscriberStore for SqliteRecords {
    async fn put_subscriber(
        &self,
        new: NewSubscriber,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<Subscriber, StoreError> {
        self.change_if_space(move |tx| subscribers::put(tx, new, expect, now)).await
    }

    async fn put_subscribers(
        &self,
        new: Vec<NewSubscriber>,
        now: Timestamp,
    ) -> Result<Vec<Written<SubscriberNumber>>, StoreError> {
        self.change_if_space(move |tx| subscribers::put_many(tx, new, now)).await
    }

    async fn subscriber(&self, id: &SubscriberId) -> Result<Option<Subscriber>, StoreError> {
        let id = id.clone();
        self.database.read(move |connection| subscriber_rows::find(connection, &id)).await
    }

    async fn subscriber_numbered(&self, number: SubscriberNumber) -> Result<Option<Subscriber>, StoreError> {
        self.database.read(move |connection| subscriber_rows::find_numbered(connection, number)).await
    }

    async fn has_subscriber(&self, number: SubscriberNumber) -> Result<bool, StoreError> {
        self.database.read(move |connection| subscriber_rows::exists(connection, number)).await
    }

    async fn scan_subscribers(
        &self,
        filter: &SubscriberFilter,
        after: Option<&SubscriberId>,
        limit: usize,
    ) -> Result<ScanPage<Subscriber, SubscriberId>, StoreError> {
        let (filter, after) = (filter.clone(), after.cloned());
        self.database.read(move |connection| subscribers::list(connection, &filter, after.as_ref(), limit)).await
    }

    async fn remove_subscriber(
        &self,
        id: &SubscriberId,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let id = id.clone();
        self.change(move |tx| subscribers::remove(tx, &id, expect, now)).await
    }

    async fn merge_subscribers(
        &self,
        from: &SubscriberId,
        into: &SubscriberId,
        now: Timestamp,
    ) -> Result<Result<Merge, MergeRefusal>, StoreError> {
        let (from, into) = (from.clone(), into.clone());
        self.change_if_space(move |tx| merges::merge(tx, &from, &into, now)).await
    }

    async fn merge_of(&self, from: &SubscriberId) -> Result<Option<Merge>, StoreError> {
        let from = from.clone();
        self.database.read(move |connection| merges::last(connection, &from)).await
    }

    async fn unfinished_merges(&self) -> Result<Vec<Merge>, StoreError> {
        self.database.read(merges::unfinished).await
    }

    async fn finish_merge(&self, from: SubscriberNumber) -> Result<(), StoreError> {
        self.change(move |tx| merges::finish(tx.connection, from)).await
    }

    async fn put_device(&self, put: PutDevice<'_>) -> Result<Subscriber, StoreError> {
        let PutDevice { id, name, device, keeps_state, now } = put;
        let (id, name) = (id.clone(), name.clone());
        self.change_if_space(move |tx| subscribers::put_device(tx, &id, name, device, keeps_state, now)).await
    }

    async fn remove_device(&self, id: &SubscriberId, name: &Name, now: Timestamp) -> Result<Subscriber, StoreError> {
        let (id, name) = (id.clone(), name.clone());
        self.change(move |tx| subscribers::remove_device(tx, &id, &name, now)).await
    }
}

#[async_trait]
impl SegmentStore for SqliteRecords {
    async fn put_segment(&self, new: NewSegment, expect: Precondition, now: Timestamp) -> Result<Segment, StoreError> {
        self.change(move |tx| segments::put(tx, new, expect, now)).await
    }

    async fn segment(&self, name: &Name) -> Result<Option<Segment>, StoreError> {
        let name = name.clone();
        self.database.read(move |connection| segments::find(connection, &name)).await
    }

    async fn segments(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Segment>, StoreError> {
        let after = after.cloned();
        self.database.read(move |connection| segments::list(connection, after.as_ref(), limit)).await
    }

    async fn remove_segment(&self, name: &Name, expect: Precondition, _now: Timestamp) -> Result<(), StoreError> {
        let name = name.clone();
        self.change(move |tx| segments::remove(tx, &name, expect)).await
    }

    async fn scan_matching(
        &self,
        filter: &LdapFilter,
        after: Option<&SubscriberId>,
        bounds: SegmentScanBounds,
    ) -> Result<SegmentScan, StoreError> {
        let (filter, after) = (filter.clone(), after.cloned());
        self.database.read(move |connection| segments::scan_matching(connection, &filter, after.as_ref(), bounds)).await
    }
}

#[async_trait]
impl SubscriptionStore for SqliteRecords {
    async fn put_subscription_as(
        &self,
        new: NewSubscription,
        origin: ChangeOrigin,
        now: Timestamp,
    ) -> Result<Subscription, StoreError> {
        self.change_if_space(move |tx| {
            tx.origin = origin;
            let written = subscriptions::put_many(tx, &[new], now)?;
            let id = written.into_iter().next().expect("one line has one answer")?;
            subscriptions::find(tx.connection, id)?.ok_or_else(|| no_subscription(id))
        })
        .await
    }

    async fn put_subscriptions_as(
        &self,
        new: Vec<NewSubscription>,
        origin: ChangeOrigin,
        now: Timestamp,
    ) -> Result<Vec<Written<SubscriptionId>>, StoreError> {
        self.change_if_space(move |tx| {
            tx.origin = origin;
            subscriptions::put_many(tx, &new, now)
        })
        .await
    }

    async fn update_subscription_as(
        &self,
        update: UpdateSubscription,
        origin: ChangeOrigin,
    ) -> Result<Subscription, StoreError> {
        let UpdateSubscription { id, change, expect, now } = update;
        self.change(move |tx| {
            tx.origin = origin;
            subscriptions::update(tx, id, &change, expect, now)
        })
        .await
    }

    async fn wake_subscriptions(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        // Usually no subscription is due, and then nothing is written.
        if !self.database.read(move |connection| subscriptions::is_any_to_wake(connection, now)).await? {
            return Ok(0);
        }
        self.change(move |tx| subscriptions::wake(tx, now, limit)).await
    }

    async fn subscription(&self, id: SubscriptionId) -> Result<Option<Subscription>, StoreError> {
        self.database.read(move |connection| subscriptions::find(connection, id)).await
    }

    async fn scan_subscriptions(
        &self,
        filter: &SubscriptionFilter,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<ScanPage<Subscription, SubscriptionId>, StoreError> {
        let filter = filter.clone();
        self.database.read(move |connection| subscriptions::list(connection, &filter, after, limit)).await
    }

    async fn remove_subscription_as(
        &self,
        removal: RemoveSubscription,
        origin: ChangeOrigin,
    ) -> Result<(), StoreError> {
        let RemoveSubscription { id, expect, now } = removal;
        self.change(move |tx| {
            tx.origin = origin;
            subscriptions::end(tx, id, expect, now)
        })
        .await
    }

    async fn subscription_counts(&self) -> Result<Vec<SubscriptionCounts>, StoreError> {
        self.database.read(subscriptions::counts).await
    }
}

#[async_trait]
impl ConsentStore for SqliteRecords {
    async fn put_consented(
        &self,
        new: Vec<NewConsented>,
        now: Timestamp,
    ) -> Result<Vec<Written<(SubscriptionId, Requested)>>, StoreError> {
        self.change_if_space(move |tx| consents::put_many(tx, new, now)).await
    }

    async fn consent(&self, id: SubscriptionId) -> Result<Option<Consent>, StoreError> {
        self.database.read(move |connection| consent_rows::find(connection, id)).await
    }

    async fn request_consent(
        &self,
        id: SubscriptionId,
        request: ConsentRequest,
        now: Timestamp,
    ) -> Result<Requested, StoreError> {
        self.change_if_space(move |tx| consents::request(tx, id, request, now)).await
    }

    async fn confirm_consent(&self, confirm: ConfirmConsent) -> Result<Confirmation, StoreError> {
        self.change(move |tx| consents::confirm(tx, confirm)).await
    }

    async fn withdraw_consent(
        &self,
        id: SubscriptionId,
        evidence: Evidence,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        self.change(move |tx| consents::withdraw(tx, id, evidence, now)).await
    }

    async fn restore_consent(
        &self,
        id: SubscriptionId,
        evidence: Evidence,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        self.change(move |tx| consents::restore(tx, id, evidence, now)).await
    }

    async fn expire_consents(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        // Usually no request has expired, and then nothing is written.
        if !self.database.read(move |connection| consents::is_any_expired(connection, now)).await? {
            return Ok(0);
        }
        self.change(move |tx| consents::expire(tx, now, limit)).await
    }

    async fn evidence(
        &self,
        of: &EvidenceOf,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<EvidenceRecord>, StoreError> {
        let of = of.clone();
        self.database.read(move |connection| consents::evidence(connection, &of, after.unwrap_or(0), limit)).await
    }

    async fn erase_subscriber(&self, id: &SubscriberId, now: Timestamp) -> Result<(), StoreError> {
        let id = id.clone();
        self.change(move |tx| erasure::erase(tx, &id, now)).await?;
        self.database.truncate_log().await
    }

    async fn truncate_log(&self) -> Result<(), StoreError> {
        self.database.truncate_log().await
    }

    async fn former_subscriptions(&self, subscriber: SubscriberNumber) -> Result<Vec<SubscriptionId>, StoreError> {
        self.database.read(move |connection| erasure::former_subscriptions(connection, subscriber)).await
    }

    async fn prune_evidence(&self, before: Timestamp, limit: usize) -> Result<usize, StoreError> {
        // Usually no evidence is due, and then nothing is written.
        if !self.database.read(move |connection| consents::is_any_erased(connection, before)).await? {
            return Ok(0);
        }
        self.change(move |tx| consents::prune(tx.connection, before, limit)).await
    }
}

#[async_trait]
impl LifecycleStore for SqliteRecords {
    async fn set_lifecycle_filters(&self, application: &Name, filters: Vec<LifecycleFilter>) -> Result<(), StoreError> {
        let application = application.clone();
        self.change(move |tx| lifecycle::set_filters(tx, &application, &filters)).await
    }

    async fn lifecycle_entries(
        &self,
        application: &Name,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LifecycleEntry>, StoreError> {
        let application = application.clone();
        self.database.read(move |connection| lifecycle::entries(connection, &application, after, limit)).await
    }

    async fn last_lifecycle_position(&self) -> Result<u64, StoreError> {
        self.database.read(lifecycle::last_position).await
    }

    async fn trim_lifecycle(&self, trim: TrimLifecycle<'_>) -> Result<usize, StoreError> {
        let TrimLifecycle { application, through, before, limit } = trim;
        let application = application.clone();
        self.change(move |tx| lifecycle::trim(tx, &application, through, before, limit)).await
    }
}

#[async_trait]
impl SuppressionStore for SqliteRecords {
    async fn put_suppressions(&self, new: Vec<Suppression>) -> Result<(), StoreError> {
        self.change_if_space(move |tx| suppressions::put_many(tx, &new)).await
    }

    async fn suppression(&self, target: &Target) -> Result<Option<Suppression>, StoreError> {
        let target = target.clone();
        self.database.read(move |connection| suppressions::find_in_any_form(connection, &target)).await
    }

    async fn scan_suppressions(
        &self,
        filter: &SuppressionFilter,
        after: Option<&Target>,
        limit: usize,
    ) -> Result<ScanPage<Suppression, Target>, StoreError> {
        let (filter, after) = (filter.clone(), after.map(Target::to_string));
        self.database.read(move |connection| suppressions::list(connection, &filter, after.as_deref(), limit)).await
    }

    async fn remove_suppression(&self, target: &Target) -> Result<(), StoreError> {
        let target = target.clone();
        self.change(move |tx| suppressions::remove(tx, &target)).await
    }

    async fn prune_suppressions(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        // Usually no suppression is expired, and then nothing is written.
        if !self.database.read(move |connection| suppressions::is_any_expired(connection, now)).await? {
            return Ok(0);
        }
        self.change(move |tx| suppressions::prune(tx, now, limit)).await
    }

    fn newest_suppression(&self) -> ChangeSequence {
        ChangeSequence(self.published.newest_suppression.load(Ordering::Acquire))
    }

    async fn suppression_changes(&self, after: ChangeSequence, limit: usize) -> Result<Vec<RecordChange>, StoreError> {
        self.database.read(move |connection| transaction::suppression_changes(connection, after, limit)).await
    }
}

#[async_trait]
impl FeedbackStore for SqliteRecords {
    async fn feedback_states(&self, targets: &[Target]) -> Result<Vec<FeedbackState>, StoreError> {
        let targets = targets.to_vec();
        let states = move |connection: &Connection| {
            targets.iter().map(|target| feedback::state(connection, target)).collect::<Result<Vec<_>, _>>()
        };
        self.database.read(states).await
    }

    async fn change_feedback(&self, changes: Vec<FeedbackChange>) -> Result<(), StoreError> {
        self.change(move |tx| feedback::change(tx, changes)).await
    }

    async fn scan_feedback(
        &self,
        filter: &FeedbackFilter,
        before: Option<u64>,
        limit: usize,
    ) -> Result<ScanPage<(u64, FeedbackEntry), u64>, StoreError> {
        let filter = filter.clone();
        self.database.read(move |connection| feedback::list(connection, &filter, before, limit)).await
    }

    async fn counted_in_sessions(&self) -> Result<Vec<Target>, StoreError> {
        self.database.read(feedback::counted_in_sessions).await
    }

    async fn subscriber_by_number(&self, number: SubscriberNumber) -> Result<Option<Subscriber>, StoreError> {
        self.database.read(move |connection| feedback::subscriber(connection, number)).await
    }

    async fn forget_feedback(&self, target: &Target) -> Result<(), StoreError> {
        let target = target.clone();
        self.change(move |tx| feedback::forget(tx, &target)).await
    }

    async fn prune_feedback(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        // Usually no entry is past its retention, and then nothing is written.
        if !self.database.read(move |connection| feedback::is_any_expired(connection, now)).await? {
            return Ok(0);
        }
        self.change(move |tx| feedback::prune(tx, now, limit)).await
    }
}

#[async_trait]
impl RecipientStore for SqliteRecords {
    async fn recipients(&self, subscriptions: &[SubscriptionId]) -> Result<Vec<Option<Recipient>>, StoreError> {
        if let Some(recipients) = self.published.recipient_cache.recipients(subscriptions) {
            return Ok(recipients);
        }
        let (subscriptions, published) = (subscriptions.to_vec(), self.published.clone());
        self.database
            .read(move |connection| recipients::find(connection, &published.recipient_cache, &subscriptions))
            .await
    }

    async fn former_recipients(&self, subscriptions: &[SubscriptionId]) -> Result<Vec<Option<Recipient>>, StoreError> {
        let subscriptions = subscriptions.to_vec();
        self.database.read(move |connection| recipients::find_former(connection, &subscriptions)).await
    }

    async fn put_failing_endpoints(&self, endpoints: Vec<FailingEndpoint>) -> Result<(), StoreError> {
        self.change(move |tx| endpoints::put(tx.connection, &endpoints)).await
    }

    async fn remove_failing_endpoints(&self, endpoints: Vec<EndpointKey>) -> Result<(), StoreError> {
        self.change(move |tx| endpoints::remove(tx.connection, &endpoints)).await
    }

    async fn failing_endpoints(
        &self,
        after: Option<&EndpointKey>,
        limit: usize,
    ) -> Result<Vec<FailingEndpoint>, StoreError> {
        let after = after.cloned();
        self.database.read(move |connection| endpoints::list(connection, after.as_ref(), limit)).await
    }

    fn watch_recipients(&self, watcher: Arc<dyn RecipientWatcher>) {
        *self.published.recipient_watcher.write() = Some(watcher);
    }
}

#[async_trait]
impl ChangeLog for SqliteRecords {
    async fn changes(&self, after: ChangeSequence, limit: usize) -> Result<Vec<RecordChange>, StoreError> {
        self.database.read(move |connection| transaction::changes(connection, after, limit)).await
    }

    fn newest_change(&self) -> watch::Receiver<ChangeSequence> {
        self.published.newest.subscribe()
    }

    fn keep_changes_after(&self, place: ChangeSequence) {
        self.published.changes_needed.store(place.0, Ordering::Relaxed);
    }

    fn listen(&self, subscriber: SubscriberNumber) -> Listener {
        self.published.listeners.listen(subscriber)
    }
}

#[async_trait]
impl MatchStore for SqliteRecords {
    async fn indexed_subscriptions(
        &self,
        application: &Name,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<Vec<IndexedSubscription>, StoreError> {
        let application = application.clone();
        let after = after.map_or(0, |after| after.0);
        self.database.read(move |connection| matching::indexed(connection, &application, after, limit)).await
    }

    async fn indexed_at(
        &self,
        application: &Name,
        ranges: &[RangeInclusive<SubscriptionId>],
        at: ChangeSequence,
    ) -> Result<Vec<IndexedSubscription>, StoreError> {
        let (application, ranges) = (application.clone(), ranges.to_vec());
        self.database.read(move |connection| matching::indexed_at(connection, &application, &ranges, at)).await
    }

    async fn subscriptions_of(
        &self,
        subscribers: &[SubscriberNumber],
        at: ChangeSequence,
    ) -> Result<Vec<SubscriptionId>, StoreError> {
        let subscribers = subscribers.to_vec();
        self.database.read(move |connection| subscriptions::all_of_subscribers(connection, &subscribers, at)).await
    }

    async fn memberships(
        &self,
        segments: &[Name],
        subscribers: &[SubscriberNumber],
        at: ChangeSequence,
    ) -> Result<Vec<u64>, StoreError> {
        let (segments, subscribers) = (segments.to_vec(), subscribers.to_vec());
        self.database.read(move |connection| segments::memberships(connection, &segments, &subscribers, at)).await
    }

    async fn profiles(
        &self,
        subscribers: &[SubscriberNumber],
        at: ChangeSequence,
    ) -> Result<Vec<Option<Arc<ProfileImage>>>, StoreError> {
        let subscribers = subscribers.to_vec();
        self.database.read(move |connection| segments::profiles(connection, &subscribers, at)).await
    }
}

#[async_trait]
impl ScheduleStore for SqliteRecords {
    async fn schedules(
        &self,
        application: &Name,
        after: u64,
        limit: usize,
    ) -> Result<Vec<FollowedSchedule>, StoreError> {
        let application = application.clone();
        self.database.read(move |connection| schedules::list(connection, &application, after, limit)).await
    }

    async fn scheduled_subscriptions(
        &self,
        members: ScheduleMembers<'_>,
    ) -> Result<Vec<ScheduledSubscription>, StoreError> {
        let ScheduleMembers { application, class, schedule, after, limit } = members;
        let (application, class, schedule) = (application.clone(), class.clone(), schedule.to_owned());
        let job = move |connection: &Connection| {
            schedules::members(connection, &application, &class, &schedule, after, limit)
        };
        self.database.read(job).await
    }

    async fn schedule_of(&self, id: SubscriptionId) -> Result<Option<(Box<str>, Timestamp)>, StoreError> {
        self.database.read(move |connection| schedules::of(connection, id)).await
    }

    async fn delete_schedule(&self, application: &Name, class: &Name, schedule: &str) -> Result<bool, StoreError> {
        let (application, class, schedule) = (application.clone(), class.clone(), schedule.to_owned());
        self.change(move |tx| schedules::remove(tx, &application, &class, &schedule)).await
    }
}

#[async_trait]
impl ApiKeyStore for SqliteRecords {
    async fn put_api_key(&self, key: ApiKey) -> Result<(), StoreError> {
        self.change(move |tx| api_keys::put(tx, &key)).await
    }

    async fn api_keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.database.read(api_keys::all).await
    }

    async fn removed_api_keys(&self) -> Result<Vec<(String, String)>, StoreError> {
        self.database.read(api_keys::removed).await
    }

    async fn remove_api_key(&self, id: &str) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.change(move |tx| api_keys::remove(tx, &id)).await
    }

    async fn put_api_key_uses(&self, uses: Vec<ApiKeyUse>) -> Result<(), StoreError> {
        self.change(move |tx| api_keys::put_uses(tx, &uses)).await
    }

    async fn api_key_uses(&self) -> Result<Vec<ApiKeyUse>, StoreError> {
        self.database.read(api_keys::uses).await
    }

    async fn set_api_key_expiry(&self, id: &str, expires_at: Option<Timestamp>) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.change(move |tx| api_keys::set_expiry(tx, &id, expires_at)).await
    }

    fn newest_key_change(&self) -> watch::Receiver<ChangeSequence> {
        self.published.newest_key.subscribe()
    }
}

#[async_trait]
impl CapacityProfileStore for SqliteRecords {
    async fn capacity_profiles(&self) -> Result<Vec<CapacityProfile>, StoreError> {
        self.database.read(capacity_profiles::all).await
    }

    async fn capacity_profile(&self, name: &Name) -> Result<Option<CapacityProfile>, StoreError> {
        let name = name.clone();
        self.database.read(move |connection| capacity_profiles::find(connection, &name)).await
    }

    async fn put_capacity_profile(
        &self,
        new: NewCapacityProfile,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<CapacityProfile, StoreError> {
        self.change(move |tx| capacity_profiles::put(tx, new.at(now), expect)).await
    }

    async fn remove_capacity_profile(&self, name: &Name, revision: Option<u64>) -> Result<(), StoreError> {
        let name = name.clone();
        self.change(move |tx| capacity_profiles::remove(tx, &name, revision)).await
    }
}

#[async_trait]
impl UserStore for SqliteRecords {
    async fn users(&self) -> Result<Vec<User>, StoreError> {
        self.database.read(users::all).await
    }

    async fn put_user(&self, user: User, expect: Precondition, now: Timestamp) -> Result<User, StoreError> {
        self.change(move |tx| users::put(tx, user, expect, now)).await
    }

    async fn remove_user(&self, name: &str) -> Result<(), StoreError> {
        let name = name.to_owned();
        self.change(move |tx| users::remove(tx, &name)).await
    }

    async fn sessions(&self) -> Result<Vec<Session>, StoreError> {
        self.database.read(users::sessions).await
    }

    async fn put_session(&self, session: Session) -> Result<Vec<String>, StoreError> {
        self.change(move |tx| users::put_session(tx, &session)).await
    }

    async fn touch_sessions(&self, used: Vec<(String, Timestamp)>) -> Result<(), StoreError> {
        self.change(move |tx| users::touch_sessions(tx, &used)).await
    }

    async fn remove_sessions(&self, ids: Vec<String>) -> Result<(), StoreError> {
        self.change(move |tx| users::remove_sessions(tx, &ids)).await
    }
}

#[async_trait]
impl NotifybcStore for SqliteRecords {
    async fn put_documents(
        &self,
        puts: Vec<PutDocument>,
        now: Timestamp,
    ) -> Result<Vec<Written<DocumentVersion>>, StoreError> {
        let puts = puts.into_iter().map(|put| self.sealed(put)).collect::<Result<Vec<_>, _>>()?;
        let puts = DocumentPuts { puts, now };
        if puts.puts.len() <= GROUPED_DOCUMENTS_MAX {
            return self.write_grouped(puts).await;
        }
        self.change_if_space(move |tx| notifybc_documents::put_many(tx, &puts.puts, now)).await
    }

    async fn document(&self, collection: Collection, id: &str) -> Result<Option<StoredDocument>, StoreError> {
        let id = id.to_owned();
        let read = move |connection: &Connection| notifybc_documents::find(connection, collection, &id);
        self.database.read(read).await?.map(|found| self.opened_document(found)).transpose()
    }

    async fn documents_of(
        &self,
        collection: Collection,
        ids: &[String],
    ) -> Result<Vec<Option<StoredDocument>>, StoreError> {
        let ids = ids.to_vec();
        let read = move |connection: &Connection| {
            ids.iter().map(|id| notifybc_documents::find(connection, collection, id)).collect::<Result<Vec<_>, _>>()
        };
        let found = self.database.read(read).await?;
        found.into_iter().map(|found| found.map(|found| self.opened_document(found)).transpose()).collect()
    }

    async fn document_ids(&self, numbers: &[SubscriptionId]) -> Result<Vec<Option<String>>, StoreError> {
        let numbers = numbers.to_vec();
        self.database.read(move |connection| notifybc_documents::ids_of(connection, &numbers)).await
    }

    async fn document_by_unique(
        &self,
        collection: Collection,
        unique: &str,
    ) -> Result<Option<StoredDocument>, StoreError> {
        let unique = unique.to_owned();
        let read = move |connection: &Connection| notifybc_documents::find_by_unique(connection, collection, &unique);
        self.database.read(read).await?.map(|found| self.opened_document(found)).transpose()
    }

    async fn scan_documents(&self, scan: DocumentScan) -> Result<ScanPage<StoredDocument, String>, StoreError> {
        let ScanPage { items, next } =
            self.database.read(move |connection| notifybc_documents::scan(connection, &scan)).await?;
        let items = items.into_iter().map(|found| self.opened_document(found)).collect::<Result<_, _>>()?;
        Ok(ScanPage { items, next })
    }

    async fn count_documents(&self, collection: Collection, filter: &KeyFilter) -> Result<u64, StoreError> {
        let filter = filter.clone();
        self.database.read(move |connection| notifybc_documents::count(connection, collection, &filter)).await
    }

    async fn confirmed_services(&self) -> Result<Vec<String>, StoreError> {
        self.database.read(notifybc_documents::confirmed_services).await
    }

    async fn remove_documents(
        &self,
        collection: Collection,
        ids: Vec<String>,
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        self.change(move |tx| notifybc_documents::remove_many(tx, collection, &ids, now)).await
    }
}

#[async_trait]
impl Installation for SqliteRecords {
    fn installation(&self) -> &str {
        &self.installation
    }

    fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    fn counts(&self) -> RecordCounts {
        *self.published.counts.lock()
    }

    async fn probe(&self) -> Result<Duration, StoreError> {
        self.database.probe().await
    }
}

#[async_trait]
impl Entries for SqliteRecords {
    fn watch(&self, watcher: Arc<dyn EntryWatcher>) {
        let _ = self.published.watcher.set(watcher);
    }

    async fn read(&self, job: EntryReadJob) -> Result<(), StoreError> {
        self.database.read(move |connection| job(connection)).await
    }

    async fn change(&self, room: DiskCheck, job: EntryWriteJob) -> Result<(), StoreError> {
        let job = move |tx: &mut RecordsTransaction<'_>| job(&mut Writer(tx));
        match room {
            DiskCheck::Required => self.change_if_space(job).await,
            DiskCheck::Skipped => SqliteRecords::change(self, job).await,
        }
    }

    async fn modify_prepared(&self, retouch: PreparedModify) -> Result<bool, StoreError> {
        self.write_grouped(prepared::PreparedChange::of_modify(retouch)).await
    }

    async fn add_prepared(&self, arrival: PreparedAdd) -> Result<bool, StoreError> {
        self.write_grouped(prepared::PreparedChange::of_add(arrival)).await
    }
}
