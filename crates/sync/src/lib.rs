//! Sync server for offline devices: each keeps a replica of its rows, edits it, and synchronizes.
//!
//! A session has fixed phases: begin, upload edits in blocks, download changes in blocks, end. Each block is a
//! transaction of its own, so the link may break anywhere. An edit has a number and is applied once; a download
//! continues from the cursor of the last block received. The server decides which rows a device may see; nothing that
//! the device sends can widen it. Knows nothing of HTTP or SQL.

pub mod catalogue; // 1. compiled collections of all applications
pub mod partition; // 2. partition keys of rows and subscribers
pub mod devices; // 3. devices and their tokens
pub mod admission; // 4. admission control
pub mod sessions; // 5. sessions: begin, upload, download, end
pub mod reconcile; // 6. conflict detection and resolution of edits
pub mod programs; // 6b. external conflict resolvers
pub mod rows; // 7. rows for the API
pub mod built_in; // 8. built-in collections
pub mod raise_events; // 9. intake of events raised by row changes
pub mod watch; // 10. long polling of devices

mod cursor; // signed cursors
#[doc(hidden)]
pub mod fuzzing; // cursors for fuzz targets
mod merge; // three-way merge of texts
mod row_sharing; // rows shared through other rows

use std::{sync::Arc, time::Duration};

use tocsin_model::{
    definition::Environment,
    id::Name,
    problem::{Code, CredentialError, Problem},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    inbox::Inbox,
    records::{ApplicationStore, ChangeLog, Records, SegmentStore, SubscriberStore, SubscriptionStore},
    sqlite::collections::SqliteCollections,
};

pub use admission::{Limits, PoolStatus, Sizing};
pub use devices::Device;

/// Default retention of removal markers. A device that was away for longer reads everything again.
pub const TOMBSTONE_RETENTION: Duration = Duration::from_secs(60 * 86_400);
/// Retention of conflicts and sessions.
pub const HISTORY_RETENTION: Duration = Duration::from_secs(90 * 86_400);

/// Blocks of edits whose texts are merged concurrently.
const MERGERS: usize = 2;

/// Error of a sync request.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The token is unknown or expired.
    #[error("{1}")]
    Unauthenticated(CredentialError, &'static str),
    /// The token is not for this.
    #[error("{0}")]
    Forbidden(String),
    /// The request is invalid.
    #[error("problems found: {}", .0.len())]
    Invalid(Vec<Problem>),
    /// It does not exist.
    #[error("{0} does not exist")]
    Missing(String),
    /// It changed since the version that the caller read.
    #[error("{0} was changed by another request; read it again and repeat the change")]
    Changed(String),
    /// The changes since the cursor are unknown, or no longer visible to this device: begin without a cursor, after
    /// sending edits.
    #[error("{0}")]
    Expired(String),
    /// Too many concurrent requests.
    #[error("{reason}")]
    Busy {
        /// The exhausted limit.
        reason: String,
        /// Time after which to retry, with jitter.
        retry_after: Duration,
        /// Number of requests ahead in the queue.
        position: usize,
    },
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

impl SyncError {
    /// Creates an error with one problem at a path.
    pub fn invalid(code: Code, path: impl Into<String>, message: impl Into<String>) -> SyncError {
        Problem::new(code, path, message).into()
    }
}

impl From<Problem> for SyncError {
    fn from(problem: Problem) -> Self {
        SyncError::Invalid(vec![problem])
    }
}

impl From<StoreError> for SyncError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Missing(what) => SyncError::Missing(what),
            StoreError::Changed(what) => SyncError::Changed(what),
            error => SyncError::Store(error),
        }
    }
}

/// Clock of the process; tests supply their own.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Dependencies of the sync server.
pub struct Parts {
    /// Subscribers and applications.
    pub records: Arc<dyn Records>,
    /// Inbox items of subscribers.
    pub inbox: Arc<dyn Inbox>,
    /// Collections.
    pub store: Arc<SqliteCollections>,
    /// Clock.
    pub clock: Clock,
    /// Environment of the definitions.
    pub environment: Environment,
    /// Limits.
    pub limits: Limits,
}

/// The sync server. One per process.
pub struct Replicas {
    application_store: Arc<dyn ApplicationStore>,
    subscriber_store: Arc<dyn SubscriberStore>,
    segment_store: Arc<dyn SegmentStore>,
    subscription_store: Arc<dyn SubscriptionStore>,
    change_log: Arc<dyn ChangeLog>,
    store: Arc<SqliteCollections>,
    clock: Clock,
    catalogue: catalogue::Catalogue,
    devices: devices::Devices,
    admission: admission::Admission,
    sessions: sessions::Sessions,
    built_ins: built_in::BuiltIns,
    raising: raise_events::EventCheckpoints,
    resolver: programs::ResolverSlot,
    /// Limits concurrent merges of texts.
    mergers: tokio::sync::Semaphore,
    watchers: watch::Watchers,
    seal: cursor::Seal,
}

impl Replicas {
    /// Opens the sync server: reads the devices and the applications.
    ///
    /// # Errors
    /// The store or the records fail.
    pub async fn open(parts: Parts) -> Result<Arc<Replicas>, SyncError> {
        let Parts { records, inbox, store, clock, environment, limits } = parts;
        let sync = Arc::new(Replicas {
            seal: cursor::Seal::new(records.secret()),
            catalogue: catalogue::Catalogue::new(environment),
            devices: devices::Devices::load(&store).await?,
            admission: admission::Admission::new(&limits),
            sessions: sessions::Sessions::default(),
            built_ins: built_in::BuiltIns::new(inbox),
            raising: raise_events::EventCheckpoints::default(),
            resolver: programs::ResolverSlot::default(),
            mergers: tokio::sync::Semaphore::new(MERGERS),
            watchers: watch::Watchers::new(limits.watchers),
            application_store: records.clone(),
            subscriber_store: records.clone(),
            segment_store: records.clone(),
            subscription_store: records.clone(),
            change_log: records,
            store,
            clock,
        });
        sync.collections().await?;
        sync.follow_changes();
        Ok(sync)
    }

    fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Deletes expired data in small steps, and ends idle sessions.
    ///
    /// # Errors
    /// The store fails.
    pub async fn prune(&self) -> Result<(), SyncError> {
        self.end_idle_sessions().await;
        let now = self.now();
        while self.store.prune(now - TOMBSTONE_RETENTION, now - HISTORY_RETENTION, 1_000).await? {
            tokio::task::yield_now().await;
        }
        self.delete_accepted_events().await
    }
}

fn no_collection(application: &Name, name: &str) -> SyncError {
    SyncError::Missing(format!("the collection `{name}` of `{application}`"))
}
