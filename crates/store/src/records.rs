//! Port of the system of record: applications, subscribers, segments, subscriptions, suppressions, API keys, users
//! of the console, and the log of their changes.

// Types
mod applications; // versions of application definitions
mod api_keys; // API keys
mod users; // users of the console and their sessions
mod writes; // preconditions and results of writes
mod changes; // the change log
mod subscribers; // subscribers and recipients
mod subscriptions; // subscriptions
mod segments; // saved filters over subscribers
mod suppressions; // suppressions and failing endpoints
mod merges; // merges of two subscribers into one

// Facets
pub(crate) mod application_store; // versions of application definitions
pub(crate) mod subscriber_store; // subscribers, their devices and merges
mod segment_store; // segments: saved filters over subscribers
pub(crate) mod subscription_store; // subscriptions
mod consent_store; // consent of subscriptions, with its evidence
mod lifecycle_store; // outbox of lifecycle events
mod suppression_store; // suppressions of addresses and devices
mod feedback_store; // feedback to sent messages
mod recipient_store; // recipients and failing endpoints, for delivery
pub(crate) mod change_log; // log of changes, which caches and indexes follow
pub(crate) mod match_store; // records as of a sequence of the change log, for matching
mod schedule_store; // schedules of subscriptions
mod api_key_store; // API keys
mod capacity_profile_store; // saved capacity profiles
mod user_store; // users of the console and their sessions
mod notifybc_store; // documents of NotifyBC records
pub(crate) mod installation; // identity and secret of the installation, counts, health check

#[cfg(test)]
mod conformance;

pub use api_key_store::ApiKeyStore;
pub(crate) use api_keys::REMOVED_API_KEYS_MAX;
pub use api_keys::{ApiKey, ApiKeyUse};
pub use application_store::{ApplicationStore, NewApplicationVersion};
pub use applications::ApplicationVersion;
pub(crate) use applications::no_application;
pub(crate) use capacity_profile_store::profile_noun;
pub use capacity_profile_store::{CAPACITY_PROFILES_MAX, CapacityProfile, CapacityProfileStore, NewCapacityProfile};
pub use change_log::ChangeLog;
pub use changes::*;
pub use consent_store::{ConfirmConsent, ConsentStore, EvidenceOf, NewConsented};
pub(crate) use consent_store::{
    address_of, confirmed_device, is_of_other_address, moved_devices, moved_evidence, recorded_act,
};
pub use feedback_store::{FeedbackChange, FeedbackFilter, FeedbackState, FeedbackStore, STATE_ENTRIES_MAX};
pub(crate) use feedback_store::{MERGES_FOLLOWED_MAX, device_prefix};
pub(crate) use installation::*;
pub use installation::{Installation, RecordCounts};
pub(crate) use lifecycle_store::{
    ChangedSubscription, lifecycle_change, lifecycle_event, lifecycle_row, origin, person_events, subject_name,
};
pub use lifecycle_store::{LifecycleEntry, LifecycleFilter, LifecycleStore, TrimLifecycle};
pub use match_store::MatchStore;
pub use merges::*;
pub use notifybc_store::{
    DocumentKeys, DocumentScan, DocumentVersion, KeyFilter, NativeSubscription, NotifybcStore, PAGE_BODIES_BYTES_MAX,
    PutDocument, StoredDocument,
};
pub(crate) use notifybc_store::{document_noun, with_address};
pub use recipient_store::{RecipientChange, RecipientStore, RecipientWatcher};
pub use schedule_store::{ScheduleMembers, ScheduleStore};
pub use segment_store::SegmentStore;
pub use segments::*;
pub use subscriber_store::{PutDevice, SubscriberStore};
pub use subscribers::*;
pub use subscription_store::{RemoveSubscription, SubscriptionStore, UpdateSubscription};
pub use subscriptions::*;
pub use suppression_store::SuppressionStore;
pub use suppressions::*;
pub use user_store::UserStore;
pub(crate) use users::user_noun;
pub use users::{SESSIONS_OF_USER_MAX, Session, USERS_MAX, User};
pub use writes::{Precondition, Written};

/// Maximum number of subscriptions that one transaction of a removal deletes.
pub(crate) const REMOVED_SUBSCRIPTIONS_MAX: usize = 1_000;

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
    + ConsentStore
    + LifecycleStore
    + SuppressionStore
    + FeedbackStore
    + RecipientStore
    + NotifybcStore
    + MatchStore
    + ScheduleStore
    + ApiKeyStore
    + UserStore
    + CapacityProfileStore
{
}

impl<R> Records for R where
    R: Installation
        + ApplicationStore
        + SubscriberStore
        + SegmentStore
        + SubscriptionStore
        + ConsentStore
        + LifecycleStore
        + SuppressionStore
        + FeedbackStore
        + RecipientStore
        + NotifybcStore
        + MatchStore
        + ScheduleStore
        + ApiKeyStore
        + UserStore
        + CapacityProfileStore
{
}
