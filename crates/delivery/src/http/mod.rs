//! Requests to the URL that a device gives, signed as Standard Webhooks 1.0 asks.
//!
//! The body is the content's JSON, or `{id, type, timestamp, data}`. Connections are kept and used again. Nothing is
//! followed that redirects, and private addresses are refused unless the operator opened them: the URL is the word of a
//! subscriber. Destinations do not wait for each other: see `crate::flow`.

mod classify; // a response becomes a disposition
mod connect; // a judged address becomes a connection, and is kept for the next request
mod options; // what an operator may set
mod send; // the sessions' loop: messages in, answers out
mod sign; // Standard Webhooks signatures

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use options::HttpOptions;
use tocsin_model::{application::Channel, id::Name, problem::Problem};

use crate::{
    channel::{Context, OpenChannel},
    options::read,
    queue::{Queue, Running, Shared},
    tls,
};

pub(crate) fn open(name: &Name, channel: &Channel, context: &Context) -> Result<Box<dyn OpenChannel>, Vec<Problem>> {
    let options: HttpOptions = read(&channel.options, "")?;
    let trust = tls::trust(options.ca_file.as_deref(), "ca_file").map_err(|problem| vec![problem])?;
    Ok(start(name, channel, context, options, trust, Arc::new(connect::TcpDial)))
}

fn start(
    name: &Name,
    channel: &Channel,
    context: &Context,
    options: HttpOptions,
    trust: Arc<rustls::ClientConfig>,
    dial: Arc<dyn connect::Dial>,
) -> Box<dyn OpenChannel> {
    let queue = Queue::shared(channel.concurrency.max(1) as usize, channel.flow);
    let shared = Shared::new(name, context.clock.clone());
    let courier = Arc::new(send::Courier::new(name, options, dial, trust, context, queue.clone()));
    let sessions = courier.clone();
    Running::start(shared, queue, send::lane_of, courier, move || sessions.clone().run())
}
