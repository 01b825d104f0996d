//! The inbox on SQLite: `inbox.db`.
//!
//! A file of its own, with its own writer: people who read their feeds do not hold up the flow, nor it them. What became
//! true is published after the commit, and then those who look at the feed are woken.

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
    inbox::{InboxContent, Item, ItemId, Mark, NewItem},
    time::Timestamp,
};

use super::{
    records::{execute, query_one},
    writer::{AfterCommit, Database, FreeSpace, LOG_STEP_BYTES, Options},
};
pub(super) use schema::MIGRATIONS;

use crate::{
    error::StoreError,
    inbox::{
        Bell, Broadcast, BroadcastHead, Delivered, FeedChanges, FeedFilter, Inbox, InboxCounts, Listener, NewBroadcast,
        Reader,
    },
};

mod broadcasts; // kept once, touched by some
mod items; // what comes and goes
mod reading; // feeds and their changes
mod schema;

/// How the inbox is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxOptions {
    /// While less than this is free on the disk, new items and broadcasts are refused with `Full`; reading and removing go
    /// on. 0 switches the guard off.
    pub reserve_bytes: u64,
    /// Threads that read.
    pub readers: usize,
}

impl Default for InboxOptions {
    fn default() -> Self {
        InboxOptions { reserve_bytes: 64 << 20, readers: 2 }
    }
}

/// The inbox in one SQLite file. Dropping it waits for the writes that were taken on, and blocks meanwhile.
pub struct SqliteInbox {
    database: Database,
    free_space: FreeSpace,
    published: Arc<Published>,
}

/// What the last commit made true.
struct Published {
    newest: AtomicU64,
    counts: Mutex<InboxCounts>,
    heads: Mutex<Arc<Vec<BroadcastHead>>>,
    bell: Arc<Bell>,
}

/// The books while a job writes: closed at its end.
struct Books<'c> {
    connection: &'c Connection,
    sequence: u64,
    forgotten: u64,
    items: u64,
    contents: u64,
    /// Whose feeds changed.
    touched: Vec<SubscriberNumber>,
    /// Whether who sees which broadcast may have changed.
    broadcasts_changed: bool,
}

impl<'c> Books<'c> {
    fn open(connection: &'c Connection) -> Result<Books<'c>, StoreError> {
        let sql = "SELECT sequence, forgotten, items, contents FROM books";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        let row = query_one(connection, sql, (), read)?;
        let (sequence, forgotten, items, contents) =
            row.ok_or_else(|| StoreError::Damaged("the books of the inbox".into()))?;
        let (touched, broadcasts_changed) = (Vec::new(), false);
        Ok(Books { connection, sequence, forgotten, items, contents, touched, broadcasts_changed })
    }

    /// The next place of the sequence.
    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn close(self, published: &Arc<Published>, after: &mut AfterCommit) -> Result<(), StoreError> {
        let sql = "UPDATE books SET sequence = ?1, forgotten = ?2, items = ?3, contents = ?4";
        execute(self.connection, sql, (self.sequence, self.forgotten, self.items, self.contents))?;
        let heads = self.broadcasts_changed.then(|| broadcasts::heads(self.connection)).transpose()?;
        let (newest, touched, published) = (self.sequence, self.touched, published.clone());
        let counts = InboxCounts { items: self.items, contents: self.contents };
        after.run(move || {
            published.newest.store(newest, Ordering::Release);
            *published.counts.lock() = counts;
            match heads {
                Some(heads) => {
                    *published.heads.lock() = Arc::new(heads);
                    published.bell.ring_all();
                }
                None => published.bell.ring(touched),
            }
        });
        Ok(())
    }
}

impl SqliteInbox {
    /// Opens or makes `inbox.db` in a folder. Blocks.
    ///
    /// # Errors
    /// `Unavailable` if another process works with the file or a newer version wrote it, `Damaged` if it is no such file.
    pub fn open(folder: &Path, options: &InboxOptions) -> Result<SqliteInbox, StoreError> {
        let path = folder.join("inbox.db");
        let database = Database::open(
            &path,
            &Options {
                // Items come in no order of their subscribers; small pages make each of them cheap to touch.
                page_bytes: 4_096,
                log_bytes_max: 128 << 20,
                log_step_bytes: LOG_STEP_BYTES,
                writer_cache_kib: 64 << 10,
                reader_cache_kib: 16 << 10,
                readers: options.readers,
                synced: true,
                migrations: MIGRATIONS,
            },
        )?;
        let (newest, counts, heads) = database.write_blocking(|connection, _| {
            let books = Books::open(connection)?;
            let counts = InboxCounts { items: books.items, contents: books.contents };
            Ok((books.sequence, counts, broadcasts::heads(connection)?))
        })?;
        let published = Arc::new(Published {
            newest: AtomicU64::new(newest),
            counts: Mutex::new(counts),
            heads: Mutex::new(Arc::new(heads)),
            bell: Arc::default(),
        });
        Ok(SqliteInbox { free_space: FreeSpace::beside(&path, options.reserve_bytes), database, published })
    }

    /// Runs a write between the opening and the closing of the books.
    async fn change<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Books<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let published = self.published.clone();
        let write = move |connection: &Connection, after: &mut AfterCommit| {
            let mut books = Books::open(connection)?;
            let result = job(&mut books)?;
            books.close(&published, after)?;
            Ok(result)
        };
        self.database.write(write).await
    }
}

#[async_trait]
impl Inbox for SqliteInbox {
    async fn put_items(&self, items: Vec<NewItem>, items_max: u32, now: Timestamp) -> Result<Delivered, StoreError> {
        self.free_space.check()?;
        // What can be done beside the writer is done before its turn.
        let (mut contents, mut places, mut arriving) = (Vec::new(), HashMap::new(), Vec::with_capacity(items.len()));
        for NewItem { subscriber, id, content, expires_at } in items {
            let place = *places.entry(Arc::as_ptr(&content) as usize).or_insert_with(|| {
                contents.push((items::Prepared::new(&content), content));
                contents.len() - 1
            });
            arriving.push(items::Arriving { subscriber, id, content: place, expires_at });
        }
        // They were kept until here so that no two had the same place in memory.
        let contents = contents.into_iter().map(|(prepared, _)| prepared).collect();
        self.change(move |books| items::put(books, &arriving, contents, items_max, now)).await
    }

    async fn feed(
        &self,
        reader: &Reader,
        filter: &FeedFilter,
        before: Option<u64>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<Item>, StoreError> {
        let (reader, filter) = (reader.clone(), filter.clone());
        let before = before.map_or(i64::MAX, u64::cast_signed);
        self.database.read(move |connection| reading::feed(connection, &reader, &filter, before, limit, now)).await
    }

    async fn item(&self, reader: &Reader, id: ItemId, now: Timestamp) -> Result<Option<Item>, StoreError> {
        let reader = reader.clone();
        self.database.read(move |connection| reading::item(connection, &reader, id, now)).await
    }

    async fn unread(&self, reader: &Reader, now: Timestamp) -> Result<u64, StoreError> {
        let reader = reader.clone();
        self.database.read(move |connection| reading::unread(connection, &reader, now)).await
    }

    async fn changes(
        &self,
        reader: &Reader,
        after: u64,
        limit: usize,
        now: Timestamp,
    ) -> Result<FeedChanges, StoreError> {
        let reader = reader.clone();
        self.database.read(move |connection| reading::changes(connection, &reader, after, limit, now)).await
    }

    fn newest(&self) -> u64 {
        self.published.newest.load(Ordering::Acquire)
    }

    fn listen(&self, subscriber: SubscriberNumber) -> Listener {
        self.published.bell.listen(subscriber)
    }

    async fn mark(
        &self,
        reader: &Reader,
        ids: Vec<ItemId>,
        mark: Mark,
        now: Timestamp,
    ) -> Result<Vec<ItemId>, StoreError> {
        let reader = reader.clone();
        let job = move |books: &mut Books<'_>| {
            let mut found = Vec::with_capacity(ids.len());
            for id in ids {
                let Some(item) = reading::item(books.connection, &reader, id, now)? else { continue };
                items::mark(books, reader.subscriber, &item, mark, now)?;
                found.push(id);
            }
            Ok(found)
        };
        self.change(job).await
    }

    async fn mark_all(
        &self,
        reader: &Reader,
        filter: &FeedFilter,
        upto: u64,
        mark: Mark,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let (reader, filter) = (reader.clone(), filter.clone());
        let before = upto.saturating_add(1).min(i64::MAX as u64).cast_signed();
        let job = move |books: &mut Books<'_>| {
            let items = reading::feed(books.connection, &reader, &filter, before, usize::MAX, now)?;
            let mut changed = 0;
            for item in items.iter().rev() {
                changed += u64::from(items::mark(books, reader.subscriber, item, mark, now)?);
            }
            Ok(changed)
        };
        self.change(job).await
    }

    async fn move_feed(&self, from: SubscriberNumber, into: SubscriberNumber) -> Result<u64, StoreError> {
        self.change(move |books| items::move_feed(books, from, into)).await
    }

    async fn remove_feed(&self, subscriber: SubscriberNumber) -> Result<(), StoreError> {
        self.change(move |books| items::remove_feed(books, subscriber)).await
    }

    async fn put_broadcast(&self, new: NewBroadcast, now: Timestamp) -> Result<(Broadcast, bool), StoreError> {
        self.free_space.check()?;
        self.change(move |books| broadcasts::put(books, new, now)).await
    }

    async fn broadcasts(&self, application: &Name, now: Timestamp) -> Result<Vec<Broadcast>, StoreError> {
        let application = application.clone();
        self.database.read(move |connection| broadcasts::list(connection, &application, now)).await
    }

    async fn withdraw_broadcast(&self, application: &Name, name: &Name, now: Timestamp) -> Result<(), StoreError> {
        let (application, name) = (application.clone(), name.clone());
        self.change(move |books| broadcasts::withdraw(books, &application, &name, now)).await
    }

    fn broadcast_heads(&self) -> Arc<Vec<BroadcastHead>> {
        self.published.heads.lock().clone()
    }

    async fn expire(&self, now: Timestamp, limit: usize) -> Result<(u64, bool), StoreError> {
        self.change(move |books| {
            let (items, more_items) = items::expire(books, now, limit)?;
            let (broadcasts, more_broadcasts) = broadcasts::expire(books, now, limit)?;
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

/// What is stored of a content.
fn body(content: &InboxContent) -> String {
    serde_json::to_string(content).expect("text, names and JSON become JSON")
}
