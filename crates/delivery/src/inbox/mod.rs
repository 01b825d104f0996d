//! Stores items in the feeds of subscribers, durable before they are answered (group commit).
//!
//! All queued items are stored in one commit, then answered. An item is identified by its notification, so a delivery
//! repeated after a crash creates no second one. A multicast is stored as one content. There is no server; a
//! [`FeedStore`](crate::FeedStore) keeps the feeds.

mod classify; // classifies store failures
mod content; // content of an item
mod options; // options of the protocol
mod send; // the writer

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use options::InboxOptions;
use tocsin_connect::options::read;
use tocsin_model::{
    application::Channel,
    id::Name,
    problem::{Code, Problem},
};

use crate::{
    channel::{Context, Opened},
    description::{ChannelResource, ProtocolDescription, behind_a_server, check_of, schema_of},
    pending::DeliveryContext,
    queue::Queue,
    record,
    running::{Running, single_lane},
};

/// Its row in the table of protocols.
pub(crate) static PROTOCOL: ProtocolDescription = ProtocolDescription {
    name: "inbox",
    summary: "items for the feeds that subscribers read, in pages and as they come",
    schema: schema_of::<InboxOptions>,
    parts: record::RECORD_PARTS,
    needs: &[ChannelResource::Feeds],
    secrets: &[],
    is_endpoint: behind_a_server,
    send_port: None,
    check: check_of::<InboxOptions>,
    open: |request| open(request.name, request.channel, request.context),
};

fn open(name: &Name, channel: &Channel, context: &Context) -> Opened {
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
