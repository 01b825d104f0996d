//! The records on SQLite: `records.db`.
//!
//! Every write is one job of the file's writer: it opens the books, changes rows, and closes the books, which hold the
//! numbers that were given out, the counts and the end of the change feed. What became true is published after the
//! commit. Reads go to the readers.

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
    subscriber::{Device, Subscriber},
    subscription::Subscription,
    suppression::{Policy, Report, Suppression, Target},
    time::Timestamp,
};
use tokio::sync::watch;

use super::writer::{AfterCommit, Database, FreeSpace, Options, empty_log, store_error};
pub(super) use schema::MIGRATIONS;

use crate::{
    entries::EntryWatcher,
    error::StoreError,
    inbox::{Bell, Listener},
    keyring::Keyring,
    look::Looked,
    records::{
        ApiKey, ApplicationVersion, Change, EndpointKey, Expect, FEED_KEPT, FailingEndpoint, FollowedSchedule,
        IndexedSubscription, Merge, NewSegment, NewSubscriber, NewSubscription, NotMerged, ProfileImage, Recipient,
        RecordCounts, Records, ScheduledSubscription, SubscriberFilter, SubscriptionChange, SubscriptionCounts,
        SubscriptionFilter, SuppressionFilter, Survey, SurveyBounds, Written, new_installation, new_secret,
        no_subscription,
    },
};
use at_hand::AtHand;
use feed::Books;
use prepared::Waiting;

mod api_keys;
mod applications;
mod at_hand;
mod endpoints;
mod entries;
mod feed;
mod matching;
mod merges;
mod prepared; // what was worked out beforehand
mod recipients;
mod schedules;
mod schema;
mod segments;
mod subscribers;
mod subscriptions;
mod suppressions;
mod sealed; // what is secret

/// How the records are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordsOptions {
    /// While less than this is free on the disk, new subscribers, devices and subscriptions are refused with `Full`;
    /// other changes and removals go on. 0 switches the guard off.
    pub reserve_bytes: u64,
    /// Threads that read.
    pub readers: usize,
    /// Places that the change feed keeps at least.
    pub feed_kept: u64,
    /// Seal definitions, in which there may be passwords, and the secret of the installation. What is sealed with another key
    /// than the first, or not at all, is sealed anew when the records are opened.
    pub keys: Keyring,
}

impl Default for RecordsOptions {
    fn default() -> Self {
        RecordsOptions { reserve_bytes: 64 << 20, readers: 2, feed_kept: FEED_KEPT, keys: Keyring::default() }
    }
}

/// The records in one SQLite file. Dropping it waits for the writes that were taken on, and blocks meanwhile.
pub struct SqliteRecords {
    database: Database,
    free_space: FreeSpace,
    feed_kept: u64,
    installation: String,
    secret: [u8; 32],
    keys: Keyring,
    published: Arc<Published>,
}

/// What the last commit made true.
struct Published {
    counts: Mutex<RecordCounts>,
    newest: watch::Sender<ChangeSequence>,
    /// The newest change of API keys of which this process knows.
    newest_key: watch::Sender<ChangeSequence>,
    /// Changes after this place are still needed.
    feed_needed: AtomicU64,
    at_hand: AtHand,
    bell: Arc<Bell>,
    newest_suppression: AtomicU64,
    watcher: OnceLock<Arc<dyn EntryWatcher>>,
    /// Whether there are indexes of the directory that hold all entries.
    indexed: AtomicBool,
    /// Changes that were worked out beforehand.
    waiting: Waiting,
}

impl Published {
    /// Opens the books, does a job, and closes them. What became true is published after the commit.
    fn between_books<T>(
        self: &Arc<Self>,
        feed_kept: u64,
        connection: &Connection,
        after: &mut AfterCommit,
        job: impl FnOnce(&mut Books<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut books = Books::open(connection)?;
        books.watcher = self.watcher.get().cloned();
        books.indexed = self.indexed.load(Ordering::Relaxed);
        let result = job(&mut books)?;
        books.close(feed_kept, self.feed_needed.load(Ordering::Relaxed))?;
        let (change, counts) = (ChangeSequence(books.change), books.counts);
        let (suppressed, touched, interests) = (books.suppressed, books.touched, books.subscriptions_touched);
        let key = books.key_changed;
        let (indexed, watcher) = (books.indexed, books.watcher);
        let (entries, credentials) = (books.entry_changes, books.credentials_touched);
        let published = self.clone();
        after.run(move || {
            published.at_hand.forget(&touched, &interests);
            published.bell.ring(touched.iter().copied().map(SubscriberNumber));
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
    /// Opens or makes `records.db` in a folder. Blocks.
    ///
    /// # Errors
    /// `Unavailable` if another process works with the file or a newer version wrote it, `Damaged` if it is no such file.
    pub fn open(folder: &Path, options: &RecordsOptions) -> Result<SqliteRecords, StoreError> {
        let path = folder.join("records.db");
        let database = Database::open(
            &path,
            &Options {
                // Subscriptions come and are read in no order; small pages make each of them cheap to touch.
                page_bytes: 4_096,
                log_bytes_max: 128 << 20,
                // Indexes of subscribers are written in no order: in a longer step more changes meet on a page.
                log_step_bytes: 32 << 20,
                // A commit that parted pages looks through all of it; more would not hold the leaves of large records either.
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
                let secret = sealed::installation(connection, &keys, fresh_secret)?;
                sealed::definitions(connection, &keys)?;
                let books = Books::open(connection)?;
                let suppressed = feed::newest_suppression(connection)?;
                let indexed = entries::is_indexed(connection)?;
                Ok((identity, secret, ChangeSequence(books.change), books.counts, suppressed, indexed))
            })?;
        if options.keys.seals() {
            empty_log(&path)?;
        }
        Ok(SqliteRecords {
            free_space: FreeSpace::beside(&path, options.reserve_bytes),
            database,
            feed_kept: options.feed_kept,
            installation,
            secret,
            keys: options.keys.clone(),
            published: Arc::new(Published {
                counts: Mutex::new(counts),
                newest: watch::Sender::new(change),
                newest_key: watch::Sender::new(ChangeSequence(0)),
                feed_needed: AtomicU64::new(u64::MAX),
                at_hand: AtHand::default(),
                bell: Arc::default(),
                newest_suppression: AtomicU64::new(suppressed.0),
                watcher: OnceLock::new(),
                indexed: AtomicBool::new(indexed),
                waiting: Waiting::default(),
            }),
        })
    }

    /// A version with its definition as it was given.
    fn opened(&self, version: ApplicationVersion) -> Result<ApplicationVersion, StoreError> {
        Ok(ApplicationVersion { text: self.keys.open(version.text)?, ..version })
    }

    /// Runs a write between the opening and the closing of the books.
    async fn change<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Books<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.database.write(self.between_books(job)).await
    }

    /// A job of the writer that opens the books, does another, and closes them. What became true is published after the commit.
    fn between_books<T, J>(
        &self,
        job: J,
    ) -> impl FnOnce(&Connection, &mut AfterCommit) -> Result<T, StoreError> + use<T, J>
    where
        J: FnOnce(&mut Books<'_>) -> Result<T, StoreError>,
    {
        let published = self.published.clone();
        let feed_kept = self.feed_kept;
        move |connection, after| published.between_books(feed_kept, connection, after, job)
    }

    /// The same for what takes up room.
    async fn take_in<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Books<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.free_space.check()?;
        self.change(job).await
    }
}

#[async_trait]
impl Records for SqliteRecords {
    fn installation(&self) -> &str {
        &self.installation
    }

    fn secret(&self) -> &[u8; 32] {
        &self.secret
    }

    async fn put_application(&self, name: &Name, text: &str, author: &str, now: Timestamp) -> Result<u32, StoreError> {
        let (name, text, author) = (name.clone(), self.keys.seal(text)?, author.to_owned());
        self.change(move |books| applications::put(books, &name, &text, &author, now)).await
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
            if self.change(move |books| applications::remove_step(books, &name)).await? {
                return Ok(());
            }
        }
    }

    async fn put_subscriber(
        &self,
        new: NewSubscriber,
        expect: Expect,
        now: Timestamp,
    ) -> Result<Subscriber, StoreError> {
        self.take_in(move |books| subscribers::put(books, new, expect, now)).await
    }

    async fn put_subscribers(
        &self,
        new: Vec<NewSubscriber>,
        now: Timestamp,
    ) -> Result<Vec<Written<SubscriberNumber>>, StoreError> {
        self.take_in(move |books| subscribers::put_many(books, new, now)).await
    }

    async fn subscriber(&self, id: &SubscriberId) -> Result<Option<Subscriber>, StoreError> {
        let id = id.clone();
        self.database.read(move |connection| subscribers::find(connection, &id)).await
    }

    async fn look_for_subscribers(
        &self,
        filter: &SubscriberFilter,
        after: Option<&SubscriberId>,
        limit: usize,
    ) -> Result<Looked<Subscriber, SubscriberId>, StoreError> {
        let (filter, after) = (filter.clone(), after.cloned());
        self.database.read(move |connection| subscribers::list(connection, &filter, after.as_ref(), limit)).await
    }

    async fn remove_subscriber(&self, id: &SubscriberId, expect: Expect, _now: Timestamp) -> Result<(), StoreError> {
        let id = id.clone();
        self.change(move |books| subscribers::remove(books, &id, expect)).await
    }

    async fn merge_subscribers(
        &self,
        from: &SubscriberId,
        into: &SubscriberId,
        now: Timestamp,
    ) -> Result<Result<Merge, NotMerged>, StoreError> {
        let (from, into) = (from.clone(), into.clone());
        self.take_in(move |books| merges::merge(books, &from, &into, now)).await
    }

    async fn merge_of(&self, from: &SubscriberId) -> Result<Option<Merge>, StoreError> {
        let from = from.clone();
        self.database.read(move |connection| merges::last(connection, &from)).await
    }

    async fn unfinished_merges(&self) -> Result<Vec<Merge>, StoreError> {
        self.database.read(merges::unfinished).await
    }

    async fn finish_merge(&self, from: SubscriberNumber) -> Result<(), StoreError> {
        self.change(move |books| merges::finish(books.connection, from)).await
    }

    async fn put_device(
        &self,
        id: &SubscriberId,
        name: &Name,
        device: Device,
        now: Timestamp,
    ) -> Result<Subscriber, StoreError> {
        let (id, name) = (id.clone(), name.clone());
        self.take_in(move |books| subscribers::put_device(books, &id, name, device, now)).await
    }

    async fn remove_device(&self, id: &SubscriberId, name: &Name, now: Timestamp) -> Result<Subscriber, StoreError> {
        let (id, name) = (id.clone(), name.clone());
        self.change(move |books| subscribers::remove_device(books, &id, &name, now)).await
    }

    async fn put_segment(&self, new: NewSegment, expect: Expect, now: Timestamp) -> Result<Segment, StoreError> {
        self.change(move |books| segments::put(books, new, expect, now)).await
    }

    async fn segment(&self, name: &Name) -> Result<Option<Segment>, StoreError> {
        let name = name.clone();
        self.database.read(move |connection| segments::find(connection, &name)).await
    }

    async fn segments(&self, after: Option<&Name>, limit: usize) -> Result<Vec<Segment>, StoreError> {
        let after = after.cloned();
        self.database.read(move |connection| segments::list(connection, after.as_ref(), limit)).await
    }

    async fn remove_segment(&self, name: &Name, expect: Expect, _now: Timestamp) -> Result<(), StoreError> {
        let name = name.clone();
        self.change(move |books| segments::remove(books, &name, expect)).await
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

    async fn survey(
        &self,
        filter: &LdapFilter,
        after: Option<&SubscriberId>,
        bounds: SurveyBounds,
    ) -> Result<Survey, StoreError> {
        let (filter, after) = (filter.clone(), after.cloned());
        self.database.read(move |connection| segments::survey(connection, &filter, after.as_ref(), bounds)).await
    }

    async fn put_subscription(&self, new: NewSubscription, now: Timestamp) -> Result<Subscription, StoreError> {
        self.take_in(move |books| {
            let written = subscriptions::put_many(books, &[new], now)?;
            let id = written.into_iter().next().expect("one line has one answer")?;
            subscriptions::find(books.connection, id)?.ok_or_else(|| no_subscription(id))
        })
        .await
    }

    async fn put_subscriptions(
        &self,
        new: Vec<NewSubscription>,
        now: Timestamp,
    ) -> Result<Vec<Written<SubscriptionId>>, StoreError> {
        self.take_in(move |books| subscriptions::put_many(books, &new, now)).await
    }

    async fn update_subscription(
        &self,
        id: SubscriptionId,
        change: SubscriptionChange,
        expect: Expect,
        now: Timestamp,
    ) -> Result<Subscription, StoreError> {
        self.change(move |books| subscriptions::update(books, id, &change, expect, now)).await
    }

    async fn wake_subscriptions(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        // Nearly always all sleep on, and then nothing is written.
        if !self.database.read(move |connection| subscriptions::is_any_to_wake(connection, now)).await? {
            return Ok(0);
        }
        self.change(move |books| subscriptions::wake(books, now, limit)).await
    }

    async fn subscription(&self, id: SubscriptionId) -> Result<Option<Subscription>, StoreError> {
        self.database.read(move |connection| subscriptions::find(connection, id)).await
    }

    async fn look_for_subscriptions(
        &self,
        filter: &SubscriptionFilter,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<Looked<Subscription, SubscriptionId>, StoreError> {
        let filter = filter.clone();
        self.database.read(move |connection| subscriptions::list(connection, &filter, after, limit)).await
    }

    async fn remove_subscription(&self, id: SubscriptionId, expect: Expect, _now: Timestamp) -> Result<(), StoreError> {
        self.change(move |books| subscriptions::remove(books, id, expect)).await
    }

    async fn put_suppressions(&self, new: Vec<Suppression>) -> Result<(), StoreError> {
        self.take_in(move |books| suppressions::put_many(books, &new)).await
    }

    async fn report_suppressions(
        &self,
        reports: Vec<Report>,
        policy: &Policy,
        now: Timestamp,
    ) -> Result<Vec<Suppression>, StoreError> {
        let policy = policy.clone();
        self.change(move |books| suppressions::report(books, reports, &policy, now)).await
    }

    async fn suppression(&self, target: &Target) -> Result<Option<Suppression>, StoreError> {
        let target = target.clone();
        self.database.read(move |connection| suppressions::find_in_any_form(connection, &target)).await
    }

    async fn look_for_suppressions(
        &self,
        filter: &SuppressionFilter,
        after: Option<&Target>,
        limit: usize,
    ) -> Result<Looked<Suppression, Target>, StoreError> {
        let (filter, after) = (filter.clone(), after.map(Target::to_string));
        self.database.read(move |connection| suppressions::list(connection, &filter, after.as_deref(), limit)).await
    }

    async fn remove_suppression(&self, target: &Target) -> Result<(), StoreError> {
        let target = target.clone();
        self.change(move |books| suppressions::remove(books, &target)).await
    }

    async fn prune_suppressions(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        // Nearly always nothing is over, and then nothing is written.
        if !self.database.read(move |connection| suppressions::is_any_over(connection, now)).await? {
            return Ok(0);
        }
        self.change(move |books| suppressions::prune(books, now, limit)).await
    }

    fn newest_suppression(&self) -> ChangeSequence {
        ChangeSequence(self.published.newest_suppression.load(Ordering::Acquire))
    }

    async fn suppression_changes(&self, after: ChangeSequence, limit: usize) -> Result<Vec<Change>, StoreError> {
        self.database.read(move |connection| feed::suppression_changes(connection, after, limit)).await
    }

    async fn keep_endpoints(&self, endpoints: Vec<FailingEndpoint>) -> Result<(), StoreError> {
        self.change(move |books| endpoints::keep(books.connection, &endpoints)).await
    }

    async fn forget_endpoints(&self, endpoints: Vec<EndpointKey>) -> Result<(), StoreError> {
        self.change(move |books| endpoints::forget(books.connection, &endpoints)).await
    }

    async fn failing_endpoints(
        &self,
        after: Option<&EndpointKey>,
        limit: usize,
    ) -> Result<Vec<FailingEndpoint>, StoreError> {
        let after = after.cloned();
        self.database.read(move |connection| endpoints::list(connection, after.as_ref(), limit)).await
    }

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

    async fn recipients(&self, subscriptions: &[SubscriptionId]) -> Result<Vec<Option<Recipient>>, StoreError> {
        if let Some(recipients) = self.published.at_hand.recipients(subscriptions) {
            return Ok(recipients);
        }
        let (subscriptions, published) = (subscriptions.to_vec(), self.published.clone());
        self.database.read(move |connection| recipients::find(connection, &published.at_hand, &subscriptions)).await
    }

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
        application: &Name,
        class: &Name,
        schedule: &str,
        after: Option<SubscriptionId>,
        limit: usize,
    ) -> Result<Vec<ScheduledSubscription>, StoreError> {
        let (application, class, schedule) = (application.clone(), class.clone(), schedule.to_owned());
        let job = move |connection: &Connection| {
            schedules::members(connection, &application, &class, &schedule, after, limit)
        };
        self.database.read(job).await
    }

    async fn schedule_of(&self, id: SubscriptionId) -> Result<Option<(Box<str>, Timestamp)>, StoreError> {
        self.database.read(move |connection| schedules::of(connection, id)).await
    }

    async fn forget_schedule(&self, application: &Name, class: &Name, schedule: &str) -> Result<bool, StoreError> {
        let (application, class, schedule) = (application.clone(), class.clone(), schedule.to_owned());
        self.change(move |books| schedules::forget(books, &application, &class, &schedule)).await
    }

    async fn changes(&self, after: ChangeSequence, limit: usize) -> Result<Vec<Change>, StoreError> {
        self.database.read(move |connection| feed::changes(connection, after, limit)).await
    }

    fn listen(&self, subscriber: SubscriberNumber) -> Listener {
        self.published.bell.listen(subscriber)
    }

    fn newest_change(&self) -> watch::Receiver<ChangeSequence> {
        self.published.newest.subscribe()
    }

    fn newest_key_change(&self) -> watch::Receiver<ChangeSequence> {
        self.published.newest_key.subscribe()
    }

    fn keep_changes_after(&self, place: ChangeSequence) {
        self.published.feed_needed.store(place.0, Ordering::Relaxed);
    }

    async fn put_api_key(&self, key: ApiKey) -> Result<(), StoreError> {
        self.change(move |books| api_keys::put(books, &key)).await
    }

    async fn api_keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.database.read(api_keys::all).await
    }

    async fn remove_api_key(&self, id: &str) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.change(move |books| api_keys::remove(books, &id)).await
    }

    fn counts(&self) -> RecordCounts {
        *self.published.counts.lock()
    }

    async fn subscription_counts(&self) -> Result<Vec<SubscriptionCounts>, StoreError> {
        self.database.read(subscriptions::counts).await
    }

    async fn probe(&self) -> Result<Duration, StoreError> {
        self.database.probe().await
    }
}

// Rows and statements. SQLite's integers are signed; our numbers start at 1 and never reach its end.

/// A number as SQLite keeps it. One beyond its end is as good as the end.
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

/// Runs a statement that is prepared once. Gives the number of rows it changed.
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
