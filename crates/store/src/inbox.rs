//! Port of the in-app inbox: feeds of subscribers, and broadcasts stored once for all readers.
//!
//! Every change has a number from one sequence, so that a reader can ask for the changes since its last visit. Equal
//! contents are stored once. Whether a broadcast was read is stored only for subscribers who read, archived or
//! removed it.

#[cfg(test)]
mod conformance;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tocsin_model::{
    id::{InboxBroadcastId, Name, SubscriberNumber},
    inbox::{InboxContent, InboxItemFilter, Item, ItemId, Mark, NewItem},
    time::Timestamp,
};

use crate::error::StoreError;

pub use crate::listeners::{Listener, ListenerRegistry};

/// Maximum number of broadcasts that are neither withdrawn nor expired.
pub const BROADCASTS_MAX: usize = 1_000;
/// Retention of tombstones: a repeated delivery does not restore a removed item, and an absent reader learns of the
/// removal.
pub const TOMBSTONES_KEPT: Duration = Duration::from_secs(7 * 86_400);

/// Reader of a feed: a subscriber and the broadcasts in its audience.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedReader {
    /// Subscriber.
    pub subscriber: SubscriberNumber,
    /// Broadcasts whose audience includes the subscriber, also withdrawn ones; ascending.
    pub broadcasts: Vec<InboxBroadcastId>,
}

/// Filter of a feed; all given conditions must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FeedFilter {
    /// Unread, read or archived.
    pub item_filter: InboxItemFilter,
    /// Application.
    pub application: Option<Name>,
    /// Notification class.
    pub class: Option<Name>,
    /// Channel.
    pub channel: Option<Name>,
}

impl FeedFilter {
    /// Selects items by their state only.
    pub fn of_items(item_filter: InboxItemFilter) -> FeedFilter {
        FeedFilter { item_filter, ..FeedFilter::default() }
    }
}

/// Counts of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeliveryCounts {
    /// New items.
    pub new: u64,
    /// Items that had been delivered before.
    pub known: u64,
    /// Old items evicted because the feed was full.
    pub evicted: u64,
}

/// Change of a feed.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedChange {
    /// New item.
    New(Item),
    /// Changed item: read, archived or edited.
    Changed(Item),
    /// Removed item.
    Removed(ItemId),
}

/// Changes of a feed, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FeedChanges {
    /// Changes with their sequence numbers.
    pub changes: Vec<(u64, FeedChange)>,
    /// Sequence up to which changes are included; the reader continues after it.
    pub upto: u64,
    /// Whether there are more.
    pub more: bool,
}

/// Broadcast to store.
#[derive(Debug, Clone, PartialEq)]
pub struct NewBroadcast {
    /// Name within the application; an existing broadcast of this name is replaced.
    pub name: Name,
    /// Segment whose members see it; `None`: all subscribers.
    pub audience: Option<Name>,
    /// Content.
    pub content: InboxContent,
    /// Expiry.
    pub expires_at: Timestamp,
}

/// Broadcast as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Broadcast {
    /// Id: its sequence number at creation.
    pub id: InboxBroadcastId,
    /// See [`NewBroadcast`].
    pub name: Name,
    /// See [`NewBroadcast`].
    pub audience: Option<Name>,
    /// See [`NewBroadcast`].
    pub content: InboxContent,
    /// Creation time.
    pub created_at: Timestamp,
    /// See [`NewBroadcast`].
    pub expires_at: Timestamp,
    /// Number of subscribers that have read it.
    pub readers: u64,
}

/// Properties of a broadcast that decide who sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BroadcastHead {
    /// Broadcast.
    pub id: InboxBroadcastId,
    /// Segment whose members see it; `None`: all subscribers.
    pub audience: Option<Name>,
    /// Expiry.
    pub expires_at: Timestamp,
    /// Whether it was withdrawn; readers may not know yet.
    pub withdrawn: bool,
}

/// Row counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InboxCounts {
    /// Items of all feeds, without broadcasts.
    pub items: u64,
    /// Contents of items and broadcasts.
    pub contents: u64,
}

/// Port of the inbox. A write is durable when its call returns; concurrent writes share one fsync (group commit).
#[async_trait]
pub trait Inbox: Send + Sync + 'static {
    // Deliveries

    /// Adds items to their feeds, in order, in one commit. An item whose notification was delivered before is ignored, even
    /// if it was removed since. A feed with more than `items_max` items loses its oldest.
    ///
    /// # Errors
    /// Nothing was stored; `Full` if the disk is full.
    async fn put_items(
        &self,
        items: Vec<NewItem>,
        items_max: u32,
        now: Timestamp,
    ) -> Result<DeliveryCounts, StoreError>;

    // Reading: expired items are invisible, whether they have been deleted yet or not

    /// Up to `limit` items with numbers below `before`, newest first.
    async fn feed(
        &self,
        reader: &FeedReader,
        filter: &FeedFilter,
        before: Option<u64>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<Item>, StoreError>;
    /// Item by id, archived or not.
    async fn item(&self, reader: &FeedReader, id: ItemId, now: Timestamp) -> Result<Option<Item>, StoreError>;
    /// Number of items that are [`InboxItemFilter::Unread`].
    async fn unread(&self, reader: &FeedReader, now: Timestamp) -> Result<u64, StoreError>;
    /// Changes of a feed after a sequence, in order, at most `limit`: each item once, in its present state. An item
    /// added and changed since may be reported as changed; one added and removed, as removed.
    ///
    /// # Errors
    /// `Missing` if the tombstones since `after` were deleted: the reader must reload the feed.
    async fn changes(
        &self,
        reader: &FeedReader,
        after: u64,
        limit: usize,
        now: Timestamp,
    ) -> Result<FeedChanges, StoreError>;
    /// Newest sequence number.
    fn newest(&self) -> u64;
    /// Subscribes to wake-ups: the listener wakes when the feed may have changed, also by a broadcast.
    fn listen(&self, subscriber: SubscriberNumber) -> Listener;

    // Actions of a reader

    /// Marks items. Returns those that exist; items whose state stays the same are not logged as changes.
    async fn mark(
        &self,
        reader: &FeedReader,
        ids: Vec<ItemId>,
        mark: Mark,
        now: Timestamp,
    ) -> Result<Vec<ItemId>, StoreError>;
    /// Marks all items that match a filter and have numbers up to `upto`. Returns the number of changed items.
    async fn mark_all(
        &self,
        reader: &FeedReader,
        filter: &FeedFilter,
        upto: u64,
        mark: Mark,
        now: Timestamp,
    ) -> Result<u64, StoreError>;
    /// Moves the items and broadcast states of one subscriber to another; readers see the items as changed. A
    /// broadcast counts as read or removed if it was for either. Returns the number of moved items. Idempotent.
    async fn move_feed(&self, from: SubscriberNumber, into: SubscriberNumber) -> Result<u64, StoreError>;
    /// Removes all data of a subscriber.
    async fn remove_feed(&self, subscriber: SubscriberNumber) -> Result<(), StoreError>;
    /// Removes a feed, and leaves none of its contents in the file: the WAL is truncated before the call returns.
    ///
    /// # Errors
    /// `Unavailable`: it is removed, but a backup or a long read was running; the call can be repeated.
    async fn erase_feed(&self, subscriber: SubscriberNumber) -> Result<(), StoreError>;

    // Broadcasts

    /// Stores a broadcast. One with the same application and name is replaced: it keeps its id and its read marks,
    /// and all readers see it as changed. Storing an equal broadcast changes nothing. Returns whether it is new.
    ///
    /// # Errors
    /// `Full` if there are [`BROADCASTS_MAX`].
    async fn put_broadcast(&self, new: NewBroadcast, now: Timestamp) -> Result<(Broadcast, bool), StoreError>;
    /// Broadcasts of an application that are neither withdrawn nor expired, newest first.
    async fn broadcasts(&self, application: &Name, now: Timestamp) -> Result<Vec<Broadcast>, StoreError>;
    /// Withdraws a broadcast, so that it disappears for all readers. `Missing` if there is none.
    async fn withdraw_broadcast(&self, application: &Name, name: &Name, now: Timestamp) -> Result<(), StoreError>;
    /// Audiences of all broadcasts, ascending by id; including expired ones that were not deleted yet.
    fn broadcast_heads(&self) -> Arc<Vec<BroadcastHead>>;

    // Upkeep

    /// Deletes expired items and tombstones, about `limit` rows per call. Returns the number of items and broadcasts
    /// deleted, and whether there are more.
    async fn expire(&self, now: Timestamp, limit: usize) -> Result<(u64, bool), StoreError>;
    /// Row counts.
    fn counts(&self) -> InboxCounts;
    /// Writes and syncs a few bytes and returns the time it took.
    async fn probe(&self) -> Result<Duration, StoreError>;
}

// Shared by all backends

/// Error for a reader that is too far behind.
pub(crate) fn no_changes_after(after: u64) -> StoreError {
    StoreError::Missing(format!("what changed in the feed after {after}"))
}

pub(crate) fn no_broadcast(name: &Name) -> StoreError {
    StoreError::Missing(format!("the broadcast `{name}`"))
}

pub(crate) fn too_many_broadcasts() -> StoreError {
    StoreError::Full(format!("{BROADCASTS_MAX} broadcasts are there already; withdraw one, or let them expire sooner"))
}
