//! Requests to the URL that a device or the channel gives, signed as Standard Webhooks 1.0 asks.
//!
//! The body is the content's JSON, or `{id, type, timestamp, data}`, or what the channel's options make of the message's
//! parts, each escaped for where it stands. Connections are kept and used again. Nothing is followed that redirects, and
//! private addresses are refused unless the operator opened them: a URL may be the word of a subscriber. Destinations do
//! not wait for each other: see `crate::flow`.

pub mod call; // a request whose response is wanted whole, outside of any channel
pub(crate) mod classify; // a response becomes a disposition, by the channel's rules and its status
pub(crate) mod connect; // a judged address becomes a connection, and is kept for the next request
mod exchange; // one request and its response
mod options; // what an operator may set
mod recipes; // services whose requests and answers are known
pub(crate) mod request; // what a request says
mod recipients; // one request for many
pub(crate) mod send; // the sessions' loop: messages in, answers out
pub mod sign; // Standard Webhooks signatures
mod template; // texts with places to fill in, each escaped for where it stands

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use options::HttpOptions;
use serde_json::{Map, Value};
use tocsin_model::{application::Channel, id::Name, problem::Problem};

use crate::{
    channel::{Context, OpenChannel},
    options::read,
    pending::Shared,
    queue::Queue,
    running::Running,
    tls,
};

pub(crate) fn open(name: &Name, channel: &Channel, context: &Context) -> Result<Box<dyn OpenChannel>, Vec<Problem>> {
    let options: HttpOptions = read(&channel.options, "")?;
    let ca_file = options.ca_file.as_deref();
    let trust = match (&options.certificate_file, &options.key_file) {
        (Some(certificate), Some(key)) => tls::trust_and_prove(&context.files, ca_file, certificate, key),
        _ => tls::trust(&context.files, ca_file, "ca_file"),
    };
    let trust = trust.map_err(|problem| vec![problem])?;
    Ok(start(name, channel, context, options, trust, Arc::new(connect::TcpDial)))
}

/// Whether requests go to the URL that the device gives, and not to that of a service.
pub(crate) fn is_endpoint(options: &Map<String, Value>) -> bool {
    let options = read::<HttpOptions>(options, "").and_then(|options| options.complete());
    options.is_ok_and(|options| options.url.is_none())
}

fn start(
    name: &Name,
    channel: &Channel,
    context: &Context,
    options: HttpOptions,
    trust: Arc<rustls::ClientConfig>,
    dial: Arc<dyn connect::Dial>,
) -> Box<dyn OpenChannel> {
    let recipients = options.recipients.as_ref().map_or(1, |recipients| recipients.most);
    let queue = Queue::shared_by_many(channel.concurrency.max(1) as usize, channel.flow, recipients);
    let shared = Shared::new(name, context);
    let courier = Arc::new(send::Courier::new(name, options, dial, trust, context, queue.clone()));
    let (sessions, couriers) = (courier.clone(), courier.clone());
    Running::start(shared, queue, move |address| couriers.lane_of(address), courier, move || sessions.clone().run())
}
