//! Delivers formatted notifications through channels and classifies the receivers' answers.
//!
//! A [`channel::OpenChannel`] is a running instance of a protocol. It takes [`channel::Outgoing`] messages into one
//! bounded queue, from which its sessions pull. It names each recipient in **exactly one** [`channel::Answer`], even
//! if a session fails, panics or the channel closes. Delivery is at least once: only an answer that was lost in
//! transit can cause a second delivery, under the same message id.
//!
//! Every protocol is a folder of the same shape: `options` (the settings), `send` (the sessions), `classify` (pure:
//! the receiver's answer becomes a disposition). This crate knows no journal, no template and no retry schedule; time
//! comes from a [`tocsin_connect::Clock`].

pub mod channel; // the contract of every protocol: messages in, exactly one answer for each
pub mod description; // a row of the table of protocols, with all its columns
pub mod feedback_options; // the option `feedback`: webhooks of the provider behind a channel
pub mod file_options; // files that the options of a channel name, compared with the file policy
pub mod protocol; // table of protocols: checks options, opens channels

pub mod file; // file: appends records to a file
pub mod gotify; // Gotify: messages to the apps of a Gotify server
pub mod inbox; // inbox: stores items in the feeds of subscribers
pub mod http; // HTTP: requests with Standard Webhooks signatures
pub mod matrix; // Matrix: messages to rooms of a homeserver
pub mod mqtt; // MQTT: publishes to topics of a broker
pub mod nats; // NATS: publishes to a JetStream stream
pub mod process; // process: JSON lines to a local program, and its answers
pub mod smtp; // SMTP: mail over persistent, pipelined sessions
pub mod webpush; // web push: encrypted messages to browsers

mod signed_text; // base 36 and comparison of signed texts
pub mod consent_tokens; // links and codes of confirmations, handles of requests, hashes of addresses
pub mod mail_sender; // identity of a mail channel: domains, hosts, public keys
pub mod page_tokens; // signed tokens of hosted pages: preference links, forms, undo
pub mod token_signer; // signed tokens: unsubscribe links, return addresses, inbox passes
pub mod recall; // recall of formatted messages after a change of their recipient
pub mod withdrawal; // withdrawal of messages that wait in a channel
pub mod folders; // folder policy: files that channels may write
pub mod redact; // redaction of addresses and texts in logs

mod flow; // flow control per destination: queue, concurrency, circuit breaker, rate
mod repeated; // detects credentials that a server repeats in its answer
mod record; // a message as JSON, for programs and files
pub mod reference; // generates the reference page of all options
mod pending; // exactly-once answer token of a message inside a channel
mod queue; // the bounded queue that sessions pull from
mod running; // the open channel of all protocols: a queue and its sessions

#[cfg(test)]
mod testing; // fixtures that the tests of all protocols share
#[cfg(test)]
mod conformance; // the promises of a channel, for the tests of every protocol
#[cfg(test)]
mod template; // a small protocol to copy; compiled and tested, but not in the table

pub use channel::{
    Answer, Context, Destination, DestinationState, FactFields, Facts, FeedStore, HeldBackMail, Message, OpenChannel,
    Opened, Other, Outgoing, ProviderDays, Ticket, TracePosition,
};
pub use consent_tokens::{ConfirmLink, ConsentTokens};
pub use description::{ChannelResource, ProtocolDescription, SendPortAccess};
pub use flow::rate::Meter;
pub use mail_sender::{MailKey, MailSender};
pub use page_tokens::{PageTokens, PreferencesLink, Sealed};
pub use protocol::{channel_secrets, check, is_endpoint, open, open_send_port, open_with, protocols};
pub use recall::{RecallMark, Recalls};
pub use reference::reference_page;
pub use token_signer::{Claim, InboxPass, TokenSigner};
pub use withdrawal::Withdrawal;
