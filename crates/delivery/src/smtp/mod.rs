//! Sends mail to a mail server: RFC 5321 with PIPELINING, SIZE, SMTPUTF8, STARTTLS and AUTH.
//!
//! Each of `concurrency` sessions stays open and carries many mails. With PIPELINING (RFC 2920), the content of one
//! mail and the envelope of the next travel together: one round trip a mail. If a session fails before a mail's
//! content was sent, the mail is sent again on a new session at once, and deferred after that.
//!
//! With `pacing` the queue has a lane for each mailbox provider, with its own rate, concurrency, back-off and warm-up.
//! The answers to the recipients of a mail control the lane.
//!
//! A multicast is one mail with up to `recipients_max` recipients, whose addresses are only in the envelope. Each has
//! its own answer: the server's reply to its RCPT, or to the content if RCPT was accepted.

mod options; // options of the protocol
mod send; // the sessions' loop: messages in, answers out
mod servers; // selects a server for each session: fail-over and weights
mod session; // one SMTP session: commands and replies on a connection
mod auth; // authentication with the server
mod address; // mail addresses of senders and recipients
mod header; // names and texts of header fields
mod message; // formats a notification as a mail
mod dkim; // DKIM signatures
mod classify; // classifies the server's replies
mod pacing; // options of pacing by mailbox provider
mod mailbox_providers; // finds the mailbox provider of a domain by its mail exchangers
mod hold_back; // recognizes replies by which a provider holds mail back
mod pacer; // paces a channel by mailbox provider

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use options::{SmtpOptions, TlsMode};
use servers::Servers;
use tocsin_connect::options::read;
use tocsin_model::{
    application::Channel,
    content::{JsonUse, PartsUsed},
    definition::secrets::SecretShape,
    id::Name,
};

use crate::{
    channel::{Context, Opened},
    description::{ChannelResource, ProtocolDescription, behind_a_server, check_of, schema_of},
    pending::DeliveryContext,
    queue::{LaneOf, Queue},
    running::{Running, single_lane},
};

/// Its row in the table of protocols.
pub(crate) static PROTOCOL: ProtocolDescription = ProtocolDescription {
    name: "smtp",
    summary: "mails over persistent, pipelined sessions to a mail server",
    schema: schema_of::<SmtpOptions>,
    parts: PartsUsed { json: JsonUse::InTheirPlace, sms: false, ..PartsUsed::ALL },
    needs: &[ChannelResource::NamedServers, ChannelResource::ReadableFiles],
    secrets: &[
        ("password", SecretShape::Whole),
        ("servers.password", SecretShape::Whole),
        ("dkim.key", SecretShape::Whole),
        ("feedback.key", SecretShape::Whole),
    ],
    is_endpoint: behind_a_server,
    send_port: None,
    check: check_of::<SmtpOptions>,
    open: |request| open(request.name, request.channel, request.context),
};

fn open(name: &Name, channel: &Channel, context: &Context) -> Opened {
    start(name, channel.concurrency, context, read(&channel.options, "")?, Arc::new(session::TcpDial))
}

fn start(
    name: &Name,
    concurrency: u32,
    context: &Context,
    options: SmtpOptions,
    dial: Arc<dyn session::Dial>,
) -> Opened {
    let sessions = concurrency.max(1) as usize;
    let pacer = options.pacing.as_ref().map(|pacing| pacer::Pacer::start(name, pacing, sessions, context));
    start_paced(name, sessions, context, options, dial, pacer)
}

fn start_paced(
    name: &Name,
    sessions: usize,
    context: &Context,
    options: SmtpOptions,
    dial: Arc<dyn session::Dial>,
    pacer: Option<Arc<pacer::Pacer>>,
) -> Opened {
    let queue = pacer.as_ref().map_or_else(|| Queue::single(sessions), |pacer| pacer.queue.clone());
    let lane_of: Box<LaneOf> = match &pacer {
        Some(pacer) => {
            let directory = pacer.directory.clone();
            Box::new(move |address| directory.provider(address).to_string().into())
        }
        None => Box::new(single_lane),
    };
    let servers = Servers::open(name, &options, context).map_err(|problem| vec![problem])?;
    let courier = Arc::new(send::SmtpSender::new(
        options,
        &context.files,
        context.token_signer.clone(),
        servers,
        dial,
        queue.clone(),
        pacer,
    )?);
    let shared = DeliveryContext::new(name, context);
    let sessions = courier.clone();
    Ok(Running::start(shared, queue, lane_of, courier, move || sessions.clone().run()))
}
