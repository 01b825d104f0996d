//! Mails to a mail server: RFC 5321 with PIPELINING, SIZE, SMTPUTF8, STARTTLS and AUTH.
//!
//! Each of `concurrency` sessions stays open and carries many mails. Where the server offers PIPELINING (RFC 2920), the
//! content of one mail and the envelope of the next travel in one flight: one round trip a mail. A mail whose session
//! breaks before its content was sent is tried again on a fresh session at once; afterwards it is deferred.
//!
//! A multicast is one mail with up to `recipients_max` recipients, whose addresses stand in the envelope only. Each has
//! its own answer: the server's reply to its RCPT, or to the content if that was taken.

mod classify; // the server's replies become a disposition
mod message; // a notification becomes a mail
mod options; // what an operator may set
mod send; // the sessions' loop: messages in, answers out
mod session; // one conversation: commands and replies on a connection

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use options::{SmtpOptions, TlsMode};
use tocsin_model::{application::Channel, id::Name, problem::Problem};

use crate::{
    channel::{Context, OpenChannel},
    options::read,
    queue::{Queue, Running, Shared, only_lane},
    tls,
};

pub(crate) fn open(name: &Name, channel: &Channel, context: &Context) -> Result<Box<dyn OpenChannel>, Vec<Problem>> {
    let options: SmtpOptions = read(&channel.options, "")?;
    let trust = tls::trust(options.ca_file.as_deref(), "ca_file").map_err(|problem| vec![problem])?;
    let dial = session::TcpDial::new(&options);
    Ok(start(name, channel.concurrency, context, options, trust, Arc::new(dial)))
}

fn start(
    name: &Name,
    concurrency: u32,
    context: &Context,
    options: SmtpOptions,
    trust: Arc<rustls::ClientConfig>,
    dial: Arc<dyn session::Dial>,
) -> Box<dyn OpenChannel> {
    let queue = Queue::single(concurrency.max(1) as usize);
    let shared = Shared::new(name, context.clock.clone());
    let courier = Arc::new(send::Courier::new(options, trust, dial, queue.clone()));
    let sessions = courier.clone();
    Running::start(shared, queue, only_lane, courier, move || sessions.clone().run())
}
