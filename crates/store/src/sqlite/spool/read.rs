//! Reads messages, their history, and lists of them.

use std::collections::HashSet;

use bytes::Bytes;
use tocsin_model::id::MessageId;

use crate::{
    bounded_scan::{SCANNED_ROWS_MAX, ScanPage},
    error::StoreError,
    spool::{HistoryEntry, MessageFilter, OriginalMessage, StoredMessage},
    sqlite::{
        spool::{history, spool_files::SqliteSpool, views},
        statements::query_one,
    },
};

impl SqliteSpool {
    /// Message without its body.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn message(&self, id: MessageId) -> Result<Option<StoredMessage>, StoreError> {
        self.of(id).read(move |connection| views::message(connection, id)).await
    }

    /// History of a message, oldest first: failed attempts, and actions.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn history(&self, id: MessageId) -> Result<Vec<HistoryEntry>, StoreError> {
        self.of(id).read(move |connection| history::of(connection, id)).await
    }

    /// Existing messages among these ids, in any state.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn existing(&self, ids: &[MessageId]) -> Result<HashSet<MessageId>, StoreError> {
        let there = self.of_all_numbered(|number, partition| {
            let here: Vec<MessageId> = ids.iter().copied().filter(|id| self.assignment.of(*id) == number).collect();
            partition.read(move |connection| views::existing(connection, &here))
        });
        Ok(there.await?.into_iter().flatten().collect())
    }

    /// Body of a message.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn body(&self, id: MessageId) -> Result<Option<Bytes>, StoreError> {
        let sql = "SELECT body FROM bodies WHERE id = ?1";
        let read = |row: &rusqlite::Row<'_>| row.get::<_, Vec<u8>>(0);
        Ok(self.of(id).read(move |connection| query_one(connection, sql, [id.0], read)).await?.map(Bytes::from))
    }

    /// Up to `limit` messages that match a filter and have ids below `before`, newest first.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn messages(
        &self,
        filter: MessageFilter,
        before: Option<MessageId>,
        limit: usize,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        // Parts are in the partition of their original.
        if let Some(id) = filter.id.or(filter.part_of) {
            let partition = self.of(id);
            return partition.read(move |connection| views::messages(connection, &filter, before, limit)).await;
        }
        let found = self.of_all(|partition| {
            let filter = filter.clone();
            partition.read(move |connection| views::messages(connection, &filter, before, limit))
        });
        let mut found: Vec<StoredMessage> = found.await?.into_iter().flatten().collect();
        found.sort_unstable_by_key(|message| std::cmp::Reverse(message.id));
        found.truncate(limit);
        Ok(found)
    }

    /// A page of messages that match a filter and have ids below `before`, newest first. Reads at most
    /// [`SCANNED_ROWS_MAX`] rows of each partition, so a page can have fewer messages than `limit`, and a next one.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn page(
        &self,
        filter: MessageFilter,
        before: Option<MessageId>,
        limit: usize,
    ) -> Result<ScanPage<StoredMessage, MessageId>, StoreError> {
        self.scan(filter, before, limit, SCANNED_ROWS_MAX).await
    }

    pub(crate) async fn scan(
        &self,
        filter: MessageFilter,
        before: Option<MessageId>,
        limit: usize,
        rows_max: usize,
    ) -> Result<ScanPage<StoredMessage, MessageId>, StoreError> {
        // Parts are in the partition of their original.
        let scans = match filter.id.or(filter.part_of) {
            Some(id) => {
                let scan =
                    self.of(id).read(move |connection| views::scan(connection, &filter, before, limit, rows_max));
                vec![scan.await?]
            }
            None => {
                let scans = self.of_all(|partition| {
                    let filter = filter.clone();
                    partition.read(move |connection| views::scan(connection, &filter, before, limit, rows_max))
                });
                scans.await?
            }
        };
        // Messages below the row at which the scan of any partition stopped are read again by the next page.
        let reached = scans.iter().filter_map(|scan| scan.next).max();
        let mut found: Vec<StoredMessage> = scans.into_iter().flat_map(|scan| scan.items).collect();
        found.retain(|message| reached.is_none_or(|reached| message.id >= reached));
        found.sort_unstable_by_key(|message| std::cmp::Reverse(message.id));
        Ok(ScanPage::cut(found, limit, reached, |message: &StoredMessage| message.id))
    }

    /// Number of suspended messages; in each partition at most `limit` messages suspended as a whole are counted, and
    /// at most `limit` with a suspended leg.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn suspended(&self, limit: u64) -> Result<u64, StoreError> {
        let counts = self.of_all(|partition| partition.read(move |connection| views::suspended(connection, limit)));
        Ok(counts.await?.into_iter().sum())
    }

    /// Message before its first edit; `None` if it was not edited.
    ///
    /// # Errors
    /// The store does not respond.
    pub async fn original(&self, id: MessageId) -> Result<Option<OriginalMessage>, StoreError> {
        self.of(id).read(move |connection| views::original(connection, id)).await
    }
}
