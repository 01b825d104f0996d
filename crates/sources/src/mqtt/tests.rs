use std::{
    fs,
    io::{BufRead, BufReader},
    ops::Range,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use async_trait::async_trait;
use rumqttc::v5::{
    AsyncClient, Event,
    mqttbytes::{
        QoS,
        v5::{Packet, PublishProperties},
    },
};
use serde_json::{Value as Json, json};
use tocsin_test_peers::{Peer, missing, reserved_port};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{
    conformance::{Oversize, Subject, exercise, silent_server},
    source::{OpenSource, SourceOutput},
    testing::{Harness, shown, taken, wait_timeout},
};

/// A Mosquitto broker with persistent sessions.
struct Broker {
    child: Child,
    port: u16,
}

impl Broker {
    fn start(folder: &Path) -> Broker {
        Broker::start_with(folder, "")
    }

    /// Starts a broker with further lines in its configuration.
    fn start_with(folder: &Path, more: &str) -> Broker {
        let port = reserved_port();
        let file = folder.join("mosquitto.conf");
        let lines = "allow_anonymous true\nmax_queued_messages 10000\nlog_dest stderr";
        fs::write(&file, format!("listener {port} 127.0.0.1\n{lines}\n{more}\n")).expect("a file");
        let mut child = Command::new(Peer::Mosquitto.path())
            .args(["-v", "-c"])
            .arg(&file)
            .stderr(Stdio::piped())
            .spawn()
            .expect("mosquitto starts");
        let mut log = BufReader::new(child.stderr.take().expect("it is piped")).lines().map_while(Result::ok);
        assert!(log.by_ref().any(|line| line.ends_with(" running")), "mosquitto does not start");
        // The broker ends when its log is no longer read.
        std::thread::spawn(move || log.for_each(drop));
        Broker { child, port }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The trace context of every message.
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Publishes messages and waits until the broker has them all.
async fn publish(port: u16, texts: Vec<String>) {
    publish_to(port, texts.into_iter().map(|text| ("quakes/new", text, false)).collect()).await;
}

/// Publishes messages to topics, each retained or not, and waits until the broker has them all.
async fn publish_to(port: u16, texts: Vec<(&str, String, bool)>) {
    let mut options = rumqttc::v5::MqttOptions::new("writer", "127.0.0.1", port);
    options.set_keep_alive(Duration::from_secs(60));
    let (client, mut events) = AsyncClient::new(options, texts.len().max(1));
    let mut open = texts.len();
    for (topic, text, is_retained) in texts {
        let user_properties = vec![("traceparent".to_owned(), PARENT.to_owned())];
        let properties = PublishProperties { user_properties, ..PublishProperties::default() };
        let sent = client.publish_with_properties(topic, QoS::AtLeastOnce, is_retained, text, properties);
        sent.await.expect("a request");
    }
    while open > 0 {
        if let Event::Incoming(Packet::PubAck(_)) = events.poll().await.expect("a connection") {
            open -= 1;
        }
    }
}

fn quakes(from: usize, to: usize) -> Vec<String> {
    (from..to).map(|number| format!("{{\"id\": \"q{number}\"}}")).collect()
}

#[tokio::test]
async fn messages_are_taken_once_over_crashes() {
    if missing(&[Peer::Mosquitto]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let broker = Broker::start(folder.path());
    let mut harness = Harness::new("mqtt", json!({"host": "127.0.0.1", "port": broker.port, "topics": ["quakes/#"]}));
    // The session begins with the subscription, so the first message is sent until one arrives.
    let first = loop {
        publish(broker.port, vec!["{\"id\": \"first\"}".to_owned()]).await;
        if let Ok(batch) = tokio::time::timeout(Duration::from_millis(200), harness.source().next()).await {
            let batch = batch.unwrap_or_else(|error| panic!("{error}"));
            if batch.events.count() > 0 {
                break batch;
            }
            harness.commit(batch.marks);
        }
    };
    let places: Vec<String> = first.events.traces().iter().map(|(_, context)| context.parent_text()).collect();
    assert_eq!(places, [PARENT]);
    harness.commit(first.marks);
    harness.source().accepted().await.expect("acknowledged");

    publish(broker.port, quakes(0, 100)).await;
    let mut events = Vec::new();
    let mut portions = 0;
    while events.len() < 300 {
        let batch = tokio::time::timeout(wait_timeout(), harness.source().next()).await.expect("in time");
        let batch = batch.unwrap_or_else(|error| panic!("{error}"));
        portions += 1;
        // Before the commit, after it, and sometimes not at all.
        if portions % 4 == 1 {
            harness.crash();
            continue;
        }
        events.extend(shown(&batch.events).into_iter().filter(|event| !event.contains("first")));
        harness.commit(batch.marks);
        if portions % 4 == 2 {
            harness.crash();
        } else {
            harness.source().accepted().await.expect("acknowledged");
        }
        if portions == 2 {
            publish(broker.port, quakes(100, 300)).await;
        }
    }
    events.sort();
    let mut expected: Vec<String> = quakes(0, 300).iter().map(|text| taken(text)).collect();
    expected.sort();
    assert_eq!(events, expected);
}

#[tokio::test]
async fn a_location_takes_whole_messages() {
    if missing(&[Peer::Mosquitto]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let broker = Broker::start(folder.path());
    let mut harness = Harness::new("mqtt", json!({"host": "127.0.0.1", "port": broker.port, "topics": ["quakes/#"]}));
    harness.output = SourceOutput::Messages { bytes_max: 1 };
    let batch = loop {
        publish(broker.port, vec!["no JSON".to_owned()]).await;
        if let Ok(batch) = tokio::time::timeout(Duration::from_millis(200), harness.source().next()).await {
            let batch = batch.unwrap_or_else(|error| panic!("{error}"));
            if !batch.messages.is_empty() {
                break batch;
            }
        }
    };
    let message = &batch.messages[0];
    assert_eq!(&message.body[..], b"no JSON");
    let header = |name: &str, value: &str| message.headers.contains(&(name.to_owned(), value.to_owned()));
    assert!(header("mqtt-topic", "quakes/new") && header("traceparent", PARENT), "{:?}", message.headers);
}

#[tokio::test]
async fn a_message_above_a_mebibyte_is_taken() {
    if missing(&[Peer::Mosquitto]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let broker = Broker::start(folder.path());
    let mut harness = Harness::new("mqtt", json!({}));
    harness.output = SourceOutput::Messages { bytes_max: 8 << 20 };
    subscribed(&mut harness, broker.port, &["quakes/#"]).await;
    // A broker drops a packet that its client does not accept, and treats it as delivered.
    let long = "x".repeat(5 << 20);
    publish(broker.port, vec!["short".to_owned(), long.clone(), long.clone(), "last".to_owned()]).await;
    let mut bodies = Vec::new();
    while bodies.len() < 4 {
        let batch = harness.next().await;
        assert!(batch.messages.len() <= 2, "a batch ends with a long message");
        bodies.extend(batch.messages.iter().map(|message| message.body.len()));
        harness.commit(batch.marks);
        harness.source().accepted().await.expect("acknowledged");
    }
    assert_eq!(bodies, [5, long.len(), long.len(), 4]);
}

/// A source of these topics, whose subscriptions are established.
async fn subscribed(harness: &mut Harness, port: u16, topics: &[&str]) {
    harness.options = json!({"host": "127.0.0.1", "port": port, "topics": topics});
    harness.crash();
    // First the filters of the session are stored, then the broker has responded to all requests.
    for step in ["stored", "subscribed"] {
        let batch = harness.next().await;
        assert_eq!(batch.events.count(), 0, "{step}: nothing was published");
        harness.commit(batch.marks);
        harness.source().accepted().await.expect("nothing is to be acknowledged");
    }
}

fn event(id: &str) -> String {
    format!("{{\"id\": \"{id}\"}}")
}

/// Takes events up to the one with the id `end`.
async fn up_to_end(harness: &mut Harness) -> Vec<String> {
    let mut events = Vec::new();
    loop {
        let taken = harness.take().await;
        let is_end = taken.iter().any(|event| event.contains("\"end\""));
        events.extend(taken.into_iter().filter(|event| !event.contains("\"end\"")));
        if is_end {
            return events;
        }
    }
}

#[tokio::test]
async fn d_a_persistent_session_gets_the_subscriptions_of_the_definition() {
    if missing(&[Peer::Mosquitto]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let broker = Broker::start(folder.path());
    let mut harness = Harness::new("mqtt", json!({}));
    subscribed(&mut harness, broker.port, &["one/#"]).await;
    publish_to(broker.port, vec![("one/x", event("a"), false), ("one/x", event("end"), false)]).await;
    assert_eq!(up_to_end(&mut harness).await, [taken(&event("a"))]);
    // Another topic replaces the first: a queued message of the old one is discarded.
    harness.crash();
    publish_to(broker.port, vec![("one/x", event("waiting"), false)]).await;
    subscribed(&mut harness, broker.port, &["two/#"]).await;
    let messages = [("one/x", "old"), ("two/x", "new"), ("two/x", "end")];
    publish_to(broker.port, messages.map(|(topic, id)| (topic, event(id), false)).to_vec()).await;
    assert_eq!(up_to_end(&mut harness).await, [taken(&event("new"))]);
    // A topic is added, and messages are published while the session is disconnected.
    subscribed(&mut harness, broker.port, &["three/+/x", "two/#"]).await;
    harness.crash();
    let messages = [("three/a/x", "b"), ("two/y", "c"), ("one/x", "d"), ("three/end/x", "end")];
    publish_to(broker.port, messages.map(|(topic, id)| (topic, event(id), false)).to_vec()).await;
    assert_eq!(up_to_end(&mut harness).await, [taken(&event("b")), taken(&event("c"))]);
}

#[tokio::test]
async fn d_a_session_of_an_older_version_gives_only_the_topics_of_the_definition() {
    if missing(&[Peer::Mosquitto]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let broker = Broker::start(folder.path());
    let mut harness = Harness::new("mqtt", json!({}));
    subscribed(&mut harness, broker.port, &["one/#"]).await;
    // The older version stored no filters.
    harness.marks.clear();
    subscribed(&mut harness, broker.port, &["two/#"]).await;
    let messages = [("one/x", "old"), ("two/x", "new"), ("two/x", "end")];
    publish_to(broker.port, messages.map(|(topic, id)| (topic, event(id), false)).to_vec()).await;
    assert_eq!(up_to_end(&mut harness).await, [taken(&event("new"))]);
}

#[tokio::test]
async fn d_a_message_that_several_topics_match_is_one_event() {
    if missing(&[Peer::Mosquitto]) {
        return;
    }
    for topics in [&["a/#", "a/b", "a/+"][..], &["+/b", "a/+"], &["+/b", "a/#", "a/b", "+/+"], &["a/+", "a/b", "a/b"]] {
        // A session for each: one that disconnects between the copies of a message may deliver it twice.
        let folder = tempfile::tempdir().expect("a folder");
        let broker = Broker::start(folder.path());
        let mut harness = Harness::new("mqtt", json!({}));
        subscribed(&mut harness, broker.port, topics).await;
        let messages = ["1", "2", "2", "3", "end"];
        publish_to(broker.port, messages.map(|id| ("a/b", event(id), false)).to_vec()).await;
        let expected = ["1", "2", "2", "3"].map(|id| taken(&event(id)));
        assert_eq!(up_to_end(&mut harness).await, expected, "{topics:?}: what is the same twice is two messages");
    }
}

#[tokio::test]
async fn d_a_retained_message_is_one_event_and_an_empty_one_does_not_stop_others() {
    if missing(&[Peer::Mosquitto]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let broker = Broker::start(folder.path());
    publish_to(broker.port, vec![("kept/a", event("kept"), true)]).await;
    let mut harness = Harness::new("mqtt", json!({}));
    harness.options = json!({"host": "127.0.0.1", "port": broker.port, "topics": ["kept/#", "+/a"]});
    assert_eq!(harness.take_events(1).await, [taken(&event("kept"))]);
    // The subscriptions are renewed in every possible way.
    subscribed(&mut harness, broker.port, &["live"]).await;
    subscribed(&mut harness, broker.port, &["kept/#", "live"]).await;
    let messages = vec![("kept/a", String::new(), true), ("live", event("b"), false), ("live", event("end"), false)];
    publish_to(broker.port, messages).await;
    let mut refused = Vec::new();
    let mut events = Vec::new();
    while !events.iter().any(|event: &String| event.contains("\"end\"")) {
        let batch = harness.next().await;
        refused.extend(batch.refused.iter().map(|refusal| refusal.reason.clone()));
        events.extend(shown(&batch.events));
        harness.commit(batch.marks);
        harness.source().accepted().await.expect("acknowledged");
    }
    assert_eq!(events, [taken(&event("b")), taken(&event("end"))]);
    assert_eq!(refused, ["is empty, and should be a JSON value"]);
}

#[tokio::test]
async fn a_broker_can_require_a_client_certificate() {
    if missing(&[Peer::Mosquitto]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let key = rcgen::KeyPair::generate().expect("a key");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).expect("names").self_signed(&key).expect("a certificate");
    let (certificate_file, key_file) = (folder.path().join("certificate.pem"), folder.path().join("key.pem"));
    fs::write(&certificate_file, certificate.pem()).expect("written");
    fs::write(&key_file, key.serialize_pem()).expect("written");
    let (shown, key) = (certificate_file.display(), key_file.display());
    let more = format!("cafile {shown}\ncertfile {shown}\nkeyfile {key}\nrequire_certificate true");
    let broker = Broker::start_with(folder.path(), &more);
    let options = json!({
        "host": "127.0.0.1", "port": broker.port, "topics": ["a"], "tls": true, "ca_file": &certificate_file,
    });
    let mut harness = Harness::new("mqtt", options);
    let stored = harness.next().await;
    harness.commit(stored.marks);
    harness.source().accepted().await.expect("nothing is to be acknowledged");
    assert!(harness.try_next().await.is_err(), "the broker requires a certificate");
    harness.crash();
    harness.options["certificate_file"] = json!(&certificate_file);
    harness.options["key_file"] = json!(&key_file);
    let subscribed = harness.try_next().await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(subscribed.events.count(), 0);
}

/// The packets of a client, each with its type and flags.
struct Packets(TcpStream);

impl Packets {
    /// The next packet: first byte and the rest; `None` after the last.
    async fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let first = self.0.read_u8().await.ok()?;
        let (mut length, mut shift) = (0, 0);
        loop {
            let byte = usize::from(self.0.read_u8().await.ok()?);
            length |= (byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let mut rest = vec![0; length];
        self.0.read_exact(&mut rest).await.ok()?;
        Some((first, rest))
    }

    async fn send(&mut self, first: u8, rest: &[u8]) {
        let length = u8::try_from(rest.len()).expect("short");
        self.0.write_all(&[&[first, length], rest].concat()).await.expect("sent");
    }

    /// Sends a message of QoS 1 to the topic `a`.
    async fn publish(&mut self, id: u8, text: &str, is_duplicate: bool) {
        let first = if is_duplicate { 0x3a } else { 0x32 };
        self.send(first, &[&[0, 1, b'a', 0, id, 0], text.as_bytes()].concat()).await;
    }

    /// Accepts the next client with a present session, up to its subscription.
    async fn accept(listener: &TcpListener) -> Packets {
        let mut packets = Packets(listener.accept().await.expect("a client").0);
        assert_eq!(packets.next().await.expect("CONNECT").0, 0x10);
        // The keep-alive interval is one second.
        packets.send(0x20, &[1, 0, 3, 0x13, 0, 1]).await;
        let (first, rest) = packets.next().await.expect("SUBSCRIBE");
        assert_eq!(first, 0x82);
        packets.send(0x90, &[rest[0], rest[1], 0, 1]).await;
        packets
    }
}

#[tokio::test]
async fn a_full_memory_stops_no_ping_and_loses_no_message() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (pinged, has_pinged) = tokio::sync::oneshot::channel();
    let broker = async {
        let mut packets = Packets::accept(&listener).await;
        for (id, text) in [(1, "a"), (2, "b"), (3, "c"), (4, "d")] {
            packets.publish(id, &event(text), false).await;
        }
        // Nothing is accepted yet.
        assert_eq!(packets.next().await.expect("PINGREQ").0, 0xc0);
        packets.send(0xd0, &[]).await;
        pinged.send(()).expect("the source waits");
        let mut acknowledged = Vec::new();
        while let Some((first, rest)) = packets.next().await {
            match first {
                0x40 => acknowledged.push(rest[1]),
                0xe0 => break,
                _ => packets.send(0xd0, &[]).await,
            }
        }
        assert_eq!(acknowledged, [1, 2]);
        drop(packets);
        let mut packets = Packets::accept(&listener).await;
        for (id, text) in [(3, "c"), (4, "d")] {
            packets.publish(id, &event(text), true).await;
        }
        packets
    };
    let harness = Harness::new("mqtt", json!({"host": "127.0.0.1", "port": port, "topics": ["a"]}));
    let mut session = super::session(harness.setting(), Vec::new()).expect("options");
    // Two messages fit.
    session.memory = super::Memory { bytes_max: 2 * event("a").len() as u32 + 1, wait: Duration::ZERO };
    let source = async {
        let mut has_pinged = Some(has_pinged);
        let mut events = Vec::new();
        while events.len() < 4 {
            let batch = session.next().await.unwrap_or_else(|error| panic!("{error}"));
            events.extend(shown(&batch.events));
            if !events.is_empty()
                && let Some(pinged) = has_pinged.take()
            {
                pinged.await.expect("a ping");
            }
            session.accepted().await.expect("acknowledged");
        }
        events
    };
    let both = async { tokio::join!(broker, source) };
    let (_, events) = tokio::time::timeout(wait_timeout(), both).await.expect("in time");
    assert_eq!(events, ["a", "b", "c", "d"].map(|id| taken(&event(id))));
}

struct Conforming {
    port: u16,
    /// The number of the present topic.
    number: u32,
}

impl Conforming {
    async fn send(&self, texts: Vec<String>) {
        let topic = format!("quakes/{}/new", self.number);
        publish_to(self.port, texts.into_iter().map(|text| (topic.as_str(), text, false)).collect()).await;
    }
}

#[async_trait(?Send)]
impl Subject for Conforming {
    async fn harness(&mut self) -> Harness {
        self.number += 1;
        let (topic, client) = (format!("quakes/{}/#", self.number), format!("reader-{}", self.number));
        let options = json!({"host": "127.0.0.1", "port": self.port, "topics": [topic], "client_id": client});
        let mut harness = Harness::new("mqtt", options);
        // The session begins with the subscription.
        for _ in ["stored", "subscribed"] {
            let batch = harness.next().await;
            harness.commit(batch.marks);
            harness.source().accepted().await.expect("nothing is to be acknowledged");
        }
        harness
    }

    async fn put(&mut self, numbers: Range<u32>) {
        self.send(quakes(numbers.start as usize, numbers.end as usize)).await;
    }

    async fn put_oversize(&mut self, number: u32) -> Oversize {
        self.send(vec![json!({"id": format!("q{number}"), "tags": ["x".repeat(3_000_000)]}).to_string()]).await;
        Oversize::Delivered
    }

    async fn silent(&mut self) -> Option<Json> {
        let port = silent_server().await.port();
        Some(json!({"host": "127.0.0.1", "port": port, "topics": ["a"], "timeout": "1s"}))
    }
}

#[tokio::test]
async fn slow_it_conforms() {
    if missing(&[Peer::Mosquitto]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let broker = Broker::start(folder.path());
    exercise(&mut Conforming { port: broker.port, number: 0 }).await;
}
