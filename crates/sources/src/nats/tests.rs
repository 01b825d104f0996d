use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    ops::Range,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use async_nats::{
    HeaderMap,
    jetstream::{
        self,
        consumer::{AckPolicy, pull},
        stream,
    },
};
use async_trait::async_trait;
use serde_json::{Value as Json, json};
use tocsin_test_peers::{Peer, missing, until};

use crate::{
    conformance::{Oversize, Subject, exercise, silent_server},
    source::SourceOutput,
    testing::{Harness, shown, taken},
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

/// Publishes a message with these headers as they are, which the client library would refuse.
fn publish_raw(port: u16, subject: &str, headers: &[u8], body: &str) {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let mut replies = BufReader::new(connection.try_clone().expect("a connection")).lines().map_while(Result::ok);
    let head = [&b"NATS/1.0\r\n"[..], headers, b"\r\n"].concat();
    let command = format!("HPUB {subject} {} {}\r\n", head.len(), head.len() + body.len());
    connection.write_all(b"CONNECT {\"verbose\":false,\"headers\":true}\r\n").expect("sent");
    connection.write_all(&[command.as_bytes(), &head, body.as_bytes(), b"\r\nPING\r\n"].concat()).expect("sent");
    assert!(replies.any(|line| line == "PONG"), "the server ends the connection");
}

#[tokio::test]
async fn slow_a_message_with_unreadable_headers_is_rejected_and_delays_no_other() {
    if missing(&[Peer::Nats]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path());
    let address = format!("nats://127.0.0.1:{}", server.port);
    let context = jetstream::new(async_nats::connect(&address).await.expect("a connection"));
    let mut subject = Conforming { address, context, number: 0 };
    let mut harness = subject.harness().await;
    subject.put(0..3).await;
    let bad: [&[u8]; 3] = [b"name: M\xfcller\r\n", b"no colon\r\n", b"two words: x\r\n"];
    for headers in bad {
        publish_raw(server.port, "S1.quakes", headers, r#"{"id": "bad"}"#);
        subject.put(3..5).await;
    }
    let (mut events, mut refused) = (Vec::new(), Vec::new());
    while events.len() < 9 || refused.len() < bad.len() {
        let batch = harness.next().await;
        events.extend(shown(&batch.events));
        refused.extend(batch.refused.iter().map(|item| (item.reason.clone(), item.item.clone())));
        harness.commit(batch.marks);
        harness.source().accepted().await.expect("acknowledged");
    }
    assert!(events.iter().all(|event| !event.contains("bad")), "{events:?}");
    assert_eq!((events.len(), refused.len()), (9, 3), "{events:?} {refused:?}");
    for ((reason, item), expected) in refused.iter().zip(["UTF-8", "colon", "name"]) {
        assert!(reason.contains(expected) && &item[..] == br#"{"id": "bad"}"#, "{reason}");
    }
    until("the server counts all as acknowledged", async || subject.unacknowledged().await == Some(0)).await;
}

/// Nothing is acknowledged after the commit, as by a crash or a lost acknowledgement.
#[tokio::test]
async fn slow_a_lost_acknowledgement_of_an_unreadable_message_is_repeated() {
    if missing(&[Peer::Nats]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path());
    let address = format!("nats://127.0.0.1:{}", server.port);
    let context = jetstream::new(async_nats::connect(&address).await.expect("a connection"));
    let mut subject = Conforming { address, context, number: 0 };
    let mut harness = subject.harness().await;
    publish_raw(server.port, "S1.quakes", b"no colon\r\n", r#"{"id": "bad"}"#);
    let batch = harness.next().await;
    assert_eq!((batch.events.count(), batch.refused.len()), (0, 1));
    harness.commit(batch.marks);
    harness.crash();
    let mut refused = 0;
    let taking = async {
        loop {
            let batch = harness.next().await;
            refused += batch.refused.len();
            harness.commit(batch.marks);
            harness.source().accepted().await.expect("acknowledged");
        }
    };
    let acknowledged =
        until("the server counts it as acknowledged", async || subject.unacknowledged().await == Some(0));
    tokio::select! {
        () = acknowledged => {}
        () = taking => {}
    }
    assert_eq!(refused, 0, "it is recorded once");
}

#[tokio::test]
async fn an_unreachable_server_is_no_error_of_the_examination() {
    if missing(&[Peer::Nats]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path());
    let address = format!("nats://127.0.0.1:{}", server.port);
    let context = jetstream::new(async_nats::connect(&address).await.expect("a connection"));
    let mut harness = Conforming { address, context, number: 0 }.harness().await;
    harness.options["timeout"] = json!("200ms");
    let mut stream = super::stream(harness.setting(), Vec::new()).expect("options");
    stream.connect().await.unwrap_or_else(|error| panic!("{error}"));
    drop(server);
    let found = stream.unreadable().await.unwrap_or_else(|error| panic!("{error}"));
    assert!(found.is_none() && stream.lost_connections.take(), "the server is asked again later");
}

struct Conforming {
    address: String,
    context: jetstream::Context,
    /// The number of the present stream.
    number: u32,
}

impl Conforming {
    fn name(&self) -> String {
        format!("S{}", self.number)
    }

    async fn send(&self, body: String) {
        let sent = self.context.publish(format!("{}.quakes", self.name()), body.into()).await.expect("sent");
        sent.await.expect("kept");
    }
}

#[async_trait(?Send)]
impl Subject for Conforming {
    async fn harness(&mut self) -> Harness {
        self.number += 1;
        let subjects = vec![format!("{}.>", self.name())];
        let config = stream::Config { name: self.name(), subjects, ..Default::default() };
        let stream = self.context.create_stream(config).await.expect("a stream");
        // A consumer that redelivers earlier than those that the source creates.
        let config = pull::Config {
            durable_name: Some("tests".to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: Duration::from_millis(500),
            max_ack_pending: 4_000,
            ..pull::Config::default()
        };
        stream.create_consumer(config).await.expect("a consumer");
        Harness::new("nats", json!({"servers": [self.address], "stream": self.name(), "consumer": "tests"}))
    }

    async fn put(&mut self, numbers: Range<u32>) {
        for number in numbers {
            self.send(format!("{{\"id\": \"q{number}\"}}")).await;
        }
    }

    async fn put_oversize(&mut self, number: u32) -> Oversize {
        self.send(json!({"id": format!("q{number}"), "tags": ["x".repeat(900_000)]}).to_string()).await;
        Oversize::Delivered
    }

    async fn unacknowledged(&mut self) -> Option<usize> {
        let stream = self.context.get_stream(self.name()).await.expect("it is there");
        let mut consumer = stream.get_consumer::<pull::Config>("tests").await.expect("it is there");
        let info = consumer.info().await.expect("asked");
        Some(info.num_pending as usize + info.num_ack_pending)
    }

    async fn silent(&mut self) -> Option<Json> {
        let address = format!("nats://{}", silent_server().await);
        Some(json!({"servers": [address], "stream": "S", "timeout": "200ms"}))
    }
}

#[tokio::test]
async fn slow_it_conforms() {
    if missing(&[Peer::Nats]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path());
    let address = format!("nats://127.0.0.1:{}", server.port);
    let context = jetstream::new(async_nats::connect(&address).await.expect("a connection"));
    exercise(&mut Conforming { address, context, number: 0 }).await;
}
