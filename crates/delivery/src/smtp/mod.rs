//! Mails to a mail server: RFC 5321 with PIPELINING, SIZE, SMTPUTF8, STARTTLS and AUTH.
//!
//! Each of `concurrency` sessions stays open and carries many mails. Where the server offers PIPELINING (RFC 2920), the
//! content of one mail and the envelope of the next travel in one flight: one round trip a mail. A mail whose session
//! breaks before its content was sent is tried again on a fresh session at once; afterwards it is deferred.
//!
//! A multicast is one mail with up to `recipients_max` recipients, whose addresses stand in the envelope only. Each has
//! its own answer: the server's reply to its RCPT, or to the content if that was taken.

mod options; // what an operator may set
mod send; // the sessions' loop: messages in, answers out
mod servers; // which server a session goes to
mod session; // one conversation: commands and replies on a connection
mod auth; // who we are to the server
mod message; // a notification becomes a mail
mod dkim; // which its domain signs
mod classify; // the server's replies become a disposition

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use options::{SmtpOptions, TlsMode};
use servers::Servers;
use tocsin_model::{application::Channel, id::Name, problem::Problem};

use crate::{
    channel::{Context, OpenChannel},
    options::read,
    pending::Shared,
    queue::Queue,
    running::{Running, only_lane},
};

pub(crate) fn open(name: &Name, channel: &Channel, context: &Context) -> Result<Box<dyn OpenChannel>, Vec<Problem>> {
    start(name, channel.concurrency, context, read(&channel.options, "")?, Arc::new(session::TcpDial))
}

fn start(
    name: &Name,
    concurrency: u32,
    context: &Context,
    options: SmtpOptions,
    dial: Arc<dyn session::Dial>,
) -> Result<Box<dyn OpenChannel>, Vec<Problem>> {
    let queue = Queue::single(concurrency.max(1) as usize);
    let servers = Servers::open(name, &options, context).map_err(|problem| vec![problem])?;
    let courier =
        Arc::new(send::Courier::new(options, &context.files, context.signet.clone(), servers, dial, queue.clone())?);
    let shared = Shared::new(name, context);
    let sessions = courier.clone();
    Ok(Running::start(shared, queue, only_lane, courier, move || sessions.clone().run()))
}
