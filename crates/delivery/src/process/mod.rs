//! Sends messages as JSON lines to a local program and reads its answers; for transports that are not built in.
//!
//! A session starts the program when there is something to send and keeps it running. Each message is a line on its
//! standard input, as a record of the file protocol. Each answer is a line on its standard output, in any order:
//!
//! ```json
//! {"id": "n-7-15", "outcome": "delivered", "reply": "queued as 4711"}
//! {"id": "n-7-16", "outcome": "deferred", "reason": "busy", "retry_after_seconds": 30}
//! {"id": "n-7-17", "outcome": "refused", "reason": "no such number"}
//! ```
//!
//! Its standard error goes to the log. When it ends, unanswered messages are retried later. The program is restarted,
//! with increasing delays while it ends without an answer. When the channel closes, its standard input ends, and it
//! has some time to answer the rest.

mod answer; // parses and classifies an answer
mod options; // options of the protocol
mod send; // the sessions: messages in, answers out

#[cfg(test)]
mod tests;

use std::{path::Path, sync::Arc};

pub use options::ProcessOptions;
use tocsin_connect::options::read;
use tocsin_model::{
    application::Channel,
    definition::secrets::SecretShape,
    id::Name,
    problem::{Code, Problem},
};

use crate::{
    channel::{Context, Opened},
    description::{ChannelResource, ProtocolDescription, behind_a_server, check_of, schema_of},
    pending::DeliveryContext,
    queue::Queue,
    record,
    running::{Running, single_lane},
};

/// Its row in the table of protocols.
pub(crate) static PROTOCOL: ProtocolDescription = ProtocolDescription {
    name: "process",
    summary: "lines of JSON to a program of yours, and its answers",
    schema: schema_of::<ProcessOptions>,
    parts: record::RECORD_PARTS,
    needs: &[ChannelResource::Programs],
    secrets: &[("environment", SecretShape::Whole)],
    is_endpoint: behind_a_server,
    send_port: None,
    check: check_of::<ProcessOptions>,
    open: |request| open(request.name, request.channel, request.context),
};

fn open(name: &Name, channel: &Channel, context: &Context) -> Opened {
    let options: ProcessOptions = read(&channel.options, "")?;
    let path = context
        .programs
        .resolve_allowed(Path::new(&options.command[0]))
        .map_err(|text| vec![Problem::new(Code::NotAllowed, "command", text)])?;
    let queue = Queue::single(channel.concurrency.max(1) as usize);
    let shared = DeliveryContext::new(name, context);
    let sessions = Arc::new(send::Sessions::new(name, options, path, context, queue.clone()));
    let session = sessions.clone();
    Ok(Running::start(shared, queue, single_lane, sessions, move || session.clone().run()))
}
