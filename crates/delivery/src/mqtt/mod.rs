//! Messages to the topics of an MQTT 5 broker.
//!
//! The address of a device is a topic, behind the channel's prefix. A message is delivered when the broker has answered
//! for it: PUBACK, or PUBCOMP where it is to arrive exactly once. A connection that breaks is not resumed: what it had not
//! answered is tried again under the same id, which stands among the message's user properties.

mod broker; // where a broker is, and how we log in
mod classify; // what a broker says becomes a disposition
mod connection; // a connection, and the messages on it that are not answered yet
mod options; // what an operator may set
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
    pending::Shared,
    queue::Queue,
    running::{Running, only_lane},
    tls,
};

pub(crate) fn open(name: &Name, channel: &Channel, context: &Context) -> Result<Box<dyn OpenChannel>, Vec<Problem>> {
    let options: MqttOptions = read(&channel.options, "")?;
    let trust = tls::trust(&context.files, options.ca_file.as_deref(), "ca_file").map_err(|problem| vec![problem])?;
    // One connection carries all; what is on its way over it is bounded by the channel's concurrency.
    let queue = Queue::single(1);
    let shared = Shared::new(name, context);
    let window = channel.concurrency.clamp(1, options::WINDOW_MAX) as usize;
    let publisher = Arc::new(send::Publisher::new(name, options, trust, context, window, queue.clone()));
    let session = publisher.clone();
    Ok(Running::start(shared, queue, only_lane, publisher, move || session.clone().run()))
}
