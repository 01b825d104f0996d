//! Publishes messages to a NATS JetStream stream.
//!
//! A device's address is a subject below the channel's prefix. A message is delivered when the stream has
//! acknowledged it. `Nats-Msg-Id` is the same at every attempt, so that the stream's duplicate window removes
//! repetitions. A subject without a stream is a failure, because the message would not be stored.

mod classify; // classifies acknowledgements and connection errors
mod options; // options of the protocol
mod send; // the session: messages in, answers out

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use options::NatsOptions;
use tocsin_connect::options::read;
use tocsin_model::{application::Channel, definition::secrets::SecretShape, id::Name};

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
    name: "nats",
    summary: "messages that a stream of NATS JetStream keeps",
    schema: schema_of::<NatsOptions>,
    parts: record::BODY_PARTS,
    needs: &[ChannelResource::NamedServers, ChannelResource::ReadableFiles],
    secrets: &[("token", SecretShape::Whole), ("password", SecretShape::Whole)],
    is_endpoint: behind_a_server,
    send_port: None,
    check: check_of::<NatsOptions>,
    open: |request| open(request.name, request.channel, request.context),
};

fn open(name: &Name, channel: &Channel, context: &Context) -> Opened {
    let options: NatsOptions = read(&channel.options, "")?;
    let shown = format!("tocsin {} {name}", context.installation);
    let client = options.connection.client(&context.files, shown).map_err(|problem| vec![problem])?;
    // One connection carries all messages; the channel's concurrency bounds those in flight.
    let queue = Queue::single(1);
    let shared = DeliveryContext::new(name, context);
    let window = channel.concurrency.max(1) as usize;
    let publisher = Arc::new(send::Publisher::new(name, options, client, window, queue.clone()));
    let session = publisher.clone();
    Ok(Running::start(shared, queue, single_lane, publisher, move || session.clone().run()))
}
