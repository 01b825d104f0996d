//! HTTP requests to the URL of the device or the channel, signed as in Standard Webhooks 1.0.
//!
//! The body is the content's JSON, or `{id, type, timestamp, data}`, or a template in the channel's options, with
//! each value escaped for its context. Connections are reused. Redirects are not followed. Private addresses are
//! refused unless the operator allows them, because a subscriber may choose the URL. Destinations do not wait for
//! each other: see `crate::flow`.

pub mod call; // HTTP requests of exchanges, with the complete response
pub(crate) mod classify; // classifies responses by the channel's rules and the status
pub(crate) mod connect; // connection pool with network policy
mod exchange; // HTTP/1.1 client: one request and its response
mod options; // options of the protocol
mod recipes; // presets for known services
pub(crate) mod request; // formats requests
mod recipients; // one request for many recipients
pub(crate) mod send; // the sessions' loop: messages in, answers out
pub mod sign; // Standard Webhooks signatures
mod template; // templates with placeholders, escaped for their context

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use options::HttpOptions;
use serde_json::{Map, Value};
use tocsin_model::{application::Channel, id::Name, problem::Problem};

use crate::{
    channel::{Context, OpenChannel},
    options::read,
    pending::DeliveryContext,
    queue::Queue,
    running::Running,
    tls,
};

pub(crate) fn open(name: &Name, channel: &Channel, context: &Context) -> Result<Box<dyn OpenChannel>, Vec<Problem>> {
    let options: HttpOptions = read(&channel.options, "")?;
    let ca_file = options.ca_file.as_deref();
    let trust = match (&options.certificate_file, &options.key_file) {
        (Some(certificate), Some(key)) => tls::trust_and_prove(&context.files, ca_file, certificate, key),
        _ => tls::client_config(&context.files, ca_file, "ca_file"),
    };
    let trust = trust.map_err(|problem| vec![problem])?;
    Ok(start(name, channel, context, options, trust, Arc::new(connect::TcpDial)))
}

/// Whether requests go to the device's URL and not to that of a service.
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
    let shared = DeliveryContext::new(name, context);
    let courier = Arc::new(send::HttpSender::new(name, options, dial, trust, context, queue.clone()));
    let (sessions, couriers) = (courier.clone(), courier.clone());
    Running::start(shared, queue, move |address| couriers.lane_of(address), courier, move || sessions.clone().run())
}
