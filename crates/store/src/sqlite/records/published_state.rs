//! State published after each commit.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::{Mutex, RwLock};
use rusqlite::Connection;
use tocsin_model::id::{ChangeSequence, SubscriberNumber};
use tokio::sync::watch;

use crate::{
    entries::EntryWatcher,
    error::StoreError,
    inbox::ListenerRegistry,
    records::{DocumentVersion, RecipientWatcher, RecordCounts, Written},
    sqlite::{
        records::{
            notifybc_documents::DocumentPuts, prepared::PreparedChange, recipient_cache::RecipientCache,
            transaction::RecordsTransaction, waiting_queue::WaitingQueue,
        },
        writer::AfterCommit,
    },
};

/// State published after each commit.
pub(super) struct PublishedState {
    pub(super) counts: Mutex<RecordCounts>,
    pub(super) newest: watch::Sender<ChangeSequence>,
    /// Newest change of API keys known to this process.
    pub(super) newest_key: watch::Sender<ChangeSequence>,
    /// Changes after this sequence are still needed.
    pub(super) changes_needed: AtomicU64,
    pub(super) recipient_cache: RecipientCache,
    /// Commit hook of delivery.
    pub(super) recipient_watcher: RwLock<Option<Arc<dyn RecipientWatcher>>>,
    pub(super) listeners: Arc<ListenerRegistry>,
    pub(super) newest_suppression: AtomicU64,
    pub(super) watcher: OnceLock<Arc<dyn EntryWatcher>>,
    /// Whether any search index of the directory is complete.
    pub(super) indexed: AtomicBool,
    /// Prepared changes that wait for the writer.
    pub(super) waiting: WaitingQueue<PreparedChange, bool>,
    /// Documents that wait for the writer.
    pub(super) waiting_documents: WaitingQueue<DocumentPuts, Vec<Written<DocumentVersion>>>,
}

impl PublishedState {
    /// Runs a job in a transaction, stores the counters, and publishes the new state after the commit.
    pub(super) fn with_transaction<T>(
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
        let (key, mut recipients) = (tx.key_changed, tx.recipients);
        let (indexed, watcher) = (tx.indexed, tx.watcher);
        let (entries, credentials) = (tx.entry_changes, tx.credentials_touched);
        after.count_audit_entries(tx.audit_entries);
        let published = self.clone();
        after.run(move || {
            published.recipient_cache.invalidate(&touched, &interests);
            recipients.subscribers.extend(touched.iter().copied().map(SubscriberNumber));
            if let Some(watcher) = published.recipient_watcher.read().as_ref().filter(|_| !recipients.is_empty()) {
                watcher.recipients_changed(&recipients);
            }
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
