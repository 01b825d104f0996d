//! SQLite backend of the records port: `records.db`.
//!
//! Every write is one job of the file's writer thread. It opens a [`RecordsTransaction`] with the id counters, row
//! counts and the end of the change log, changes rows, and stores the counters. Caches and watchers are updated after
//! the commit. Reads use the reader connections.

use std::{
    ops::RangeInclusive,
    path::Path,
    str::FromStr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rusqlite::{Connection, Params, Row};
use tocsin_model::{
    id::{ChangeSequence, Name, SubscriberId, SubscriberNumber, SubscriptionId},
    ldap::LdapFilter,
    segment::Segment,
    subscriber::Subscriber,
    subscription::Subscription,
    suppression::{Policy, Report, Suppression, Target},
    time::Timestamp,
};
use tokio::sync::watch;

use super::writer::{AfterCommit, Database, FreeSpace, Options, store_error, truncate_wal};
pub(super) use schema::MIGRATIONS;

use crate::{
    bounded_scan::ScanPage,
    entries::EntryWatcher,
    error::StoreError,
    inbox::{Listener, ListenerRegistry},
    keyring::Keyring,
    records::{
        ApiKey, ApiKeyStore, ApplicationStore, ApplicationVersion, CHANGES_KEPT, ChangeLog, EndpointKey,
        FailingEndpoint, FollowedSchedule, IndexedSubscription, Installation, MatchStore, Merge, MergeRefusal,
        NewApplicationVersion, NewSegment, NewSubscriber, NewSubscription, Precondition, ProfileImage, PutDevice,
        Recipient, RecipientStore, RecordChange, RecordCounts, ScheduleMembers, ScheduleStore, ScheduledSubscription,
        SegmentScan, SegmentScanBounds, SegmentStore, SubscriberFilter, SubscriberStore, SubscriptionCounts,
        SubscriptionFilter, SubscriptionStore, SuppressionFilter, SuppressionStore, UpdateSubscription, Written,
        new_installation, new_secret, no_subscription,
    },
};
use prepared::PreparedQueue;
use recipient_cache::RecipientCache;
use transaction::RecordsTransaction;

mod api_keys;
mod applications;
mod recipient_cache;
mod endpoints;
mod entries;
mod transaction;
mod matching;
mod merges;
mod prepared; // group commit of prepared changes
mod recipients;
mod schedules;
mod schema;
mod segments;
mod subscribers;
mod subscriptions;
mod suppressions;
mod encryption; // encryption of secrets at rest

/// Options of the records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordsOptions {
    /// With less free disk space than this, new subscribers, devices and subscriptions are refused with `Full`; other
    /// changes and removals still work. 0 disables the check.
    pub reserve_bytes: u64,
    /// Number of reader threads.
    pub readers: usize,
    /// Minimum number of sequences that the change log keeps.
    pub changes_kept: u64,
    /// Keys that seal application definitions, which may contain passwords, and the secret of the installation.
    /// Anything that is not sealed with the first key is resealed when the records are opened.
    pub keys: Keyring,
}

impl Default for RecordsOptions {
    fn default() -> Self {
        RecordsOptions { reserve_bytes: 64 << 20, readers: 2, changes_kept: CHANGES_KEPT, keys: Keyring::default() }
    }
}

/// Records in one SQLite file. Dropping it blocks until the accepted writes are done.
pub struct SqliteRecords {
    database: Database,
    free_space: FreeSpace,
    changes_kept: u64,
    installation: String,
    secret: [u8; 32],
    keys: Keyring,
    published: Arc<PublishedState>,
}

/// State published after each commit.
struct PublishedState {
    counts: Mutex<RecordCounts>,
    newest: watch::Sender<ChangeSequence>,
    /// Newest change of API keys known to this process.
    newest_key: watch::Sender<ChangeSequence>,
    /// Changes after this sequence are still needed.
    changes_needed: AtomicU64,
    recipient_cache: RecipientCache,
    listeners: Arc<ListenerRegistry>,
    newest_suppression: AtomicU64,
    watcher: OnceLock<Arc<dyn EntryWatcher>>,
    /// Whether any search index of the directory is complete.
    indexed: AtomicBool,
    /// Prepared changes that wait for the writer.
    waiting: PreparedQueue,
}

impl PublishedState {
    /// Runs a job in a transaction, stores the counters, and publishes the new state after the commit.
    fn with_transaction<T>(
        self: &Arc<Self>,
        changes_kept: u64,
        connection: &Connection,
        after: &mut AfterCommit,
        job: impl FnOnce(&mut RecordsTransaction<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut tx = RecordsTransaction::open(connection)?;
        tx.watcher = self.watcher.get().cloned();
        tx.indexed = self.indexed.load(Ordering::Relaxed);
        let result = job(&mut tx)?;
        tx.finish(changes_kept, self.changes_needed.load(Ordering::Relaxed))?;
        let (change, counts) = (ChangeSequence(tx.change), tx.counts);
        let (suppressed, touched, interests) = (tx.suppressed, tx.touched, tx.subscriptions_touched);
        let key = tx.key_changed;
        let (indexed, watcher) = (tx.indexed, tx.watcher);
        let (entries, credentials) = (tx.entry_changes, tx.credentials_touched);
        let published = self.clone();
        after.run(move || {
            published.recipient_cache.invalidate(&touched, &interests);
            published.listeners.notify(touched.iter().copied().map(SubscriberNumber));
            published.indexed.store(indexed, Ordering::Relaxed);
            if let Some(watcher) = watcher {
                if !entries.is_empty() {
                    watcher.changed(entries);
                }
                if !credentials.is_empty() {
                    watcher.credentials_changed(&credentials);
                }
            }
            if let Some(suppressed) = suppressed {
                published.newest_suppression.store(suppressed, Ordering::Release);
            }
            *published.counts.lock() = counts;
            if let Some(key) = key {
                published.newest_key.send_replace(ChangeSequence(key));
            }
            published.newest.send_if_modified(|newest| std::mem::replace(newest, change) != change);
        });
        Ok(result)
    }
}

impl SqliteRecords {
    /// Opens or creates `records.db` in a folder. Blocks.
    ///
    /// # Errors
    /// `Unavailable` if another process uses the file or a newer version wrote it, `Damaged` if it is not such a
    /// file.
    pub fn open(folder: &Path, options: &RecordsOptions) -> Result<SqliteRecords, StoreError> {
        let path = folder.join("records.db");
        let database = Database::open(
            &path,
            &Options {
                // Subscriptions are written and read in random order; small pages make each access cheap.
                page_bytes: 4_096,
                log_bytes_max: 128 << 20,
                // Indexes of subscribers are written in random order: with a longer step, more changes share a page.
                log_step_bytes: 32 << 20,
                // A commit that split pages scans the whole cache; a larger one would not hold the leaves of large
                // records either.
                writer_cache_kib: 16 << 10,
                reader_cache_kib: 64 << 10,
                readers: options.readers,
                synced: true,
                migrations: MIGRATIONS,
            },
        )?;
        let (fresh, fresh_secret, keys) = (new_installation()?, new_secret()?, options.keys.clone());
        let (installation, secret, change, counts, suppressed, indexed) =
            database.write_blocking(move |connection, _| {
                let sql = "INSERT INTO installation (one, identity) VALUES (1, ?1) ON CONFLICT DO NOTHING";
                execute(connection, sql, [fresh])?;
                let identity = query_one(connection, "SELECT identity FROM installation", (), |row| row.get(0))?;
                let identity = identity.ok_or_else(|| StoreError::Damaged("the row of the installation".into()))?;
                let secret = encryption::installation(connection, &keys, fresh_secret)?;
                encryption::definitions(connection, &keys)?;
                let tx = RecordsTransaction::open(connection)?;
                let suppressed = transaction::newest_suppression(connection)?;
                let indexed = entries::is_indexed(connection)?;
                Ok((identity, secret, ChangeSequence(tx.change), tx.counts, suppressed, indexed))
            })?;
        if options.keys.seals() {
            truncate_wal(&path)?;
        }
        Ok(SqliteRecords {
            free_space: FreeSpace::of(&path, options.reserve_bytes),
            database,
            changes_kept: options.changes_kept,
            installation,
            secret,
            keys: options.keys.clone(),
            published: Arc::new(PublishedState {
                counts: Mutex::new(counts),
                newest: watch::Sender::new(change),
                newest_key: watch::Sender::new(ChangeSequence(0)),
                changes_needed: AtomicU64::new(u64::MAX),
                recipient_cache: RecipientCache::default(),
                listeners: Arc::default(),
                newest_suppression: AtomicU64::new(suppressed.0),
                watcher: OnceLock::new(),
                indexed: AtomicBool::new(indexed),
                waiting: PreparedQueue::default(),
            }),
        })
    }

    /// Version with its definition decrypted.
    fn opened(&self, version: ApplicationVersion) -> Result<ApplicationVersion, StoreError> {
        Ok(ApplicationVersion { text: self.keys.open(version.text)?, ..version })
    }

    /// Runs a writing job.
    async fn change<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut RecordsTransaction<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.database.write(self.with_transaction(job)).await
    }

    /// Wraps a job for the writer: transaction, counters, publication after the commit.
    fn with_transaction<T, J>(
        &self,
        job: J,
    ) -> impl FnOnce(&Connection, &mut AfterCommit) -> Result<T, StoreError> + use<T, J>
    where
        J: FnOnce(&mut RecordsTransaction<'_>) -> Result<T, StoreError>,
    {
        let published = self.published.clone();
        let changes_kept = self.changes_kept;
        move |connection, after| published.with_transaction(changes_kept, connection, after, job)
    }

    /// Like `change`, for jobs that need disk space.
    async fn change_if_space<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut RecordsTransaction<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.free_space.check()?;
        self.change(job).await
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

    async fn remove_application(&self, name: &Name, _now: Timestamp) -> Result<(), StoreError> {
        loop {
            let name = name.clone();
            if self.change(move |tx| applications::remove_step(tx, &name)).await? {
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
        self.database.read(move |connection| subscribers::find(connection, &id)).await
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
        _now: Timestamp,
    ) -> Result<(), StoreError> {
        let id = id.clone();
        self.change(move |tx| subscribers::remove(tx, &id, expect)).await
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
        let PutDevice { id, name, device, now } = put;
        let (id, name) = (id.clone(), name.clone());
        self.change_if_space(move |tx| subscribers::put_device(tx, &id, name, device, now)).await
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
    async fn put_subscription(&self, new: NewSubscription, now: Timestamp) -> Result<Subscription, StoreError> {
        self.change_if_space(move |tx| {
            let written = subscriptions::put_many(tx, &[new], now)?;
            let id = written.into_iter().next().expect("one line has one answer")?;
            subscriptions::find(tx.connection, id)?.ok_or_else(|| no_subscription(id))
        })
        .await
    }

    async fn put_subscriptions(
        &self,
        new: Vec<NewSubscription>,
        now: Timestamp,
    ) -> Result<Vec<Written<SubscriptionId>>, StoreError> {
        self.change_if_space(move |tx| subscriptions::put_many(tx, &new, now)).await
    }

    async fn update_subscription(&self, update: UpdateSubscription) -> Result<Subscription, StoreError> {
        let UpdateSubscription { id, change, expect, now } = update;
        self.change(move |tx| subscriptions::update(tx, id, &change, expect, now)).await
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

    async fn remove_subscription(
        &self,
        id: SubscriptionId,
        expect: Precondition,
        _now: Timestamp,
    ) -> Result<(), StoreError> {
        self.change(move |tx| subscriptions::remove(tx, id, expect)).await
    }

    async fn subscription_counts(&self) -> Result<Vec<SubscriptionCounts>, StoreError> {
        self.database.read(subscriptions::counts).await
    }
}

#[async_trait]
impl SuppressionStore for SqliteRecords {
    async fn put_suppressions(&self, new: Vec<Suppression>) -> Result<(), StoreError> {
        self.change_if_space(move |tx| suppressions::put_many(tx, &new)).await
    }

    async fn report_suppressions(
        &self,
        reports: Vec<Report>,
        policy: &Policy,
        now: Timestamp,
    ) -> Result<Vec<Suppression>, StoreError> {
        let policy = policy.clone();
        self.change(move |tx| suppressions::report(tx, reports, &policy, now)).await
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

    fn newest_key_change(&self) -> watch::Receiver<ChangeSequence> {
        self.published.newest_key.subscribe()
    }
}

// Rows and statements. SQLite integers are signed; our numbers start at 1 and stay below the maximum

/// Number as a SQLite integer. Larger numbers become the maximum.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn number_at(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, number))
}

fn parsed_at<T>(row: &Row<'_>, column: usize) -> rusqlite::Result<T>
where
    T: FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    row.get_ref(column)?.as_str()?.parse().map_err(|error| conversion_failed(column, error))
}

fn name_at(row: &Row<'_>, column: usize) -> rusqlite::Result<Name> {
    parsed_at(row, column)
}

fn json_at<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    serde_json::from_str(row.get_ref(column)?.as_str()?).map_err(|error| conversion_failed(column, error))
}

pub(super) fn conversion_failed(
    column: usize,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
}

fn json<T: serde::Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("maps with text keys and finite numbers are JSON")
}

/// Runs a cached statement. Returns the number of rows changed.
pub(super) fn execute(connection: &Connection, sql: &str, parameters: impl Params) -> Result<usize, StoreError> {
    connection.prepare_cached(sql).and_then(|mut statement| statement.execute(parameters)).map_err(store_error)
}

pub(super) fn query_one<T>(
    connection: &Connection,
    sql: &str,
    parameters: impl Params,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>, StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let mut rows = statement.query(parameters).map_err(store_error)?;
    rows.next().and_then(|row| row.map(read).transpose()).map_err(store_error)
}

pub(super) fn query_all<T>(
    connection: &Connection,
    sql: &str,
    parameters: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let rows = statement.query_map(parameters, read).map_err(store_error)?;
    rows.collect::<Result<_, _>>().map_err(store_error)
}

#[cfg(test)]
mod tests;
