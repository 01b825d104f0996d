//! HTTP requests to the URL of the device or the channel, signed as in Standard Webhooks 1.0.
//!
//! The body is the content's JSON, or `{id, type, timestamp, data}`, or a template in the channel's options, with
//! each value escaped for its context. Connections are reused. Redirects are not followed. Private addresses are
//! refused unless the operator allows them, because a subscriber may choose the URL. Destinations do not wait for
//! each other: see `crate::flow`.

pub mod call; // HTTP requests of exchanges, with the complete response
pub(crate) mod client; // the client of all protocols over HTTP: options, sessions
mod check; // checks the options as a whole
mod classify; // classifies responses by the channel's rules and the status
pub(crate) mod connect; // connection pool with network policy
mod credentials; // basic authentication
mod exchange; // HTTP/1.1 client: one request and its response
mod options; // options of the protocol
mod recipes; // presets for known services
pub(crate) mod request; // formats requests
mod receipts; // requests for delivery receipts of SMS services
mod recipients; // one request for many recipients
pub(crate) mod response; // responses, and their verdict by status
mod send; // the sessions' loop: messages in, answers out
pub mod sign; // Standard Webhooks signatures
mod template; // templates with placeholders, escaped for their context

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use options::HttpOptions;
use serde_json::{Map, Value};
use tocsin_connect::options::read;
use tocsin_model::{
    application::Channel,
    content::PartsUsed,
    definition::secrets::{HEADERS, SecretShape},
    id::Name,
};

use crate::{
    channel::{Context, OpenChannel, Opened},
    description::{ChannelResource, ProtocolDescription, SendPortDescription, check_of, schema_of},
    pending::DeliveryContext,
    queue::Queue,
    running::Running,
};

/// Its row in the table of protocols.
pub(crate) static PROTOCOL: ProtocolDescription = ProtocolDescription {
    name: "http",
    summary: "requests to the device's URL or a service, with Standard Webhooks signatures",
    schema: schema_of::<HttpOptions>,
    parts: PartsUsed::ALL,
    needs: &[ChannelResource::CheckedAddresses, ChannelResource::ReadableFiles],
    secrets: &[
        ("password", SecretShape::Whole),
        ("secret", SecretShape::Whole),
        ("headers", HEADERS),
        // Parameters of recipes, except these.
        ("with", SecretShape::Except(&["account", "from", "server", "type"])),
        ("body", SecretShape::Named),
        ("recipients", SecretShape::Named),
        ("feedback.key", SecretShape::Whole),
    ],
    is_endpoint,
    send_port: Some(SendPortDescription {
        schema: schema_of::<call::CallOptions>,
        open: |options, path, access| {
            call::Caller::open(options, path, access.networks, access.files, access.clock.clone())
        },
    }),
    check: check_of::<HttpOptions>,
    open: |request| open(request.name, request.channel, request.context),
};

fn open(name: &Name, channel: &Channel, context: &Context) -> Opened {
    let options: HttpOptions = read(&channel.options, "")?;
    let trust = options.client.certificates.client_config(&context.files).map_err(|problem| vec![problem])?;
    Ok(start(name, channel, context, options, trust, Arc::new(connect::TcpDial)))
}

/// Whether requests go to the device's URL and not to that of a service.
pub(crate) fn is_endpoint(options: &Map<String, Value>) -> bool {
    let options = read::<HttpOptions>(options, "").and_then(|options| recipes::complete(&options));
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
