//! Sync server for offline devices: each keeps a replica of its rows, edits it, and synchronizes.
//!
//! A session has fixed phases: begin, upload edits in blocks, download changes in blocks, end. Each block is a
//! transaction of its own, so the link may break anywhere. An edit has a number and is applied once; a download
//! continues from the cursor of the last block received. The server decides which rows a device may see; nothing that
//! the device sends can widen it. Knows nothing of HTTP or SQL.
//!
//! A file uses only files above it in this list. The state of each part is a type of its own; [`Replicas`] holds them
//! all, and the files after it add its operations.

// 1. Parts, without the records.
mod error; // errors that a client can handle
mod cursor; // signed cursors
#[doc(hidden)]
pub mod fuzzing; // cursors for fuzz targets
mod merge; // three-way merge of texts
pub mod admission; // admission control: pools of slots with fair queues
pub mod partition; // partition keys of rows and subscribers

// 2. Rows, in a transaction of the store.
pub mod catalogue; // compiled collections of all applications
mod outbox; // events raised by row changes
mod row_sharing; // rows shared through other rows
pub mod programs; // conflicts that need a program or a merge of texts, and their decisions
pub mod reconcile; // conflict detection and resolution of edits

// 3. State of devices.
pub mod devices; // devices and their tokens
mod watchers; // devices that wait for changes
pub mod sessions; // active sessions
mod apply_edits; // the edits of an uploaded block, in order
pub mod built_in; // sources of the built-in collections

// 4. Operations of the server.
mod replicas; // the server: dependencies and state
mod read_definitions; // compiles the collections of changed applications
mod subscriber_keys; // partition keys of a subscriber
mod device_operations; // authenticates, creates, removes and wipes devices
pub mod rows; // rows for the API
mod built_in_rows; // rows of the built-in collections
mod built_in_edits; // edits of these rows
mod resolve_conflicts; // runs resolver programs and merges texts
pub mod synchronize; // the phases of a session
mod watch; // long polling of devices
pub mod raise_events; // intake of events raised by row changes

use std::{sync::Arc, time::Duration};

pub use crate::{
    admission::{Limits, PoolStatus, Sizing},
    devices::Device,
    error::{SyncError, SyncLimit},
    replicas::{Clock, Parts, Replicas},
};

/// Default retention of removal markers. A device that was away for longer reads everything again.
pub const TOMBSTONE_RETENTION: Duration = Duration::from_secs(60 * 86_400);
/// Retention of conflicts and sessions.
pub const HISTORY_RETENTION: Duration = Duration::from_secs(90 * 86_400);

/// Blocks of edits whose texts are merged concurrently.
const MERGERS: usize = 2;

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
            raising: outbox::EventCheckpoints::default(),
            resolver: programs::ResolverSlot::default(),
            mergers: tokio::sync::Semaphore::new(MERGERS),
            watchers: watchers::Watchers::new(limits.watchers),
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
