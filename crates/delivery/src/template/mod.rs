//! Sends lines of text to a server; a small protocol to copy. `docs/develop/protocol.md` lists the steps.
//!
//! Each message is a line `SEND id json`; its answer is a line `ok`, `busy SECONDS`, `gone` or `no REASON`.

mod classify; // classifies the server's replies
mod options; // options of the protocol
mod send; // the sessions: messages in, answers out

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use options::LineOptions;
use tocsin_connect::options::read;

use crate::{
    channel::Opened,
    description::{ChannelResource, OpenRequest, ProtocolDescription, behind_a_server, check_of, schema_of},
    pending::DeliveryContext,
    queue::Queue,
    record,
    running::{Running, single_lane},
};

/// Its row in the table of protocols.
pub(crate) static PROTOCOL: ProtocolDescription = ProtocolDescription {
    name: "line",
    summary: "lines of text to a server",
    schema: schema_of::<LineOptions>,
    parts: record::BODY_PARTS,
    needs: &[ChannelResource::NamedServers],
    secrets: &[],
    is_endpoint: behind_a_server,
    send_port: None,
    check: check_of::<LineOptions>,
    open,
};

fn open(request: &OpenRequest<'_>) -> Opened {
    let options: LineOptions = read(&request.channel.options, "")?;
    // One destination: `Queue::single`. Destinations by address: `Queue::shared`, and a lane for each.
    let queue = Queue::single(request.channel.concurrency.max(1) as usize);
    let shared = DeliveryContext::new(request.name, request.context);
    let sender = Arc::new(send::Sender::new(request.name, options, queue.clone()));
    let session = sender.clone();
    Ok(Running::start(shared, queue, single_lane, sender, move || session.clone().run()))
}
