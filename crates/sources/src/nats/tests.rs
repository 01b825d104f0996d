use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use async_nats::{
    HeaderMap,
    jetstream::{self, stream},
};
use serde_json::json;
use tocsin_test_peers::{Peer, missing};

use crate::{
    source::SourceOutput,
    testing::{Harness, taken},
};

#[test]
fn gaps_are_distinguished_from_lost_deliveries() {
    let mut given = super::DeliveryGaps::default();
    let mut next = |sequence, number, times| given.next(sequence, number, times == 1);
    assert_eq!(next(4, 1, 1), 4, "what was before is not known");
    assert_eq!(next(9, 2, 1), 5, "5 to 8 are for others");
    assert_eq!(next(5, 3, 2), 5, "it comes again");
    assert_eq!(next(12, 4, 1), 10);
    assert_eq!(next(20, 6, 1), 20, "one went astray in between");
    assert_eq!(next(13, 7, 2), 13);
    assert_eq!(next(22, 8, 1), 21);
    assert_eq!(next(14, 10, 2), 14);
    assert_eq!(next(30, 11, 1), 30, "something was given and did not come");
}

/// A nats-server with JetStream.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(folder: &Path) -> Server {
        let mut child = Command::new(Peer::Nats.path())
            .args(["-a", "127.0.0.1", "-p", "-1", "-js", "-sd"])
            .arg(folder)
            .stderr(Stdio::piped())
            .spawn()
            .expect("nats-server starts");
        let mut log = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let mut port = None;
        for line in log.by_ref() {
            let line = line.expect("text");
            if let Some((_, found)) = line.split_once("Listening for client connections on 127.0.0.1:") {
                port = found.trim().parse().ok();
            }
            if line.contains("Server is ready") {
                break;
            }
        }
        // The server ends when its log is no longer read.
        std::thread::spawn(move || log.for_each(drop));
        Server { child, port: port.expect("it says where it listens") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The trace context of a message.
fn parent(number: usize) -> String {
    format!("00-{:032x}-00f067aa0ba902b7-01", number + 1)
}

/// Publishes messages, each followed by one of another subject.
async fn publish(context: &jetstream::Context, from: usize, to: usize) {
    for number in from..to {
        let quake = format!("{{\"id\": \"q{number}\"}}");
        for (subject, body) in [("quakes.new", quake), ("other", "{}".to_owned())] {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", parent(number).as_str());
            let sent = context.publish_with_headers(subject, headers, body.into()).await.expect("sent");
            sent.await.expect("kept");
        }
    }
}

#[tokio::test]
async fn messages_are_taken_once_over_crashes() {
    if missing(&[Peer::Nats]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path());
    let address = format!("nats://127.0.0.1:{}", server.port);
    let context = jetstream::new(async_nats::connect(&address).await.expect("a connection"));
    let subjects = vec!["quakes.>".into(), "other".into()];
    let config = stream::Config { name: "ALL".into(), subjects, ..Default::default() };
    context.create_stream(config).await.expect("a stream");
    publish(&context, 0, 100).await;

    let options = json!({"servers": [address], "stream": "ALL", "subjects": ["quakes.>"]});
    let mut harness = Harness::new("nats", options);
    let mut events = Vec::new();
    // A crash after the commit: nothing was acknowledged, and everything is redelivered later.
    let batch = harness.next().await;
    events.extend(crate::testing::shown(&batch.events));
    for (number, (first, context)) in batch.events.traces().iter().enumerate() {
        assert_eq!((first as usize, context.parent_text()), (number, parent(number)));
    }
    assert_eq!(batch.events.traces().iter().count(), batch.events.count() as usize);
    harness.commit(batch.marks);
    harness.crash();
    publish(&context, 100, 150).await;
    context.publish("quakes.bad", "nonsense".into()).await.expect("sent").await.expect("kept");
    while events.len() < 150 {
        let batch = harness.next().await;
        events.extend(crate::testing::shown(&batch.events));
        harness.commit(batch.marks);
        harness.source().accepted().await.expect("acknowledged");
    }
    // Messages in flight to the crashed client are redelivered after their timeout, behind others.
    events.sort_unstable();
    let mut expected: Vec<String> = (0..150).map(|number| taken(&format!("{{\"id\": \"q{number}\"}}"))).collect();
    expected.sort_unstable();
    assert_eq!(events, expected);
}

#[tokio::test]
async fn a_location_takes_whole_messages_exactly_once() {
    if missing(&[Peer::Nats]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path());
    let client = async_nats::connect(format!("127.0.0.1:{}", server.port)).await.expect("connected");
    let context = jetstream::new(client);
    let config = stream::Config { name: "ORDERS".into(), subjects: vec!["orders.>".into()], ..Default::default() };
    context.create_stream(config).await.expect("made");
    let options = json!({"servers": [format!("nats://127.0.0.1:{}", server.port)], "stream": "ORDERS"});
    let mut harness = Harness::new("nats", options);
    harness.output = SourceOutput::Messages { bytes_max: 1 };
    let mut headers = HeaderMap::new();
    headers.insert("Content-Type", "text/plain");
    headers.insert("X-Sender", "shop");
    context.publish_with_headers("orders.new", headers, "no JSON".into()).await.expect("sent").await.expect("kept");
    let batch = harness.next().await;
    assert_eq!((&batch.messages[0].body[..], &*batch.messages[0].content_type), (&b"no JSON"[..], "text/plain"));
    let headers = &batch.messages[0].headers;
    for (name, value) in [("nats-subject", "orders.new"), ("x-sender", "shop")] {
        assert!(headers.contains(&(name.to_owned(), value.to_owned())), "{headers:?}");
    }
    // Stored, but not acknowledged.
    harness.commit(batch.marks);
    harness.crash();
    context.publish("orders.new", "second".into()).await.expect("sent").await.expect("kept");
    assert_eq!(&harness.take_messages().await[0].body[..], b"second");
}

#[tokio::test]
async fn d_a_consumer_gets_the_subjects_of_the_definition() {
    if missing(&[Peer::Nats]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path());
    let address = format!("nats://127.0.0.1:{}", server.port);
    let context = jetstream::new(async_nats::connect(&address).await.expect("a connection"));
    let subjects = vec!["one.>".into(), "two.>".into()];
    let config = stream::Config { name: "ALL".into(), subjects, ..Default::default() };
    context.create_stream(config).await.expect("a stream");
    let send = async |subject: &'static str, id: &str| {
        let sent = context.publish(subject, format!("{{\"id\": \"{id}\"}}").into()).await.expect("sent");
        sent.await.expect("kept");
    };
    let options = |subjects: &[&str]| json!({"servers": [address], "stream": "ALL", "subjects": subjects});
    let mut harness = Harness::new("nats", options(&["one.>"]));
    send("one.x", "a").await;
    assert_eq!(harness.take_events(1).await, [taken(r#"{"id": "a"}"#)]);
    harness.options = options(&["two.*"]);
    harness.crash();
    for (subject, id) in [("one.x", "old"), ("two.x", "new"), ("two.x.y", "deeper"), ("two.x", "end")] {
        send(subject, id).await;
    }
    assert_eq!(harness.take_events(2).await, [taken(r#"{"id": "new"}"#), taken(r#"{"id": "end"}"#)]);
    // Without subjects, all are taken.
    harness.options = options(&[]);
    harness.crash();
    for (subject, id) in [("one.x", "c"), ("two.x.y", "d")] {
        send(subject, id).await;
    }
    let mut events = harness.take_events(2).await;
    events.sort();
    assert!(events.ends_with(&[taken(r#"{"id": "d"}"#)]) && events.contains(&taken(r#"{"id": "c"}"#)), "{events:?}");
}
