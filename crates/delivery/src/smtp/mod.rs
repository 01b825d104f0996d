//! Sends mail to a mail server: RFC 5321 with PIPELINING, SIZE, SMTPUTF8, STARTTLS and AUTH.
//!
//! Each of `concurrency` sessions stays open and carries many mails. With PIPELINING (RFC 2920), the content of one
//! mail and the envelope of the next travel together: one round trip a mail. If a session fails before a mail's
//! content was sent, the mail is sent again on a new session at once, and deferred after that.
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
    queue::Queue,
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
    let queue = Queue::single(concurrency.max(1) as usize);
    let servers = Servers::open(name, &options, context).map_err(|problem| vec![problem])?;
    let courier = Arc::new(send::SmtpSender::new(
        options,
        &context.files,
        context.token_signer.clone(),
        servers,
        dial,
        queue.clone(),
    )?);
    let shared = DeliveryContext::new(name, context);
    let sessions = courier.clone();
    Ok(Running::start(shared, queue, single_lane, courier, move || sessions.clone().run()))
}
