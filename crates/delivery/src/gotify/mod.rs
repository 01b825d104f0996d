//! Sends messages to a Gotify server (REST API of Gotify 2): `POST /message` with an application token.
//!
//! The token is the device's address, or that of the channel. Connections, network policy and retries are those of
//! the `http` protocol. Gotify removes no repetitions; the id of a message is in its extras.

mod classify; // classifies the server's responses
mod message; // formats a notification as a message
mod options; // options of the protocol
mod send; // the sessions: messages in, answers out

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use options::GotifyOptions;
use tocsin_connect::options::read;
use tocsin_model::definition::secrets::SecretShape;

use crate::{
    channel::Opened,
    description::{ChannelResource, OpenRequest, ProtocolDescription, behind_a_server, check_of, schema_of},
    http::connect::TcpDial,
    pending::DeliveryContext,
    queue::Queue,
    running::Running,
};

/// Its row in the table of protocols.
pub(crate) static PROTOCOL: ProtocolDescription = ProtocolDescription {
    name: "gotify",
    summary: "messages to the apps of a Gotify server",
    schema: schema_of::<GotifyOptions>,
    parts: send::PARTS,
    needs: &[ChannelResource::CheckedAddresses, ChannelResource::ReadableFiles],
    secrets: &[("token", SecretShape::Whole)],
    is_endpoint: behind_a_server,
    send_port: None,
    check: check_of::<GotifyOptions>,
    open,
};

fn open(request: &OpenRequest<'_>) -> Opened {
    let OpenRequest { name, channel, context, .. } = *request;
    let options: GotifyOptions = read(&channel.options, "")?;
    let trust = options.client.certificates.client_config(&context.files).map_err(|problem| vec![problem])?;
    let queue = Queue::shared(channel.concurrency.max(1) as usize, channel.flow);
    let shared = DeliveryContext::new(name, context);
    let sender = Arc::new(send::GotifySender::new(name, options, Arc::new(TcpDial), trust, context, queue.clone()));
    let (sessions, lanes) = (sender.clone(), sender.clone());
    Ok(Running::start(shared, queue, move |_| lanes.lane(), sender, move || sessions.clone().run()))
}
