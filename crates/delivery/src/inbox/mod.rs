//! Stores items in the feeds of subscribers, durable before they are answered (group commit).
//!
//! All queued items are stored in one commit, then answered. An item is identified by its notification, so a delivery
//! repeated after a crash creates no second one. A multicast is stored as one content. There is no server; a
//! [`FeedStore`] keeps the feeds.

mod classify; // classifies store failures
mod content; // content of an item
mod options; // options of the protocol
mod send; // the writer

#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
pub use options::InboxOptions;
use tocsin_model::{
    application::Channel,
    id::Name,
    inbox::NewItem,
    problem::{Code, Problem},
    receipt::Reason,
};

use crate::{
    channel::{Context, OpenChannel},
    options::read,
    pending::DeliveryContext,
    queue::Queue,
    running::{Running, single_lane},
};

/// Store of inbox items; implemented outside this crate.
#[async_trait]
pub trait FeedStore: Send + Sync {
    /// Adds items to their feeds, in order, in one durable commit. An item whose notification is already stored is
    /// ignored. A feed with more than `items_max` items loses its oldest.
    ///
    /// # Errors
    /// The reason, if nothing was stored.
    async fn put(&self, items: Vec<NewItem>, items_max: u32) -> Result<(), Reason>;
    /// Checks the store: a sentence about it, or the failure.
    async fn probe(&self) -> Result<String, Reason>;
}

pub(crate) fn open(name: &Name, channel: &Channel, context: &Context) -> Result<Box<dyn OpenChannel>, Vec<Problem>> {
    let options: InboxOptions = read(&channel.options, "")?;
    let feeds = context
        .feeds
        .clone()
        .ok_or_else(|| vec![Problem::new(Code::Unavailable, "", "this program keeps no feeds")])?;
    // A single writer keeps the order of deliveries in each feed.
    let queue = Queue::single(1);
    let shared = DeliveryContext::new(name, context);
    let writer = Arc::new(send::Writer::new(name, options, feeds, queue.clone()));
    let sessions = writer.clone();
    Ok(Running::start(shared, queue, single_lane, writer, move || sessions.clone().run()))
}
