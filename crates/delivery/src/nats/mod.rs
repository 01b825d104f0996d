//! Messages that a stream of NATS JetStream keeps.
//!
//! The address of a device is a subject, behind the channel's prefix. A message is delivered when the stream has
//! acknowledged it, and `Nats-Msg-Id` is the same at every attempt, so that within its duplicate window a stream takes
//! each message once. Subjects that no stream listens to are trouble: without a stream nobody would keep the message.

mod classify; // what a stream or a connection says becomes a disposition
mod options; // what an operator may set
mod send; // the session: messages in, answers out
mod system; // where a system is, and how we log in

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use options::NatsOptions;
pub use system::System;
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
    let options: NatsOptions = read(&channel.options, "")?;
    let trust = tls::trust(&context.files, options.ca_file.as_deref(), "ca_file").map_err(|problem| vec![problem])?;
    let shown = format!("tocsin {} {name}", context.installation);
    let connect = options.system().connect(&context.files, &trust, shown).map_err(|problem| vec![problem])?;
    // One connection carries all; what is on its way over it is bounded by the channel's concurrency.
    let queue = Queue::single(1);
    let shared = Shared::new(name, context);
    let window = channel.concurrency.max(1) as usize;
    let publisher = Arc::new(send::Publisher::new(name, options, connect, window, queue.clone()));
    let session = publisher.clone();
    Ok(Running::start(shared, queue, only_lane, publisher, move || session.clone().run()))
}
