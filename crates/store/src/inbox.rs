//! The port of the inbox: the feeds of subscribers, and the broadcasts that are kept once for all.
//!
//! Every change has a number from one sequence, so that a reader who was away can be told what it missed. What an item says
//! is stored once for all who are told the same; that a broadcast was read is stored only for those who touched it.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tocsin_model::{
    id::{BroadcastId, Name, SubscriberNumber},
    inbox::{InboxContent, Item, ItemId, Mark, NewItem, Standing},
    time::Timestamp,
};

use crate::error::StoreError;

mod bell; // wakes those who look at a feed

pub use bell::{Bell, Listener};

/// Broadcasts that are neither withdrawn nor over, at most.
pub const BROADCASTS_MAX: usize = 1_000;
/// How long it is remembered that something was removed: a repeated delivery does not bring it back, and a reader who was
/// away is told.
pub const REMOVED_KEPT: Duration = Duration::from_secs(7 * 86_400);

/// Whose feed, and which broadcasts belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reader {
    /// The subscriber.
    pub subscriber: SubscriberNumber,
    /// The broadcasts to whose audience it belongs, withdrawn ones as well; ascending.
    pub broadcasts: Vec<BroadcastId>,
}

/// What is wanted of a feed; conditions are joined by and.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FeedFilter {
    /// As they stand.
    pub standing: Standing,
    /// Only of this application.
    pub application: Option<Name>,
    /// Only of this class.
    pub class: Option<Name>,
    /// Only those that came through this channel.
    pub channel: Option<Name>,
}

impl FeedFilter {
    /// Those that stand so.
    pub fn standing(standing: Standing) -> FeedFilter {
        FeedFilter { standing, ..FeedFilter::default() }
    }
}

/// What became of some deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delivered {
    /// Items that are new.
    pub new: u64,
    /// Those that had been delivered before.
    pub known: u64,
    /// Old items that went because their feed was full.
    pub evicted: u64,
}

/// One change of a feed.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedChange {
    /// An item came.
    New(Item),
    /// An item was read, archived, edited, ...
    Changed(Item),
    /// An item is gone.
    Removed(ItemId),
}

/// Changes of a feed, in their order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FeedChanges {
    /// Each with its number.
    pub changes: Vec<(u64, FeedChange)>,
    /// Up to here the feed is told of; the reader goes on after it.
    pub upto: u64,
    /// Whether there are more.
    pub more: bool,
}

/// A broadcast that asks to be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct NewBroadcast {
    /// Its name within the application; one that is there is replaced.
    pub name: Name,
    /// The segment whose members see it; `None`: everybody does.
    pub audience: Option<Name>,
    /// What it says.
    pub content: InboxContent,
    /// When it goes by itself.
    pub expires_at: Timestamp,
}

/// A broadcast as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Broadcast {
    /// Its id: its place in the sequence when it was made.
    pub id: BroadcastId,
    /// See [`NewBroadcast`].
    pub name: Name,
    /// See [`NewBroadcast`].
    pub audience: Option<Name>,
    /// See [`NewBroadcast`].
    pub content: InboxContent,
    /// When it was made.
    pub created_at: Timestamp,
    /// See [`NewBroadcast`].
    pub expires_at: Timestamp,
    /// How many have read it.
    pub readers: u64,
}

/// What of a broadcast decides who sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BroadcastHead {
    /// The broadcast.
    pub id: BroadcastId,
    /// The segment whose members see it; `None`: everybody does.
    pub audience: Option<Name>,
    /// When it goes by itself.
    pub expires_at: Timestamp,
    /// Whether it was withdrawn, and readers are still to be told.
    pub withdrawn: bool,
}

/// How much there is. Cheap to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InboxCounts {
    /// Items of all feeds, broadcasts not among them.
    pub items: u64,
    /// Texts that are kept for them and for broadcasts.
    pub contents: u64,
}

/// The inbox. A write is durable when its call returns; concurrent writes share one fsync.
#[async_trait]
pub trait Inbox: Send + Sync + 'static {
    // Deliveries

    /// Puts items into their feeds, in their order, all in one commit. An item whose notification was delivered before, even
    /// if it has been removed since, changes nothing. Where a feed then holds more than `items_max`, its oldest go.
    ///
    /// # Errors
    /// Nothing was stored; `Full` where there is no room.
    async fn put_items(&self, items: Vec<NewItem>, items_max: u32, now: Timestamp) -> Result<Delivered, StoreError>;

    // Reading. What has expired is not there, whether it has been removed yet or not.

    /// Up to `limit` items whose number is below `before`, newest first.
    async fn feed(
        &self,
        reader: &Reader,
        filter: &FeedFilter,
        before: Option<u64>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<Item>, StoreError>;
    /// One item, archived or not.
    async fn item(&self, reader: &Reader, id: ItemId, now: Timestamp) -> Result<Option<Item>, StoreError>;
    /// How many items stand as [`Standing::Unread`].
    async fn unread(&self, reader: &Reader, now: Timestamp) -> Result<u64, StoreError>;
    /// What changed in a feed after a place of the sequence, in order: each item once, as it is now. At most `limit` changes;
    /// an item that came and changed after it may be told as changed, and one that came and went as removed.
    ///
    /// # Errors
    /// `Missing` if it is not known any more what was removed since: the reader reads the feed anew.
    async fn changes(
        &self,
        reader: &Reader,
        after: u64,
        limit: usize,
        now: Timestamp,
    ) -> Result<FeedChanges, StoreError>;
    /// The newest place of the sequence.
    fn newest(&self) -> u64;
    /// Wakes whoever holds it when the feed may have changed, also by a broadcast.
    fn listen(&self, subscriber: SubscriberNumber) -> Listener;

    // What a reader does

    /// Marks some items. Gives those that are there; only those that it changed count as changed.
    async fn mark(
        &self,
        reader: &Reader,
        ids: Vec<ItemId>,
        mark: Mark,
        now: Timestamp,
    ) -> Result<Vec<ItemId>, StoreError>;
    /// Marks all items that a filter chooses and whose number is not above `upto`. Gives how many it changed.
    async fn mark_all(
        &self,
        reader: &Reader,
        filter: &FeedFilter,
        upto: u64,
        mark: Mark,
        now: Timestamp,
    ) -> Result<u64, StoreError>;
    /// Gives the feed of one subscriber to another, and what it did with broadcasts; who reads on is told of each item as
    /// changed. A broadcast that either has read or removed is. Gives how many items went over. Doing it again changes nothing.
    async fn move_feed(&self, from: SubscriberNumber, into: SubscriberNumber) -> Result<u64, StoreError>;
    /// Removes all that is kept of a subscriber.
    async fn remove_feed(&self, subscriber: SubscriberNumber) -> Result<(), StoreError>;

    // Broadcasts

    /// Stores a broadcast. One of the same application and name is replaced: it keeps its id and who has read it, and all its
    /// readers are told of the change. Storing what is there changes nothing. Gives whether it is new.
    ///
    /// # Errors
    /// `Full` if there are [`BROADCASTS_MAX`].
    async fn put_broadcast(&self, new: NewBroadcast, now: Timestamp) -> Result<(Broadcast, bool), StoreError>;
    /// Those of an application that are neither withdrawn nor over, newest first.
    async fn broadcasts(&self, application: &Name, now: Timestamp) -> Result<Vec<Broadcast>, StoreError>;
    /// Takes a broadcast back: nobody sees it any more. `Missing` if there is none.
    async fn withdraw_broadcast(&self, application: &Name, name: &Name, now: Timestamp) -> Result<(), StoreError>;
    /// What decides who sees which, ascending; those that expired and wait for their removal too.
    fn broadcast_heads(&self) -> Arc<Vec<BroadcastHead>>;

    // Upkeep

    /// Removes what has expired and what need not be remembered any more, in a step of about `limit` rows. Gives how many
    /// items and broadcasts went, and whether there is more.
    async fn expire(&self, now: Timestamp, limit: usize) -> Result<(u64, bool), StoreError>;
    /// How much there is.
    fn counts(&self) -> InboxCounts;
    /// Writes and syncs a few bytes; says how long that took.
    async fn probe(&self) -> Result<Duration, StoreError>;
}

// What every backend shares.

/// The answer to a reader who was away for too long.
pub(crate) fn no_changes_after(after: u64) -> StoreError {
    StoreError::Missing(format!("what changed in the feed after {after}"))
}

pub(crate) fn no_broadcast(name: &Name) -> StoreError {
    StoreError::Missing(format!("the broadcast `{name}`"))
}

pub(crate) fn too_many_broadcasts() -> StoreError {
    StoreError::Full(format!("{BROADCASTS_MAX} broadcasts are there already; withdraw one, or let them expire sooner"))
}

#[cfg(test)]
mod conformance;
