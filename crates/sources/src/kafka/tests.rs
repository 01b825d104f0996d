use std::{
    io::{BufRead, BufReader, Lines, Write},
    ops::Range,
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::OnceLock,
};

use async_trait::async_trait;
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value as Json, json};
use tocsin_model::mark::Mark;
use tocsin_test_peers::{Peer, missing};
use tokio::sync::{Mutex, MutexGuard};

use crate::{
    conformance::{Oversize, Subject, exercise, silent_server},
    source::{Message, SourceBatch, SourceOutput},
    testing::{Harness, shown, taken},
};

/// An Apache Kafka broker with a producer, in a process that ends when its input is closed.
struct Broker {
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    _child: Child,
    /// Ports of listeners: plain, TLS, with SASL login, with TLS and login.
    ports: Vec<u16>,
    /// Data folder of the broker, which removes it when it ends.
    folder: PathBuf,
}

impl Broker {
    /// All tests share one, each with its own topics.
    async fn shared() -> MutexGuard<'static, Broker> {
        static SHARED: OnceLock<Mutex<Broker>> = OnceLock::new();
        SHARED.get_or_init(|| Mutex::new(Broker::start())).lock().await
    }

    fn start() -> Broker {
        let folder = tempfile::tempdir().expect("a folder").keep();
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("names");
        let certificate = params.self_signed(&key).expect("a certificate");
        std::fs::write(folder.join("certificate.pem"), certificate.pem()).expect("written");
        std::fs::write(folder.join("key.pem"), key.serialize_pem()).expect("written");
        let mut child = Command::new("java")
            .args(["-Xmx384m", "-cp", &format!("{}/*", Peer::Kafka.path().display())])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/kafka/Broker.java"))
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("java starts");
        let mut output = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let ready = output.next().expect("it starts").expect("text");
        let ports = ready.split(' ').map(|port| port.parse().expect("a port")).collect();
        Broker { input: child.stdin.take().expect("it is piped"), output, _child: child, ports, folder }
    }

    /// Runs a command, and returns its answer.
    fn run(&mut self, command: impl AsRef<str>) -> String {
        writeln!(self.input, "{}", command.as_ref()).expect("it listens");
        let answer = self.output.next().expect("it answers").expect("text");
        assert!(!answer.starts_with("failed"), "{}: {answer}", command.as_ref());
        answer
    }

    /// A source of a topic, over the plain connection.
    fn source(&self, topic: &str) -> Harness {
        Harness::new("kafka", json!({"servers": [format!("127.0.0.1:{}", self.ports[0])], "topics": [topic]}))
    }
}

fn quakes(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    let mut quakes: Vec<String> =
        numbers.into_iter().map(|number| taken(&format!("{{\"id\": \"q{number}\"}}"))).collect();
    quakes.sort_unstable();
    quakes
}

/// The next batch that is not empty; batches with positions only are committed.
async fn next(harness: &mut Harness) -> SourceBatch {
    loop {
        let portion = harness.next().await;
        if portion.events.count() > 0 || !portion.refused.is_empty() {
            return portion;
        }
        harness.commit(portion.marks);
    }
}

/// Takes this many events, and returns them in order, with the rejected items.
async fn take(harness: &mut Harness, count: usize) -> (Vec<String>, Vec<String>) {
    let (mut events, mut refused) = (Vec::new(), Vec::new());
    while events.len() < count {
        let portion = next(harness).await;
        events.extend(shown(&portion.events));
        refused.extend(portion.refused.into_iter().map(|refusal| refusal.reason));
        harness.commit(portion.marks);
        harness.source().accepted().await.unwrap_or_else(|error| panic!("{error}"));
    }
    events.sort_unstable();
    (events, refused)
}

/// As `take`, but errors come first, for example while leaders are elected: the source is reopened after each.
async fn take_after_trouble(harness: &mut Harness, count: usize) -> Vec<String> {
    let mut events = Vec::new();
    while events.len() < count {
        match harness.try_next().await {
            Ok(portion) => {
                events.extend(shown(&portion.events));
                harness.commit(portion.marks);
            }
            Err(_) => harness.crash(),
        }
    }
    events.sort_unstable();
    events
}

#[tokio::test]
async fn messages_are_taken_once_over_crashes() {
    if missing(&[Peer::Kafka]) {
        return;
    }
    let mut broker = Broker::shared().await;
    broker.run("create crashes 3");
    let (mut sent, mut events) = (0, Vec::new());
    let mut harness = broker.source("crashes");
    for turn in 0.. {
        if events.len() == 720 {
            break;
        }
        // Some messages are sent before the source starts, others while it runs.
        let more = if turn == 0 { 8 } else { usize::from(events.len() == sent || turn % 2 == 1) };
        for _ in 0..more.min((720 - sent) / 40) {
            let packing = ["none", "gzip", "snappy", "lz4", "zstd"][sent / 40 % 5];
            broker.run(format!("send crashes {} {packing} {sent} {}", sent / 40 % 3, sent + 40));
            sent += 40;
        }
        let portion = next(&mut harness).await;
        // A crash before the commit: everything is delivered again.
        if turn % 3 == 0 {
            harness.crash();
            continue;
        }
        let found = shown(&portion.events);
        for (first, context) in portion.events.traces().iter() {
            let number: u32 = found[first as usize]
                .split('"')
                .find_map(|word| word.strip_prefix('q')?.parse().ok())
                .expect("a quake has a number");
            assert_eq!(context.parent_text(), format!("00-{:032x}-00f067aa0ba902b7-01", number + 1));
        }
        assert_eq!(portion.events.traces().iter().count(), found.len());
        events.extend(found);
        harness.commit(portion.marks);
        if turn % 3 == 1 {
            // A crash after it: nothing was acknowledged.
            harness.crash();
        } else {
            harness.source().accepted().await.expect("committed");
        }
    }
    events.sort_unstable();
    assert_eq!(events, quakes(0..720));
    // The offsets of a crash are committed with those of the next batch.
    broker.run("send crashes 0 none 720 721");
    broker.run("send crashes 1 none 721 722");
    broker.run("send crashes 2 none 722 723");
    assert_eq!(take(&mut harness, 3).await.0, quakes(720..723));
    assert_eq!(broker.run("offsets tocsin-app-source crashes"), "{0=241, 1=241, 2=241}");
}

#[tokio::test]
async fn aborted_transactions_give_no_events() {
    if missing(&[Peer::Kafka]) {
        return;
    }
    let mut broker = Broker::shared().await;
    broker.run("create transactions 1");
    broker.run("send transactions 0 zstd+commit 0 5");
    broker.run("send transactions 0 zstd+abort 5 10");
    broker.run("send transactions 0 none 10 12");
    broker.run("send transactions 0 zstd+commit 12 14");
    let mut harness = broker.source("transactions");
    assert_eq!(take(&mut harness, 9).await, (quakes((0..5).chain(10..14)), Vec::new()));
}

#[tokio::test]
async fn truncated_and_recreated_logs_are_continued() {
    if missing(&[Peer::Kafka]) {
        return;
    }
    let mut broker = Broker::shared().await;
    broker.run("create cut 1");
    broker.run("send cut 0 none 0 10");
    let mut harness = broker.source("cut");
    assert_eq!(take(&mut harness, 10).await.0, quakes(0..10));
    harness.crash();
    // Messages are deleted before they are taken: that is reported.
    broker.run("send cut 0 none 10 30");
    broker.run("cut cut 0 20");
    let (events, refused) = take(&mut harness, 10).await;
    assert_eq!((events, refused.len()), (quakes(20..30), 1));
    assert!(refused[0].contains("messages 10 to 19 of cut/0 were deleted"), "{refused:?}");
    // An offset beyond the end of the log, as after the loss of a leader.
    harness.crash();
    let mark = harness.marks[0].clone();
    let text = String::from_utf8(mark.value.expect("a mark").to_vec()).expect("text");
    harness.commit(vec![Mark::set(mark.part, text.replace("\"next\":30", "\"next\":99"))]);
    let waits = tokio::time::timeout(std::time::Duration::from_secs(3), harness.source().next());
    assert!(waits.await.is_err(), "there was something");
    broker.run("send cut 0 none 30 35");
    assert_eq!(take(&mut harness, 5).await, (quakes(30..35), Vec::new()));
    // Another topic of the same name replaces it meanwhile.
    broker.run("delete cut");
    broker.run("create cut 2");
    broker.run("send cut 0 none 40 50");
    broker.run("send cut 1 none 50 60");
    assert_eq!(take_after_trouble(&mut harness, 20).await, quakes(40..60));
}

#[tokio::test]
async fn new_partitions_are_found_and_the_start_can_be_latest() {
    if missing(&[Peer::Kafka]) {
        return;
    }
    let mut broker = Broker::shared().await;
    broker.run("create grows 1");
    broker.run("send grows 0 none 0 10");
    let mut harness = broker.source("grows");
    harness.options["start"] = json!("latest");
    let portion = harness.next().await;
    assert_eq!(portion.events.count(), 0);
    harness.commit(portion.marks);
    // Messages after that are taken, whatever crashes.
    harness.crash();
    broker.run("send grows 0 none 10 12");
    assert_eq!(take(&mut harness, 2).await.0, quakes(10..12));
    broker.run("grow grows 2");
    broker.run("send grows 1 none 12 15");
    harness.crash();
    assert_eq!(take(&mut harness, 3).await.0, quakes(12..15));
}

#[tokio::test]
async fn invalid_events_are_rejected() {
    if missing(&[Peer::Kafka]) {
        return;
    }
    let mut broker = Broker::shared().await;
    broker.run("create refused 1");
    broker.run("raw refused nonsense");
    broker.run("raw refused null");
    broker.run("raw refused {\"id\": 5}");
    broker.run("send refused 0 none 0 1");
    let mut harness = broker.source("refused");
    let (events, refused) = take(&mut harness, 1).await;
    assert_eq!((events, refused.len()), (quakes(0..1), 3), "{refused:?}");
    assert!(
        refused[0].contains("is not a JSON object") && refused[1].contains("has a key and no value"),
        "{refused:?}"
    );
    assert!(refused[2].contains("id: should be a string"), "{refused:?}");
}

#[tokio::test]
async fn brokers_require_logins_and_encryption() {
    if missing(&[Peer::Kafka]) {
        return;
    }
    let mut broker = Broker::shared().await;
    broker.run("create logins 1");
    broker.run("send logins 0 none 0 3");
    let ports = broker.ports.clone();
    let (ca, key) = (broker.folder.join("certificate.pem"), broker.folder.join("key.pem"));
    let check = async |port: u16, options: Json, expected: &str| {
        let mut given = json!({"servers": [format!("127.0.0.1:{port}")], "topics": ["logins"], "group": "logins"});
        given.as_object_mut().expect("an object").extend(options.as_object().expect("an object").clone());
        let mut harness = Harness::new("kafka", given);
        match harness.try_next().await {
            Ok(portion) => {
                assert_eq!(expected, "", "{options} came in");
                harness.commit(portion.marks);
                assert_eq!(take(&mut harness, 3).await.0, quakes(0..3));
            }
            Err(error) => assert!(!expected.is_empty() && error.text.contains(expected), "{options}: {error}"),
        }
    };
    let ada = |mechanism: &str| json!({"username": "ada", "password": "right", "mechanism": mechanism});
    let over_tls = |mut options: Json| {
        options
            .as_object_mut()
            .expect("an object")
            .extend([("tls".into(), json!(true)), ("ca_file".into(), json!(&ca))]);
        options
    };
    check(ports[2], ada("scram-sha-256"), "").await;
    check(ports[2], ada("scram-sha-512"), "").await;
    check(ports[3], over_tls(ada("scram-sha-512")), "").await;
    check(ports[3], over_tls(ada("plain")), "").await;
    let proof = json!({"certificate_file": &ca, "key_file": &key});
    check(ports[1], over_tls(proof), "").await;

    let wrong = |mechanism: &str| json!({"username": "ada", "password": "wrong", "mechanism": mechanism});
    let refuses = "rejects the login (`username`, `password`): ";
    check(ports[2], wrong("scram-sha-256"), refuses).await;
    check(ports[2], wrong("scram-sha-512"), refuses).await;
    check(ports[3], over_tls(wrong("plain")), refuses).await;
    check(ports[2], json!({"username": "eve", "password": "right"}), refuses).await;
    check(ports[2], json!({}), "closed the connection without a response; it may require").await;
    check(ports[3], ada("scram-sha-512"), "set `tls: true`").await;
    check(ports[0], ada("scram-sha-512"), "does not support SCRAM-SHA-512").await;
    check(ports[0], over_tls(json!({})), "no connection to").await;
    let untrusted = json!({"username": "ada", "password": "right", "tls": true});
    check(ports[3], untrusted, "invalid peer certificate").await;
    check(ports[1], over_tls(json!({})), "the connection to").await;
    check(ports[0], json!({"topics": ["nowhere"]}), "the topic `nowhere` does not exist").await;
    check(1, json!({}), "no connection to 127.0.0.1:1: ").await;
}

#[tokio::test]
async fn a_restarted_broker_is_used_again() {
    if missing(&[Peer::Kafka]) {
        return;
    }
    let mut broker = Broker::shared().await;
    broker.run("create returns 1");
    broker.run("send returns 0 none 0 20");
    let mut harness = broker.source("returns");
    assert_eq!(take(&mut harness, 20).await.0, quakes(0..20));
    broker.run("stop");
    let error = loop {
        match harness.try_next().await {
            Ok(portion) => assert_eq!(portion.events.count(), 0),
            Err(error) => break error,
        }
    };
    assert!(error.text.contains("no connection to") || error.text.contains("the connection to"), "{error}");
    harness.crash();
    broker.run("start");
    broker.run("send returns 0 gzip 20 30");
    assert_eq!(take_after_trouble(&mut harness, 10).await, quakes(20..30));
}

#[tokio::test]
async fn a_location_takes_whole_messages_exactly_once() {
    if missing(&[Peer::Kafka]) {
        return;
    }
    let mut broker = Broker::shared().await;
    broker.run("create orders 1");
    for text in ["no JSON", "null"] {
        broker.run(format!("raw orders {text}"));
    }
    let mut harness = broker.source("orders");
    harness.output = SourceOutput::Messages { bytes_max: 1 };
    let mut messages = Vec::new();
    while messages.len() < 2 {
        // Stored, but not committed to the group.
        let portion = harness.next().await;
        assert!(portion.refused.is_empty(), "{:?}", portion.refused);
        messages.extend(portion.messages);
        harness.commit(portion.marks);
        harness.crash();
    }
    let has = |message: &Message, name: &str, value: &str| {
        assert!(message.headers.contains(&(name.to_owned(), value.to_owned())), "{:?}", message.headers);
    };
    assert_eq!(&messages[0].body[..], b"no JSON");
    for (name, value) in
        [("kafka-topic", "orders"), ("kafka-partition", "0"), ("kafka-offset", "0"), ("kafka-key", "key")]
    {
        has(&messages[0], name, value);
    }
    assert!(messages[1].body.is_empty());
    has(&messages[1], "kafka-deleted", "true");
    broker.run("raw orders third");
    let third = loop {
        if let Some(third) = harness.take_messages().await.pop() {
            break third;
        }
    };
    assert_eq!(&third.body[..], b"third");
}

struct Conforming {
    broker: MutexGuard<'static, Broker>,
    /// The number of the present topic.
    number: u32,
}

#[async_trait(?Send)]
impl Subject for Conforming {
    async fn harness(&mut self) -> Harness {
        self.number += 1;
        let topic = format!("conforming-{}", self.number);
        self.broker.run(format!("create {topic} 1"));
        self.broker.source(&topic)
    }

    async fn put(&mut self, numbers: Range<u32>) {
        let Range { start, end } = numbers;
        self.broker.run(format!("send conforming-{} 0 none {start} {end}", self.number));
    }

    async fn put_oversize(&mut self, number: u32) -> Oversize {
        let text = json!({"id": format!("q{number}"), "tags": ["x".repeat(900_000)]});
        self.broker.run(format!("raw conforming-{} {text}", self.number));
        Oversize::Delivered
    }

    async fn silent(&mut self) -> Option<Json> {
        let server = silent_server().await.to_string();
        Some(json!({"servers": [server], "topics": ["a"], "timeout": "200ms"}))
    }
}

#[tokio::test]
async fn slow_it_conforms() {
    if missing(&[Peer::Kafka]) {
        return;
    }
    exercise(&mut Conforming { broker: Broker::shared().await, number: 0 }).await;
}
