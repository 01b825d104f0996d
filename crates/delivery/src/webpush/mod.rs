//! Messages to browsers through their push services (RFC 8030), encrypted for the one browser (RFC 8291, `aes128gcm` of
//! RFC 8188) and signed with the key of the application server (VAPID, RFC 8292).
//!
//! The address of a device is the push subscription of the browser, as JSON. Its endpoint is checked like any address
//! that a subscriber supplies. Connections, destinations and retries are those of the `http` protocol.

mod classify; // classifies responses of push services
mod encrypt; // encrypts a text for one browser
mod options; // options of the protocol
mod payload; // payload for the service worker
mod send; // the sessions
mod subscription; // a device's address: a push subscription
mod vapid; // VAPID: key and tokens of the application server

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use options::WebPushOptions;
pub use subscription::check_subscription;
use tocsin_connect::options::read;
use tocsin_model::{application::Channel, definition::secrets::SecretShape, id::Name};
pub use vapid::{VapidKey, generate_key};

use crate::{
    channel::{Context, Opened},
    description::{ChannelResource, ProtocolDescription, check_of, schema_of},
    http::connect::{Dial, TcpDial},
    pending::DeliveryContext,
    queue::Queue,
    running::Running,
};

/// Its row in the table of protocols.
pub(crate) static PROTOCOL: ProtocolDescription = ProtocolDescription {
    name: "webpush",
    summary: "encrypted messages to browsers through their push services, signed with a VAPID key",
    schema: schema_of::<WebPushOptions>,
    parts: send::PARTS,
    needs: &[ChannelResource::CheckedAddresses, ChannelResource::ReadableFiles],
    secrets: &[("private_key", SecretShape::Whole)],
    is_endpoint: |_| true,
    send_port: None,
    check: check_of::<WebPushOptions>,
    open: |request| open(request.name, request.channel, request.context),
};

fn open(name: &Name, channel: &Channel, context: &Context) -> Opened {
    let options: WebPushOptions = read(&channel.options, "")?;
    let trust = options.client.certificates.client_config(&context.files).map_err(|problem| vec![problem])?;
    let dial: Arc<dyn Dial> = Arc::new(TcpDial);
    let queue = Queue::shared(channel.concurrency.max(1) as usize, channel.flow);
    let shared = DeliveryContext::new(name, context);
    let courier = Arc::new(send::WebPushSender::new(name, options, dial, trust, context, queue.clone()));
    let sessions = courier.clone();
    Ok(Running::start(shared, queue, send::lane_of, courier, move || sessions.clone().run()))
}
