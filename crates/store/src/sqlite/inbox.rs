//! The inbox on SQLite: `inbox.db`.
//!
//! A separate file with its own writer: readers of feeds do not delay event processing, nor the reverse. State is
//! published after the commit, and then the listeners of the feeds are woken.

mod transaction; // a transaction
mod contents; // contents that items share
mod broadcasts; // broadcasts and their state for each reader
mod items; // items and their contents
mod views; // feeds and their changes
mod schema;

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rusqlite::Connection;
use tocsin_model::{
    id::{Name, SubscriberNumber},
    inbox::{Item, ItemId, Mark, NewItem},
    time::Timestamp,
};

use crate::{
    error::StoreError,
    inbox::{
        Broadcast, BroadcastHead, DeliveryCounts, FeedChanges, FeedFilter, FeedReader, Inbox, InboxCounts, Listener,
        NewBroadcast,
    },
    sqlite::{
        inbox::transaction::{InboxTransaction, PublishedState},
        writer::{AfterCommit, Database, Erases, FreeSpace, LOG_STEP_BYTES, Options},
    },
};

pub(super) use schema::MIGRATIONS;

/// Options of the inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxOptions {
    /// While less than this is free on the disk, new items and broadcasts are refused with `Full`; reading and
    /// removing continue. 0 disables the check.
    pub reserve_bytes: u64,
    /// Number of reader threads.
    pub readers: usize,
}

impl Default for InboxOptions {
    fn default() -> Self {
        InboxOptions { reserve_bytes: 64 << 20, readers: 2 }
    }
}

/// The inbox in one SQLite file. Dropping it waits for the writes that were accepted, and blocks meanwhile.
pub struct SqliteInbox {
    database: Database,
    free_space: FreeSpace,
    published: Arc<PublishedState>,
}

impl SqliteInbox {
    /// Opens or creates `inbox.db` in a folder. Blocks.
    ///
    /// # Errors
    /// `Unavailable` if another process uses the file or a newer version wrote it, `Damaged` if it is not such a
    /// file.
    pub fn open(folder: &Path, options: &InboxOptions) -> Result<SqliteInbox, StoreError> {
        let path = folder.join("inbox.db");
        let database = Database::open(
            &path,
            &Options {
                // Items arrive in no order of subscribers; small pages make reading and writing each of them cheap.
                page_bytes: 4_096,
                log_bytes_max: 128 << 20,
                log_step_bytes: LOG_STEP_BYTES,
                writer_cache_kib: 64 << 10,
                reader_cache_kib: 16 << 10,
                readers: options.readers,
                synced: true,
                erases: Erases::Pages,
                migrations: MIGRATIONS,
            },
        )?;
        let (newest, counts, heads) = database.write_blocking(|connection, _| {
            let tx = InboxTransaction::open(connection)?;
            let counts = InboxCounts { items: tx.items, contents: tx.contents };
            Ok((tx.sequence, counts, transaction::heads(connection)?))
        })?;
        let published = Arc::new(PublishedState {
            newest: AtomicU64::new(newest),
            counts: Mutex::new(counts),
            heads: Mutex::new(Arc::new(heads)),
            listeners: Arc::default(),
        });
        Ok(SqliteInbox { free_space: FreeSpace::of(&path, options.reserve_bytes), database, published })
    }

    /// Runs a job within a transaction and stores the counters.
    async fn change<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut InboxTransaction<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let published = self.published.clone();
        let write = move |connection: &Connection, after: &mut AfterCommit| {
            let mut tx = InboxTransaction::open(connection)?;
            let result = job(&mut tx)?;
            tx.finish(&published, after)?;
            Ok(result)
        };
        self.database.write(write).await
    }
}

crate::sqlite::audit::trail!(SqliteInbox, "inbox");

#[async_trait]
impl Inbox for SqliteInbox {
    async fn put_items(
        &self,
        items: Vec<NewItem>,
        items_max: u32,
        now: Timestamp,
    ) -> Result<DeliveryCounts, StoreError> {
        self.free_space.check()?;
        // Work that does not need the writer is done before.
        let (mut contents, mut positions, mut new_items) =
            (Vec::new(), HashMap::new(), Vec::with_capacity(items.len()));
        for NewItem { subscriber, id, content, expires_at } in items {
            let content_index = *positions.entry(Arc::as_ptr(&content) as usize).or_insert_with(|| {
                contents.push((items::PreparedContent::new(&content), content));
                contents.len() - 1
            });
            new_items.push(items::NewInboxItem { subscriber, id, content: content_index, expires_at });
        }
        // The contents were kept until here so that no two of them had the same address.
        let contents = contents.into_iter().map(|(prepared, _)| prepared).collect();
        self.change(move |tx| items::put(tx, &new_items, contents, items_max, now)).await
    }

    async fn feed(
        &self,
        reader: &FeedReader,
        filter: &FeedFilter,
        before: Option<u64>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<Item>, StoreError> {
        let (reader, filter) = (reader.clone(), filter.clone());
        let before = before.map_or(i64::MAX, u64::cast_signed);
        self.database.read(move |connection| views::feed(connection, &reader, &filter, before, limit, now)).await
    }

    async fn item(&self, reader: &FeedReader, id: ItemId, now: Timestamp) -> Result<Option<Item>, StoreError> {
        let reader = reader.clone();
        self.database.read(move |connection| views::item(connection, &reader, id, now)).await
    }

    async fn unread(&self, reader: &FeedReader, now: Timestamp) -> Result<u64, StoreError> {
        let reader = reader.clone();
        self.database.read(move |connection| views::unread(connection, &reader, now)).await
    }

    async fn changes(
        &self,
        reader: &FeedReader,
        after: u64,
        limit: usize,
        now: Timestamp,
    ) -> Result<FeedChanges, StoreError> {
        let reader = reader.clone();
        self.database.read(move |connection| views::changes(connection, &reader, after, limit, now)).await
    }

    fn newest(&self) -> u64 {
        self.published.newest.load(Ordering::Acquire)
    }

    fn listen(&self, subscriber: SubscriberNumber) -> Listener {
        self.published.listeners.listen(subscriber)
    }

    async fn mark(
        &self,
        reader: &FeedReader,
        ids: Vec<ItemId>,
        mark: Mark,
        now: Timestamp,
    ) -> Result<Vec<ItemId>, StoreError> {
        let reader = reader.clone();
        let job = move |tx: &mut InboxTransaction<'_>| {
            let mut found = Vec::with_capacity(ids.len());
            for id in ids {
                let Some(item) = views::item(tx.connection, &reader, id, now)? else { continue };
                items::mark(tx, reader.subscriber, &item, mark, now)?;
                found.push(id);
            }
            Ok(found)
        };
        self.change(job).await
    }

    async fn mark_all(
        &self,
        reader: &FeedReader,
        filter: &FeedFilter,
        upto: u64,
        mark: Mark,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let (reader, filter) = (reader.clone(), filter.clone());
        let before = upto.saturating_add(1).min(i64::MAX as u64).cast_signed();
        let job = move |tx: &mut InboxTransaction<'_>| {
            let items = views::feed(tx.connection, &reader, &filter, before, usize::MAX, now)?;
            let mut changed = 0;
            for item in items.iter().rev() {
                changed += u64::from(items::mark(tx, reader.subscriber, item, mark, now)?);
            }
            Ok(changed)
        };
        self.change(job).await
    }

    async fn move_feed(&self, from: SubscriberNumber, into: SubscriberNumber) -> Result<u64, StoreError> {
        self.change(move |tx| items::move_feed(tx, from, into)).await
    }

    async fn erase_feed(&self, subscriber: SubscriberNumber) -> Result<(), StoreError> {
        self.remove_feed(subscriber).await?;
        self.database.truncate_log().await
    }

    async fn remove_feed(&self, subscriber: SubscriberNumber) -> Result<(), StoreError> {
        self.change(move |tx| items::remove_feed(tx, subscriber)).await
    }

    async fn put_broadcast(&self, new: NewBroadcast, now: Timestamp) -> Result<(Broadcast, bool), StoreError> {
        self.free_space.check()?;
        self.change(move |tx| broadcasts::put(tx, new, now)).await
    }

    async fn broadcasts(&self, application: &Name, now: Timestamp) -> Result<Vec<Broadcast>, StoreError> {
        let application = application.clone();
        self.database.read(move |connection| broadcasts::list(connection, &application, now)).await
    }

    async fn withdraw_broadcast(&self, application: &Name, name: &Name, now: Timestamp) -> Result<(), StoreError> {
        let (application, name) = (application.clone(), name.clone());
        self.change(move |tx| broadcasts::withdraw(tx, &application, &name, now)).await
    }

    fn broadcast_heads(&self) -> Arc<Vec<BroadcastHead>> {
        self.published.heads.lock().clone()
    }

    async fn expire(&self, now: Timestamp, limit: usize) -> Result<(u64, bool), StoreError> {
        self.change(move |tx| {
            let (items, more_items) = items::expire(tx, now, limit)?;
            let (broadcasts, more_broadcasts) = broadcasts::expire(tx, now, limit)?;
            Ok((items + broadcasts, more_items || more_broadcasts))
        })
        .await
    }

    fn counts(&self) -> InboxCounts {
        *self.published.counts.lock()
    }

    async fn probe(&self) -> Result<Duration, StoreError> {
        self.database.probe().await
    }
}
