//! The sync server: its dependencies and its state. The files below add its operations.

use std::sync::Arc;

use crate::{
    admission::{Admission, Limits},
    built_in::BuiltIns,
    catalogue::Catalogue,
    cursor::Seal,
    devices::Devices,
    outbox::EventCheckpoints,
    programs::ResolverSlot,
    sessions::Sessions,
    watchers::Watchers,
};
use tocsin_model::{definition::Environment, time::Timestamp};
use tocsin_store::{
    inbox::Inbox,
    records::{ApplicationStore, ChangeLog, Records, SegmentStore, SubscriberStore, SubscriptionStore},
    sqlite::collections::SqliteCollections,
};

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
    pub(crate) application_store: Arc<dyn ApplicationStore>,
    pub(crate) subscriber_store: Arc<dyn SubscriberStore>,
    pub(crate) segment_store: Arc<dyn SegmentStore>,
    pub(crate) subscription_store: Arc<dyn SubscriptionStore>,
    pub(crate) change_log: Arc<dyn ChangeLog>,
    pub(crate) store: Arc<SqliteCollections>,
    pub(crate) clock: Clock,
    pub(crate) catalogue: Catalogue,
    pub(crate) devices: Devices,
    pub(crate) admission: Admission,
    pub(crate) sessions: Sessions,
    pub(crate) built_ins: BuiltIns,
    pub(crate) raising: EventCheckpoints,
    pub(crate) resolver: ResolverSlot,
    /// Limits concurrent merges of texts.
    pub(crate) mergers: tokio::sync::Semaphore,
    pub(crate) watchers: Watchers,
    pub(crate) seal: Seal,
}

impl Replicas {
    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }
}
