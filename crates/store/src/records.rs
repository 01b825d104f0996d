//! Port of the system of record: applications, subscribers, segments, subscriptions, suppressions, API keys, and the
//! log of their changes.

// Facets
mod application_store; // versions of application definitions
mod subscriber_store; // subscribers, their devices and merges
mod segment_store; // segments: saved filters over subscribers
mod subscription_store; // subscriptions
mod suppression_store; // suppressions of addresses and devices
mod recipient_store; // recipients and failing endpoints, for delivery
mod change_log; // log of changes, which caches and indexes follow
mod match_store; // records as of a sequence of the change log, for matching
mod schedule_store; // schedules of subscriptions
mod api_key_store; // API keys
mod installation; // identity and secret of the installation, counts, health check

// Types
mod changes; // the change log
mod subscribers; // subscribers and recipients
mod subscriptions; // subscriptions
mod segments; // saved filters over subscribers
mod suppressions; // suppressions and failing endpoints
mod merges; // merges of two subscribers into one

use tocsin_model::{id::Name, time::Timestamp};

use crate::error::StoreError;

pub use api_key_store::ApiKeyStore;
pub use application_store::{ApplicationStore, NewApplicationVersion};
pub use change_log::ChangeLog;
pub use changes::*;
pub use installation::Installation;
pub(crate) use installation::*;
pub use match_store::MatchStore;
pub use merges::*;
pub use recipient_store::RecipientStore;
pub use schedule_store::{ScheduleMembers, ScheduleStore};
pub use segment_store::SegmentStore;
pub use segments::*;
pub use subscriber_store::{PutDevice, SubscriberStore};
pub use subscribers::*;
pub use subscription_store::{SubscriptionStore, UpdateSubscription};
pub use subscriptions::*;
pub use suppression_store::SuppressionStore;
pub use suppressions::*;

/// Maximum number of subscriptions that one transaction of a removal deletes.
pub(crate) const REMOVED_SUBSCRIPTIONS_MAX: usize = 1_000;

/// One version of an application's definition.
#[derive(Debug, Clone, PartialEq)]
pub struct ApplicationVersion {
    /// Application.
    pub name: Name,
    /// Version number, from 1.
    pub version: u32,
    /// YAML text as applied, with environment variables unresolved.
    pub text: String,
    /// Caller that applied it.
    pub author: String,
    /// Time of the change.
    pub applied_at: Timestamp,
}

/// Precondition of a write (optimistic concurrency), like `If-Match` and `If-None-Match` in HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    /// No condition.
    Any,
    /// The item does not exist; otherwise `Taken`.
    Absent,
    /// The item exists; otherwise `Missing`.
    Present,
    /// The item has this revision; otherwise `Changed`, or `Missing` if it does not exist.
    Revision(u64),
}

/// API key as stored: a hash, never the key itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// Public part of the key, by which it is listed and removed.
    pub id: String,
    /// SHA-256 of the whole key.
    pub hash: [u8; 32],
    /// Purpose of the key.
    pub description: String,
    /// Granted scopes, as `area:right`.
    pub scopes: Vec<String>,
    /// Resources that the key is limited to, as `kind:name`; empty: unlimited.
    pub resources: Vec<String>,
    /// Creation time.
    pub created_at: Timestamp,
    /// Expiry.
    pub expires_at: Option<Timestamp>,
}

/// Row counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordCounts {
    /// Subscribers.
    pub subscribers: u64,
    /// Devices.
    pub devices: u64,
    /// Subscriptions.
    pub subscriptions: u64,
}

/// Result of one item of a bulk write.
pub type Written<T> = Result<T, StoreError>;

/// Port of the system of record: all facets, for wiring. A caller asks for the facet it uses, such as
/// `Arc<dyn SubscriberStore>`.
///
/// A write is durable when its call returns; concurrent writes share one fsync (group commit). Every change is logged
/// in the change log in the same commit. Writing an unchanged value is a no-op: the revision does not increase and
/// nothing is logged.
pub trait Records:
    Installation
    + ApplicationStore
    + SubscriberStore
    + SegmentStore
    + SubscriptionStore
    + SuppressionStore
    + RecipientStore
    + MatchStore
    + ScheduleStore
    + ApiKeyStore
{
}

impl<R> Records for R where
    R: Installation
        + ApplicationStore
        + SubscriberStore
        + SegmentStore
        + SubscriptionStore
        + SuppressionStore
        + RecipientStore
        + MatchStore
        + ScheduleStore
        + ApiKeyStore
{
}

impl Precondition {
    /// Checks the precondition against the revision found.
    pub(crate) fn check(self, found: Option<u64>, what: impl FnOnce() -> String) -> Result<(), StoreError> {
        match (self, found) {
            (Precondition::Absent, Some(_)) => Err(StoreError::Taken(what())),
            (Precondition::Present | Precondition::Revision(_), None) => Err(StoreError::Missing(what())),
            (Precondition::Revision(expected), Some(found)) if expected != found => Err(StoreError::Changed(what())),
            _ => Ok(()),
        }
    }
}

pub(crate) fn no_application(name: &Name) -> StoreError {
    StoreError::Missing(format!("application `{name}`"))
}

#[cfg(test)]
mod conformance;
