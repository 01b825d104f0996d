//! Rows for devices that are often away: each keeps a replica of its part, edits it, and comes back.
//!
//! A session of a device goes one way: it begins, sends its edits in blocks, reads what is new for it in blocks, and ends. Each
//! block is a commit or a reading of its own, so that a link may break anywhere: an edit has a number and is taken in once, a
//! reading goes on from the cursor of the last block that arrived. What a device may see is worked out here, from who it is;
//! nothing that it sends can widen it. Knows nothing of HTTP or SQL.

pub mod catalogue; // 1. the collections of the applications, ready for use
pub mod partition; // 2. whose a row is, and what a subscriber has
pub mod devices; // 3. who keeps replicas: tokens
pub mod admission; // 4. how many at a time
pub mod sessions; // 5. begin, send, read, end
pub mod reconcile; // 6. an edit meets a row
pub mod programs; // 6b. programs decide between two edits
pub mod rows; // 7. the same rows for everybody else
pub mod built_in; // 8. what the platform knows of a subscriber, as rows
pub mod raise_events; // 9. what changes of rows raise is taken in, once
pub mod watch; // 10. who waits for news

mod cursor; // places, sealed
#[doc(hidden)]
pub mod fuzzing; // cursors for fuzz targets
mod merge; // two edits of one text
mod spread; // what is shared through a row follows it

use std::{sync::Arc, time::Duration};

use tocsin_model::{definition::Environment, id::Name, problem::Problem, time::Timestamp};
use tocsin_store::{error::StoreError, inbox::Inbox, records::Records, sqlite::collections::SqliteCollections};

pub use admission::{Limits, PoolStatus, Sizing};
pub use devices::Device;

/// How long it is remembered that a row was removed, if nothing else is said. A device that was away for longer reads all anew.
pub const REMOVED_KEPT: Duration = Duration::from_secs(60 * 86_400);
/// How long conflicts and sessions are kept.
pub const PAST_KEPT: Duration = Duration::from_secs(90 * 86_400);

/// Blocks of edits whose texts are merged at a time; the others wait.
const MERGERS: usize = 2;

/// Why something was not done, as far as the caller can do something about it.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The token is none of ours, or over.
    #[error("{0}")]
    Unauthenticated(&'static str),
    /// The token is not for this.
    #[error("{0}")]
    Forbidden(String),
    /// This is wrong with it.
    #[error("{} problems found", .0.len())]
    Invalid(Vec<Problem>),
    /// There is no such thing.
    #[error("{0} does not exist")]
    Missing(String),
    /// It changed since the version that the caller saw.
    #[error("{0} has changed in the meantime")]
    Changed(String),
    /// What is new since the cursor is not known, or not for this device any more: begin without one, after sending edits.
    #[error("{0}")]
    Expired(String),
    /// Too many at once.
    #[error("{reason}")]
    Busy {
        /// Of what.
        reason: String,
        /// When to try again; each is told another time.
        retry_after: Duration,
        /// How many are before it.
        position: usize,
    },
    /// The store does not do it.
    #[error(transparent)]
    Store(StoreError),
}

impl SyncError {
    /// One thing wrong at a path.
    pub fn invalid(path: impl Into<String>, message: impl Into<String>) -> SyncError {
        SyncError::Invalid(vec![Problem::at(path, message)])
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

/// Tells the time. The process has one clock; tests bring their own.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Everything that sync works with.
pub struct Parts {
    /// Who and what.
    pub records: Arc<dyn Records>,
    /// What subscribers were told.
    pub inbox: Arc<dyn Inbox>,
    /// The rows.
    pub store: Arc<SqliteCollections>,
    /// The time.
    pub clock: Clock,
    /// What definitions may name.
    pub environment: Environment,
    /// How much at a time.
    pub limits: Limits,
}

/// The room. One for the process.
pub struct Replicas {
    records: Arc<dyn Records>,
    store: Arc<SqliteCollections>,
    clock: Clock,
    catalogue: catalogue::Catalogue,
    devices: devices::Devices,
    admission: admission::Admission,
    sessions: sessions::Sessions,
    built_ins: built_in::BuiltIns,
    raising: raise_events::Raising,
    arbiter: programs::Arbitration,
    /// Blocks whose texts may be merged at a time.
    mergers: tokio::sync::Semaphore,
    watchers: watch::Watchers,
    seal: cursor::Seal,
}

impl Replicas {
    /// Opens the room: reads the devices and the applications.
    ///
    /// # Errors
    /// The store or the records do not answer.
    pub async fn open(parts: Parts) -> Result<Arc<Replicas>, SyncError> {
        let Parts { records, inbox, store, clock, environment, limits } = parts;
        let sync = Arc::new(Replicas {
            seal: cursor::Seal::new(records.secret()),
            catalogue: catalogue::Catalogue::new(environment),
            devices: devices::Devices::load(&store).await?,
            admission: admission::Admission::new(&limits),
            sessions: sessions::Sessions::default(),
            built_ins: built_in::BuiltIns::new(inbox),
            raising: raise_events::Raising::default(),
            arbiter: programs::Arbitration::default(),
            mergers: tokio::sync::Semaphore::new(MERGERS),
            watchers: watch::Watchers::new(limits.watchers),
            records,
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

    /// Forgets what need not be remembered any more, in small steps, and ends sessions whose devices did not come back.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn tidy(&self) -> Result<(), SyncError> {
        self.end_idle_sessions().await;
        let now = self.now();
        while self.store.prune(now - REMOVED_KEPT, now - PAST_KEPT, 1_000).await? {
            tokio::task::yield_now().await;
        }
        self.forget_raised().await
    }
}

fn no_collection(application: &Name, name: &str) -> SyncError {
    SyncError::Missing(format!("the collection `{name}` of `{application}`"))
}
