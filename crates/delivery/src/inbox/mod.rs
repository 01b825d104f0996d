//! Items for the feeds that subscribers read, durable before they are answered.
//!
//! What waits in the queue goes into the feeds in one commit, then all of it is answered. An item is known by its
//! notification: a delivery that a crash repeats makes no second one. What several are told word for word is handed over
//! once. There is no far side; where feeds are kept is the affair of whoever gives the [`Feeds`].

mod classify; // trouble of the store becomes a disposition
mod content; // a message becomes what an item says
mod options; // what an operator may set
mod send; // the writer

#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
pub use options::InboxOptions;
use tocsin_model::{application::Channel, id::Name, inbox::NewItem, problem::Problem, receipt::Reason};

use crate::{
    channel::{Context, OpenChannel},
    options::read,
    pending::Shared,
    queue::Queue,
    running::{Running, only_lane},
};

/// Where items go.
#[async_trait]
pub trait Feeds: Send + Sync {
    /// Puts items into their feeds, in their order, in one durable commit. One whose notification was put before changes
    /// nothing. A feed of more than `items_max` loses its oldest.
    ///
    /// # Errors
    /// Why nothing was stored.
    async fn put(&self, items: Vec<NewItem>, items_max: u32) -> Result<(), Reason>;
    /// How they are: a sentence, or what is wrong.
    async fn probe(&self) -> Result<String, Reason>;
}

pub(crate) fn open(name: &Name, channel: &Channel, context: &Context) -> Result<Box<dyn OpenChannel>, Vec<Problem>> {
    let options: InboxOptions = read(&channel.options, "")?;
    let feeds = context.feeds.clone().ok_or_else(|| vec![Problem::at("", "this program keeps no feeds")])?;
    // One writer, so that a feed has the order of the deliveries.
    let queue = Queue::single(1);
    let shared = Shared::new(name, context);
    let writer = Arc::new(send::Writer::new(name, options, feeds, queue.clone()));
    let sessions = writer.clone();
    Ok(Running::start(shared, queue, only_lane, writer, move || sessions.clone().run()))
}
