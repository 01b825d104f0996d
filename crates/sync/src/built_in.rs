//! Sources of the built-in collections: the inbox, and the editor of subscribers. Ids of built-in rows.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use async_trait::async_trait;
use ring::digest::{SHA256, digest};
use serde_json::{Map, Value as Json};
use tocsin_model::{
    id::{Name, SubscriberId, SubscriberNumber, SubscriptionId},
    inbox::ItemId,
    problem::Problem,
};
use tocsin_store::{error::StoreError, inbox::Inbox};

pub(crate) const SHARDS: u64 = 256;

/// Hashes of the last states written to the rows. The rows of a subscriber are updated under the lock of its shard, so
/// an older state never overwrites a newer one.
pub(crate) struct BuiltIns {
    pub(crate) inbox: Arc<dyn Inbox>,
    pub(crate) editor: OnceLock<Arc<dyn SubscriberEditor>>,
    pub(crate) followed: Vec<tokio::sync::Mutex<HashMap<(Name, SubscriberNumber), u64>>>,
}

impl BuiltIns {
    pub(crate) fn new(inbox: Arc<dyn Inbox>) -> BuiltIns {
        BuiltIns {
            inbox,
            editor: OnceLock::new(),
            followed: (0..SHARDS).map(|_| tokio::sync::Mutex::default()).collect(),
        }
    }
}

/// Change of a subscriber through an edit of a built-in row; `null` clears a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OwnChange<'a> {
    /// Sets fields of a device, by its name; creates it if missing.
    PutDevice(&'a str, &'a Map<String, Json>),
    /// Removes a device.
    RemoveDevice(&'a str),
    /// Adds a subscription; replaces one with the same key, if the edit names no other.
    AddSubscription(&'a str, &'a Map<String, Json>),
    /// Sets fields of a subscription.
    ChangeSubscription(SubscriptionId, &'a Map<String, Json>),
    /// Removes a subscription.
    RemoveSubscription(SubscriptionId),
}

/// Result of such a change.
#[derive(Debug, Clone, PartialEq)]
pub enum OwnChangeResult {
    /// The change is done, now or earlier.
    Done,
    /// The subscriber has no such item.
    NotFound,
    /// The change is invalid.
    Refused(Vec<Problem>),
}

/// Changes a subscriber, with the same checks as for every other client.
#[async_trait]
pub trait SubscriberEditor: Send + Sync {
    /// Makes a change; an error is one of the platform. Idempotent.
    async fn change(
        &self,
        application: &Name,
        subscriber: &SubscriberId,
        change: OwnChange<'_>,
    ) -> Result<OwnChangeResult, StoreError>;
}

/// Short token of a subscriber for its row ids, which are shorter than subscriber ids may be.
pub(crate) fn token_of(subscriber: &SubscriberId) -> String {
    hex::encode(&digest(&SHA256, subscriber.as_str().as_bytes()).as_ref()[..12])
}

/// Row id of an inbox item. A broadcast has one row per recipient.
pub(crate) fn row_of(id: ItemId, subscriber: &SubscriberId) -> String {
    match id {
        ItemId::Notification(id) => id.to_string(),
        ItemId::Broadcast(id) => format!("{id}.{}", token_of(subscriber)),
    }
}
