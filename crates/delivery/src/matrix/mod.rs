//! Sends messages to rooms of a Matrix homeserver (client-server API v1.11): `PUT .../send/m.room.message/{txnId}`.
//!
//! The device's address is a room id or an alias. The id of a message is its transaction id, so that the homeserver
//! removes repetitions. Connections, network policy and retries are those of the `http` protocol.

mod classify; // classifies the server's responses
mod message; // formats a notification as the content of an event
mod options; // options of the protocol
mod send; // the sessions: messages in, answers out

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use options::{MatrixOptions, MessageType};
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
    name: "matrix",
    summary: "messages to rooms of a Matrix homeserver",
    schema: schema_of::<MatrixOptions>,
    parts: send::PARTS,
    needs: &[ChannelResource::CheckedAddresses, ChannelResource::ReadableFiles],
    secrets: &[("access_token", SecretShape::Whole)],
    is_endpoint: behind_a_server,
    send_port: None,
    check: check_of::<MatrixOptions>,
    open,
};

fn open(request: &OpenRequest<'_>) -> Opened {
    let OpenRequest { name, channel, context, .. } = *request;
    let options: MatrixOptions = read(&channel.options, "")?;
    let trust = options.client.certificates.client_config(&context.files).map_err(|problem| vec![problem])?;
    let queue = Queue::shared(channel.concurrency.max(1) as usize, channel.flow);
    let shared = DeliveryContext::new(name, context);
    let sender = Arc::new(send::MatrixSender::new(name, options, Arc::new(TcpDial), trust, context, queue.clone()));
    let (sessions, lanes) = (sender.clone(), sender.clone());
    Ok(Running::start(shared, queue, move |_| lanes.lane(), sender, move || sessions.clone().run()))
}
