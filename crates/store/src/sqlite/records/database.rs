//! The file of the records: opened, and changed in transactions.

use std::{
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64},
    },
};

use parking_lot::{Mutex, RwLock};
use rusqlite::Connection;
use tocsin_model::{id::ChangeSequence, notifybc::Collection};
use tokio::sync::{oneshot, watch};

use super::schema::MIGRATIONS;
use crate::{
    error::StoreError,
    keyring::Keyring,
    records::{ApplicationVersion, CHANGES_KEPT, PutDocument, StoredDocument, new_installation, new_secret},
    sqlite::{
        records::{
            encryption, entry_changes,
            group_commit::{GroupCommit, GroupedChange, Stage},
            published_state::PublishedState,
            recipient_cache::RecipientCache,
            transaction::{self, RecordsTransaction},
            waiting_queue::WaitingQueue,
        },
        statements::{execute, query_one},
        writer::{AfterCommit, Database, Erases, FreeSpace, Options, truncate_wal},
    },
};

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
    pub(super) database: Database,
    pub(super) free_space: FreeSpace,
    pub(super) changes_kept: u64,
    pub(super) installation: String,
    pub(super) secret: [u8; 32],
    pub(super) keys: Keyring,
    pub(super) published: Arc<PublishedState>,
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
                erases: Erases::Pages,
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
                encryption::documents(connection, &keys)?;
                let tx = RecordsTransaction::open(connection)?;
                let suppressed = transaction::newest_suppression(connection)?;
                let indexed = entry_changes::is_indexed(connection)?;
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
                recipient_watcher: RwLock::default(),
                listeners: Arc::default(),
                newest_suppression: AtomicU64::new(suppressed.0),
                watcher: OnceLock::new(),
                indexed: AtomicBool::new(indexed),
                waiting: WaitingQueue::default(),
                waiting_documents: WaitingQueue::default(),
            }),
        })
    }

    /// Version with its definition decrypted.
    pub(super) fn opened(&self, version: ApplicationVersion) -> Result<ApplicationVersion, StoreError> {
        Ok(ApplicationVersion { text: self.keys.open(version.text)?, ..version })
    }

    /// Document with its body sealed, if its collection has secrets.
    pub(super) fn sealed(&self, put: PutDocument) -> Result<PutDocument, StoreError> {
        if !is_secret(put.collection) {
            return Ok(put);
        }
        Ok(PutDocument { body: self.keys.seal(&put.body)?.into(), ..put })
    }

    /// Document with its body decrypted.
    pub(super) fn opened_document(&self, found: StoredDocument) -> Result<StoredDocument, StoreError> {
        Ok(StoredDocument { body: self.keys.open(found.body.into())?.into(), ..found })
    }

    /// Runs a writing job.
    pub(super) async fn change<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut RecordsTransaction<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.database.write(self.with_transaction(job)).await
    }

    /// Wraps a job for the writer: transaction, counters, publication after the commit.
    pub(super) fn with_transaction<T, J>(
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
    pub(super) async fn change_if_space<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut RecordsTransaction<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.free_space.check()?;
        self.change(job).await
    }
}

impl SqliteRecords {
    /// Queues a change for the next commit.
    pub(super) async fn write_grouped<C: GroupedChange>(&self, change: C) -> Result<C::Result, StoreError> {
        self.free_space.check()?;
        let (answer, answered) = oneshot::channel();
        if C::queue(&self.published).put(change, answer)? {
            self.submit_job::<C>();
        }
        answered.await.unwrap_or_else(|_| Err(StoreError::unavailable("the writer has ended")))
    }

    pub(super) fn submit_job<C: GroupedChange>(&self) {
        let call =
            Arc::new(GroupCommit::<C> { published: self.published.clone(), stage: Mutex::new(Stage::Submitted) });
        let job = {
            let (call, published, changes_kept) = (call.clone(), self.published.clone(), self.changes_kept);
            move |connection: &Connection, after: &mut AfterCommit| {
                published.with_transaction(changes_kept, connection, after, |tx| call.write(tx))
            }
        };
        self.database.write_retryable_then(job, move |result| call.answer(result));
    }
}

crate::sqlite::audit::trail!(SqliteRecords, "records");

/// Whether documents of a collection have secrets: a configuration can be the private key of the installation.
pub(super) fn is_secret(collection: Collection) -> bool {
    collection == Collection::Configuration
}
