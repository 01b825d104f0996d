//! A transaction of the inbox.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use rusqlite::Connection;
use tocsin_model::{
    id::{InboxBroadcastId, Name, SubscriberNumber},
    inbox::InboxContent,
    time::Timestamp,
};

use crate::{
    error::StoreError,
    inbox::{BroadcastHead, InboxCounts, ListenerRegistry},
    sqlite::{
        statements::{execute, query_all, query_one},
        writer::AfterCommit,
    },
};

/// State of the last commit.
pub(super) struct PublishedState {
    pub(super) newest: AtomicU64,
    pub(super) counts: Mutex<InboxCounts>,
    pub(super) heads: Mutex<Arc<Vec<BroadcastHead>>>,
    pub(super) listeners: Arc<ListenerRegistry>,
}

/// A write transaction with the counters, which are stored by `finish`.
pub(super) struct InboxTransaction<'c> {
    pub(super) connection: &'c Connection,
    pub(super) sequence: u64,
    pub(super) forgotten: u64,
    pub(super) items: u64,
    pub(super) contents: u64,
    /// Subscribers whose feeds changed.
    pub(super) touched: Vec<SubscriberNumber>,
    /// Whether the list of broadcast heads may have changed.
    pub(super) broadcasts_changed: bool,
}

impl<'c> InboxTransaction<'c> {
    pub(super) fn open(connection: &'c Connection) -> Result<InboxTransaction<'c>, StoreError> {
        let sql = "SELECT sequence, forgotten, items, contents FROM books";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        let row = query_one(connection, sql, (), read)?;
        let (sequence, forgotten, items, contents) =
            row.ok_or_else(|| StoreError::Damaged("the table of counters".into()))?;
        let (touched, broadcasts_changed) = (Vec::new(), false);
        Ok(InboxTransaction { connection, sequence, forgotten, items, contents, touched, broadcasts_changed })
    }

    /// Assigns the next number of the sequence.
    pub(super) fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    pub(super) fn finish(self, published: &Arc<PublishedState>, after: &mut AfterCommit) -> Result<(), StoreError> {
        let sql = "UPDATE books SET sequence = ?1, forgotten = ?2, items = ?3, contents = ?4";
        execute(self.connection, sql, (self.sequence, self.forgotten, self.items, self.contents))?;
        let heads = self.broadcasts_changed.then(|| heads(self.connection)).transpose()?;
        let (newest, touched, published) = (self.sequence, self.touched, published.clone());
        let counts = InboxCounts { items: self.items, contents: self.contents };
        after.run(move || {
            published.newest.store(newest, Ordering::Release);
            *published.counts.lock() = counts;
            match heads {
                Some(heads) => {
                    *published.heads.lock() = Arc::new(heads);
                    published.listeners.notify_all();
                }
                None => published.listeners.notify(touched),
            }
        });
        Ok(())
    }
}

/// The stored form of a content.
pub(super) fn body(content: &InboxContent) -> String {
    serde_json::to_string(content).expect("a content is valid JSON")
}

/// The fields that determine the audience of each broadcast.
pub(super) fn heads(connection: &Connection) -> Result<Vec<BroadcastHead>, StoreError> {
    let sql = "SELECT number, audience, expires_at, withdrawn_at FROM broadcasts WHERE gone = 0 ORDER BY number";
    let rows = query_all(connection, sql, (), |row| {
        Ok((row.get(0)?, row.get::<_, Option<String>>(1)?, row.get(2)?, row.get::<_, Option<i64>>(3)?))
    })?;
    let head = |(id, audience, expires_at, withdrawn_at): (u64, Option<String>, i64, Option<i64>)| {
        let (id, expires_at, withdrawn) = (InboxBroadcastId(id), Timestamp(expires_at), withdrawn_at.is_some());
        Ok(BroadcastHead { id, audience: audience.as_deref().map(name).transpose()?, expires_at, withdrawn })
    };
    rows.into_iter().map(head).collect()
}

pub(super) fn name(text: &str) -> Result<Name, StoreError> {
    text.parse().map_err(|error: tocsin_model::id::IdError| StoreError::Damaged(error.to_string()))
}
