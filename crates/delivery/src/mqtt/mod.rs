//! Publishes messages to the topics of an MQTT 5 broker.
//!
//! A device's address is a topic below the channel's prefix. A message is delivered when the broker has acknowledged
//! it: PUBACK, or PUBCOMP with QoS 2. A broken connection is not resumed: unacknowledged messages are sent again
//! under the same id, which is among the user properties.

mod classify; // classifies a broker's acknowledgements
mod connection; // a connection and its unacknowledged messages
mod options; // options of the protocol
mod send; // the session: messages in, answers out

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use options::MqttOptions;
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
    name: "mqtt",
    summary: "messages to the topics of an MQTT 5 broker",
    schema: schema_of::<MqttOptions>,
    parts: record::BODY_PARTS,
    needs: &[ChannelResource::NamedServers, ChannelResource::ReadableFiles],
    secrets: &[("password", SecretShape::Whole)],
    is_endpoint: behind_a_server,
    send_port: None,
    check: check_of::<MqttOptions>,
    open: |request| open(request.name, request.channel, request.context),
};

fn open(name: &Name, channel: &Channel, context: &Context) -> Opened {
    let options: MqttOptions = read(&channel.options, "")?;
    let trust = options.connection.tls.certificates.client_config(&context.files).map_err(|problem| vec![problem])?;
    // One connection carries all messages; the channel's concurrency bounds those in flight.
    let queue = Queue::single(1);
    let shared = DeliveryContext::new(name, context);
    let window = channel.concurrency.clamp(1, options::WINDOW_MAX) as usize;
    let publisher = Arc::new(send::Publisher::new(name, options, trust, context, window, queue.clone()));
    let session = publisher.clone();
    Ok(Running::start(shared, queue, single_lane, publisher, move || session.clone().run()))
}
