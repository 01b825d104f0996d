//! Content in, disposition out: how a formatted notification leaves, and what the far side said.
//!
//! A [`channel::OpenChannel`] is a running instance of a protocol. It takes [`channel::Outgoing`] messages into one
//! bounded queue, from which its sessions pull, and names each recipient in **exactly one** [`channel::Answer`],
//! whatever happens: a session that dies, a panic and a closing channel are answers too. Delivery is at least once:
//! only an answer of the far side that was lost on its way can make a second delivery, under the same message id.
//!
//! Every protocol is a folder of the same shape: `options` (what an operator may set), `send` (the sessions),
//! `classify` (pure: the far side's answer becomes a disposition). This room knows no journal, no template and no retry
//! schedule; time comes from a [`channel::Clock`].

pub mod channel; // what every protocol promises: messages in, one answer for each
pub mod protocol; // which protocols there are; options are checked, channels opened

pub mod file; // records appended to a file
pub mod inbox; // items for the feeds that subscribers read
pub mod http; // requests with Standard Webhooks signatures
pub mod mqtt; // messages to the topics of an MQTT broker
pub mod nats; // messages that a stream of NATS JetStream keeps
pub mod process; // lines of JSON to a program, and its answers
pub mod smtp; // mails over persistent, pipelined sessions
pub mod webpush; // encrypted messages to browsers

pub mod signet; // signs what leaves so that it is known when it comes back
pub mod networks; // which addresses we talk to
pub mod programs; // which programs we start
pub mod folders; // which files we write to
pub mod files; // which files we read
pub mod redact; // what a log may show of whom something goes to and what it says
pub mod spans; // what is told of things that stand in a trace
pub mod options; // options as the definition gives them become typed options, or every problem in them

mod flow; // how much goes where at a time: lanes, pace, pauses, rates
mod repeated; // credentials that a server repeats in its answer
mod record; // a message as data, for programs
pub mod reference; // the page that explains every option
mod pending; // a message that must be answered, once
mod queue; // the bounded queue that sessions pull from
mod running; // the open channel of all protocols: a queue and its sessions
pub mod tls; // connections of any kind, and whom we trust on them
pub mod scram; // proof of a password that does not travel

#[cfg(test)]
mod testing; // what the tests of all protocols share

pub use channel::{
    Answer, Clock, Context, Destination, DestinationState, FactFields, Facts, Message, OpenChannel, Other, Outgoing,
    Place, SystemClock, Ticket,
};
pub use flow::rate::Meter;
pub use protocol::{ProtocolDescription, check, is_endpoint, open, open_with, protocols};
pub use reference::reference_page;
pub use signet::{Claim, InboxPass, Returned, Signet};
