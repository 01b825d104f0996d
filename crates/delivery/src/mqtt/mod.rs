//! Publishes messages to the topics of an MQTT 5 broker.
//!
//! A device's address is a topic below the channel's prefix. A message is delivered when the broker has acknowledged
//! it: PUBACK, or PUBCOMP with QoS 2. A broken connection is not resumed: unacknowledged messages are sent again
//! under the same id, which is among the user properties.

mod broker; // address of a broker and login
mod classify; // classifies a broker's acknowledgements
mod connection; // a connection and its unacknowledged messages
mod options; // options of the protocol
mod send; // the session: messages in, answers out

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use broker::Broker;
pub use options::MqttOptions;
use tocsin_model::{application::Channel, id::Name, problem::Problem};

use crate::{
    channel::{Context, OpenChannel},
    options::read,
    pending::DeliveryContext,
    queue::Queue,
    running::{Running, single_lane},
    tls,
};

pub(crate) fn open(name: &Name, channel: &Channel, context: &Context) -> Result<Box<dyn OpenChannel>, Vec<Problem>> {
    let options: MqttOptions = read(&channel.options, "")?;
    let trust =
        tls::client_config(&context.files, options.ca_file.as_deref(), "ca_file").map_err(|problem| vec![problem])?;
    // One connection carries all messages; the channel's concurrency bounds those in flight.
    let queue = Queue::single(1);
    let shared = DeliveryContext::new(name, context);
    let window = channel.concurrency.clamp(1, options::WINDOW_MAX) as usize;
    let publisher = Arc::new(send::Publisher::new(name, options, trust, context, window, queue.clone()));
    let session = publisher.clone();
    Ok(Running::start(shared, queue, single_lane, publisher, move || session.clone().run()))
}
