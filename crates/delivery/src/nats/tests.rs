use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use async_nats::jetstream::{self, stream};
use async_trait::async_trait;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tocsin_model::id::NotificationBatchId;
use tocsin_test_peers::{Peer, missing};

use crate::{
    channel::{Context, OpenChannel, Outgoing},
    conformance::{Subject, exercise, silent_server},
    testing::{channel, context, deliver, outgoing},
};

/// A nats-server of the system with JetStream.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// Starts it on this port, or on a free one.
    fn start(folder: &Path, port: Option<u16>) -> Server {
        let port = port.map_or("-1".to_owned(), |port| port.to_string());
        let mut child = Command::new(Peer::Nats.path())
            .args(["-a", "127.0.0.1", "-p", &port, "-js", "-sd"])
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
        // A full pipe of its log would block the server.
        std::thread::spawn(move || log.for_each(drop));
        Server { child, port: port.expect("it says where it listens") }
    }

    fn address(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn open(server: &str) -> Box<dyn OpenChannel> {
    let name = "broker".parse().expect("a name");
    let options = json!({ "servers": [server], "subject_prefix": "notices.", "timeout": "10s" });
    crate::open(&name, &channel("nats", options, 16), &context()).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn many(count: u32) -> Vec<Outgoing> {
    (0..count).map(|number| outgoing(number, "kobe.quakes")).collect()
}

#[tokio::test]
async fn a_stream_keeps_each_message_once() {
    if missing(&[Peer::Nats]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), None);
    let client = async_nats::connect(server.address()).await.expect("a connection");
    let context = jetstream::new(client);
    let config =
        stream::Config { name: "NOTICES".into(), subjects: vec!["notices.*.quakes".into()], ..Default::default() };
    let mut stream = context.create_stream(config).await.expect("a stream");

    let channel = open(&server.address());
    assert_eq!(channel.down(), None);
    let shown = deliver(&*channel, many(500)).await;
    assert!(shown.iter().all(|shown| shown.starts_with("delivered stream NOTICES, sequence ")), "{shown:?}");
    let again = deliver(&*channel, many(2)).await;
    assert!(again.iter().all(|shown| shown.ends_with("which had it already")), "{again:?}");
    assert_eq!(stream.info().await.expect("it is there").state.messages, 500);
    assert!(channel.probe().await.is_ok_and(|text| text.ends_with("keeps streams")));

    let consumer = stream.create_consumer(jetstream::consumer::pull::Config::default()).await.expect("a consumer");
    let mut messages = consumer.fetch().max_messages(500).messages().await.expect("messages");
    let mut ids = Vec::new();
    while let Some(message) = messages.next().await {
        let message = message.expect("a message");
        assert_eq!(message.subject.as_str(), "notices.kobe.quakes");
        let headers = message.headers.as_ref().expect("headers");
        ids.push(headers.get("Tocsin-Message-Id").expect("an id").to_string());
        let body: Value = serde_json::from_slice(&message.payload).expect("JSON");
        assert_eq!((&body["type"], &body["data"]["place"]), (&json!("quake"), &json!("Kobe")));
    }
    ids.sort();
    let mut expected: Vec<String> = (0..500).map(|number| format!("n-7-{number}.test")).collect();
    expected.sort();
    assert_eq!(ids, expected);

    // A subject without a stream is not delivered.
    let mut lost = outgoing(0, "kobe.storms");
    lost.id.batch = NotificationBatchId(8);
    assert_eq!(
        deliver(&*channel, vec![lost, outgoing(1, "*.quakes"), outgoing(2, "a..b")])
            .await
            .iter()
            .map(|text| &text[..20])
            .collect::<Vec<_>>(),
        ["deferred Answer no s", "refused Address `not", "refused Address `not"],
    );
    channel.close().await;
}

#[tokio::test]
async fn without_a_server_messages_wait_and_go_on_when_it_is_back() {
    if missing(&[Peer::Nats]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), None);
    let (address, port) = (server.address(), server.port);
    drop(server);
    let channel = open(&address);
    let shown = deliver(&*channel, many(1)).await;
    assert!(shown[0].starts_with("deferred Connection no connection"), "{shown:?}");
    assert!(channel.down().is_some() && channel.probe().await.is_err());

    let server = Server::start(folder.path(), Some(port));
    let client = async_nats::connect(server.address()).await.expect("a connection");
    let config = stream::Config { name: "NOTICES".into(), subjects: vec!["notices.>".into()], ..Default::default() };
    jetstream::new(client).create_stream(config).await.expect("a stream");
    let shown = deliver(&*channel, many(1)).await;
    assert!(shown[0].starts_with("delivered stream NOTICES"), "{shown:?}");
    assert_eq!(channel.down(), None);
}

struct Conforming {
    server: String,
    stream: stream::Stream,
}

fn open_in(server: &str, timeout: &str, context: &Context) -> Box<dyn OpenChannel> {
    let name = "broker".parse().expect("a name");
    let options = json!({ "servers": [server], "subject_prefix": "notices.", "timeout": timeout });
    crate::open(&name, &channel("nats", options, 16), context).unwrap_or_else(|problems| panic!("{problems:?}"))
}

#[async_trait]
impl Subject for Conforming {
    async fn open(&self, context: Context) -> Box<dyn OpenChannel> {
        open_in(&self.server, "10s", &context)
    }

    async fn open_silent(&self, context: Context) -> Option<Box<dyn OpenChannel>> {
        Some(open_in(&format!("nats://{}", silent_server().await), "200ms", &context))
    }

    fn outgoing(&self, ordinal: u32) -> Outgoing {
        outgoing(ordinal, "kobe.quakes")
    }

    /// `Nats-Msg-Id` differs for each recipient of a multicast.
    fn id_of(&self, outgoing: &Outgoing) -> String {
        format!("{}.{}", outgoing.message.message_id, outgoing.ticket.ordinal)
    }

    /// The stream keeps each id once.
    async fn received_ids(&self) -> Vec<String> {
        let mut ids = Vec::new();
        for sequence in 1.. {
            let Ok(message) = self.stream.get_raw_message(sequence).await else { break };
            ids.extend(message.headers.get("Nats-Msg-Id").map(ToString::to_string));
        }
        ids
    }

    fn in_flight_max(&self) -> usize {
        2 * 16
    }
}

#[tokio::test]
async fn slow_it_conforms() {
    if missing(&[Peer::Nats]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), None);
    let client = async_nats::connect(server.address()).await.expect("a connection");
    let config = stream::Config { name: "NOTICES".into(), subjects: vec!["notices.>".into()], ..Default::default() };
    let stream = jetstream::new(client).create_stream(config).await.expect("a stream");
    exercise(&Conforming { server: server.address(), stream }).await;
}
