//! Outbox of lifecycle events: changes of subscriptions, stored in the commit of the change until the journal has them.

use async_trait::async_trait;
use tocsin_model::{
    consent::{ConsentAct, ConsentChange, ConsentState, Evidence},
    field::Row,
    id::{Name, SubscriptionId},
    lifecycle::{ChangeOrigin, ChangeWay, LifecycleChange, lifecycle_fields},
    time::Timestamp,
    value::Value,
};

use crate::error::StoreError;

/// Outbox of lifecycle events (transactional outbox). Each change of a subscription that a filter covers adds an entry
/// in the same commit. One task of the pipeline makes events of the entries, in order, and removes old ones.
///
/// Positions increase and are not reused. A list is one range of an index.
#[async_trait]
pub trait LifecycleStore: Send + Sync + 'static {
    /// Replaces the filters of an application. Without filters, changes of its subscriptions add no entries.
    async fn set_lifecycle_filters(&self, application: &Name, filters: Vec<LifecycleFilter>) -> Result<(), StoreError>;

    /// Up to `limit` entries of an application after a position, in order.
    async fn lifecycle_entries(
        &self,
        application: &Name,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LifecycleEntry>, StoreError>;

    /// Position such that all present entries, of any application, are at it or before, and all later ones after it.
    async fn last_lifecycle_position(&self) -> Result<u64, StoreError>;

    /// Removes up to `limit` entries of an application up to a position that were added before a time. Returns their
    /// number.
    async fn trim_lifecycle(&self, trim: TrimLifecycle<'_>) -> Result<usize, StoreError>;
}

/// Parameters of [`LifecycleStore::trim_lifecycle`].
#[derive(Debug, Clone, Copy)]
pub struct TrimLifecycle<'a> {
    /// Application.
    pub application: &'a Name,
    /// Last position to remove.
    pub through: u64,
    /// Time before which the entries were added.
    pub before: Timestamp,
    /// Most entries.
    pub limit: usize,
}

/// Changes that add entries to the outbox.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LifecycleFilter {
    /// Change.
    pub change: LifecycleChange,
    /// Subscription class; `None`: all.
    pub class: Option<Name>,
}

/// Entry of the outbox.
#[derive(Debug, Clone, PartialEq)]
pub struct LifecycleEntry {
    /// Position.
    pub position: u64,
    /// Change.
    pub change: LifecycleChange,
    /// Subscription class.
    pub class: Name,
    /// Time of the change.
    pub at: Timestamp,
    /// The event, a row of [`lifecycle_fields`].
    pub row: Row,
}

/// The source of an entry.
pub(crate) struct ChangedSubscription<'a> {
    pub(crate) id: SubscriptionId,
    pub(crate) subscriber: &'a str,
    pub(crate) class: &'a str,
    pub(crate) key: Option<&'a str>,
    pub(crate) device: Option<&'a str>,
    /// Parameters, as JSON.
    pub(crate) values: &'a str,
    /// Parameters before the change, as JSON.
    pub(crate) before: Option<&'a str>,
    pub(crate) locale: Option<&'a str>,
    pub(crate) time_zone: Option<&'a str>,
    /// Attributes of the subscriber, as JSON.
    pub(crate) attributes: Option<&'a str>,
}

/// The event of a change, as JSON. That of a removed subscriber has no personal data beyond the ids.
pub(crate) fn lifecycle_event(
    change: LifecycleChange,
    of: &ChangedSubscription<'_>,
    origin: &ChangeOrigin,
    at: Timestamp,
) -> String {
    let text = |text: Option<&str>| text.map_or(Value::Null, Value::from);
    let map = |json: Option<&str>| json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or(Value::Null);
    let is_removed = origin.way == ChangeWay::SubscriberRemoved;
    let personal = |value: Value| if is_removed { Value::Null } else { value };
    let before = of.before.filter(|before| *before != of.values);
    let row = vec![
        Value::from(&*of.id.to_string()),
        Value::from(of.subscriber),
        Value::from(of.class),
        Value::from(change.word()),
        Value::Timestamp(at),
        text(origin.actor.as_deref()),
        Value::from(origin.way.word()),
        personal(text(of.key)),
        personal(text(of.device)),
        personal(map(Some(of.values))),
        personal(map(before)),
        personal(text(of.locale)),
        personal(text(of.time_zone)),
        personal(map(of.attributes)),
    ];
    lifecycle_fields().to_json(&row)
}

/// The row of a stored event.
pub(crate) fn lifecycle_row(event: &str) -> Result<Row, StoreError> {
    lifecycle_fields()
        .row_from_json(event.as_bytes())
        .map_err(|_| StoreError::Damaged("an entry of the outbox of lifecycle events".to_owned()))
}

/// The lifecycle event of a change of consent. The insertion of a subscription records its own events, and a request
/// that expired or was withdrawn never became active. An undone withdrawal is no new confirmation, so it starts no
/// welcome again.
pub(crate) fn lifecycle_change(change: &ConsentChange) -> Option<LifecycleChange> {
    match change.act {
        _ if change.is_new => None,
        ConsentAct::Requested | ConsentAct::Resent => Some(LifecycleChange::Requested),
        ConsentAct::Confirmed => Some(LifecycleChange::Confirmed),
        ConsentAct::Restored => Some(LifecycleChange::Changed),
        ConsentAct::Withdrawn if change.before != Some(ConsentState::Pending) => Some(LifecycleChange::Ended),
        ConsentAct::Withdrawn | ConsentAct::Expired => None,
    }
}

/// The origin of a change by its evidence.
pub(crate) fn origin(evidence: &Evidence) -> ChangeOrigin {
    let way = ChangeWay::ALL.into_iter().find(|way| way.word() == evidence.way.word());
    ChangeOrigin::by(way.unwrap_or_default(), Some(&evidence.by))
}
