//! Tests against a scripted server on a simulated clock, and against Postfix.

mod scripted_server; // a scripted mail server
mod faults; // faults of a session and the results of its recipients
mod failover; // several servers
mod access; // encryption and credentials
mod pacing; // pacing by mailbox provider
mod mails; // formatted mails, checked by independent parsers
mod references; // references that providers return
mod signatures; // DKIM signatures, verified by an independent library
mod sink; // Postfix's smtp-sink
mod postfix; // a complete Postfix
mod conformance; // the promises of a channel

use std::sync::{Arc, atomic::Ordering};

use serde_json::json;
use tocsin_connect::options::read;
use tokio::sync::mpsc;

use self::scripted_server::{Encryption, Script, Scripted};
use super::{options::SmtpOptions, session::Dial};
use crate::{
    channel::{Answer, Context, OpenChannel, Outgoing},
    testing::{context, outgoing, show},
};

pub fn start(
    script: Script,
    options: serde_json::Value,
    tls: Option<Encryption>,
) -> (Box<dyn OpenChannel>, Arc<Scripted>) {
    let server = Scripted::new(script, tls);
    (start_at(server.clone(), json!({ "host": "far.example" }), options), server)
}

/// Opens a channel of an installation.
pub fn start_in(
    context: &Context,
    script: Script,
    options: serde_json::Value,
) -> (Box<dyn OpenChannel>, Arc<Scripted>) {
    let server = Scripted::new(script, None);
    (start_some_in(context, 1, server.clone(), json!({ "host": "far.example" }), options), server)
}

/// Opens a channel with one session.
pub fn start_at(dial: Arc<dyn Dial>, place: serde_json::Value, options: serde_json::Value) -> Box<dyn OpenChannel> {
    start_some(1, dial, place, options)
}

/// Opens a channel with several sessions.
pub fn start_some(
    sessions: u32,
    dial: Arc<dyn Dial>,
    place: serde_json::Value,
    options: serde_json::Value,
) -> Box<dyn OpenChannel> {
    start_some_in(&context(), sessions, dial, place, options)
}

fn start_some_in(
    context: &Context,
    sessions: u32,
    dial: Arc<dyn Dial>,
    place: serde_json::Value,
    options: serde_json::Value,
) -> Box<dyn OpenChannel> {
    let mut given = json!({ "from": "Tocsin <bells@near.example>" });
    for more in [place, options] {
        given.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    }
    let options: SmtpOptions =
        read(given.as_object().expect("an object"), "").unwrap_or_else(|problems| panic!("{problems:?}"));
    let name = "mail".parse().expect("a name");
    super::start(&name, sessions, context, options, dial).unwrap_or_else(|problems| panic!("{problems:?}"))
}

pub async fn deliver(open: &dyn OpenChannel, addresses: &[&str]) -> Vec<String> {
    deliver_all(open, addresses.iter().enumerate().map(|(number, address)| outgoing(number as u32, address)).collect())
        .await
}

pub async fn deliver_all(open: &dyn OpenChannel, mails: Vec<Outgoing>) -> Vec<String> {
    let (answers, mut answered) = mpsc::channel(16);
    let count = mails.len();
    open.send_all(mails, &answers).await;
    drop(answers);
    let mut all: Vec<Answer> = Vec::new();
    while let Some(answer) = answered.recv().await {
        all.extend(answer.into_each());
    }
    open.wait_until_answered().await;
    assert_eq!(all.len(), count, "one answer each");
    all.sort_by_key(|answer| answer.ticket.ordinal);
    all.iter().map(|answer| show(&answer.disposition)).collect()
}

/// Sends three mails through one session; compares the results and the number of connections.
pub async fn check(script: Script, expected: [&str; 3], connections: u32) -> Arc<Scripted> {
    check_with(script, json!({}), expected, connections).await
}

pub async fn check_with(
    script: Script,
    options: serde_json::Value,
    expected: [&str; 3],
    connections: u32,
) -> Arc<Scripted> {
    let (open, server) = start(script, options, None);
    let shown = deliver(&*open, &["a@b.example", "c@d.example", "e@f.example"]).await;
    assert_eq!(shown, expected);
    assert_eq!(server.connections.load(Ordering::SeqCst), connections, "connections");
    open.close().await;
    server
}

pub const OK: &str = "delivered 250 ok";
