use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rumqttc::v5::{
    AsyncClient, Event,
    mqttbytes::{QoS, v5::Packet},
};
use serde_json::{Value, json};
use tocsin_test_peers::{Peer, missing, reserved_port};

use crate::{
    channel::{Context, OpenChannel, Outgoing},
    conformance::{Subject, exercise, silent_server},
    testing::{channel, content_of, context, deliver, outgoing},
};

/// A Mosquitto broker of the system.
struct Broker {
    child: Child,
    port: u16,
}

impl Broker {
    /// Starts it on this port, or on a free one; with further lines of configuration.
    fn start(folder: &Path, port: Option<u16>, lines: &str) -> Broker {
        let port = port.unwrap_or_else(reserved_port);
        let file = folder.join("mosquitto.conf");
        fs::write(&file, format!("listener {port} 127.0.0.1\nlog_dest stderr\n{lines}\n")).expect("a file");
        let mut child = Command::new(Peer::Mosquitto.path())
            .args(["-v", "-c"])
            .arg(&file)
            .stderr(Stdio::piped())
            .spawn()
            .expect("mosquitto starts");
        let mut log = BufReader::new(child.stderr.take().expect("it is piped")).lines().map_while(Result::ok);
        assert!(log.by_ref().any(|line| line.ends_with(" running")), "mosquitto does not start");
        // A full pipe of its log would block the broker.
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

fn open(port: u16, options: Value) -> Box<dyn OpenChannel> {
    let name = "broker".parse().expect("a name");
    let mut all = json!({ "host": "127.0.0.1", "port": port, "topic_prefix": "notices/" });
    all.as_object_mut().expect("an object").extend(options.as_object().expect("an object").clone());
    crate::open(&name, &channel("mqtt", all, 16), &context()).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn many(count: u32) -> Vec<Outgoing> {
    (0..count).map(|number| outgoing(number, "kobe/quakes")).collect()
}

/// Subscribes and collects `count` messages: topic, id and content.
async fn subscribed(port: u16, count: usize) -> tokio::task::JoinHandle<Vec<(String, String, Value)>> {
    let mut options = rumqttc::v5::MqttOptions::new("reader", "127.0.0.1", port);
    options.set_keep_alive(Duration::from_secs(60));
    let (client, mut events) = AsyncClient::new(options, 10);
    client.subscribe("notices/kobe/#", QoS::ExactlyOnce).await.expect("a request");
    loop {
        if let Event::Incoming(Packet::SubAck(_)) = events.poll().await.expect("a connection") {
            break;
        }
    }
    tokio::spawn(async move {
        let (mut got, _client) = (Vec::new(), client);
        while got.len() < count {
            if let Event::Incoming(Packet::Publish(publish)) = events.poll().await.expect("a connection") {
                let properties = publish.properties.expect("properties");
                let id = properties.user_properties.iter().find(|(name, _)| name == "id").expect("an id").1.clone();
                let topic = String::from_utf8(publish.topic.to_vec()).expect("text");
                got.push((topic, id, serde_json::from_slice(&publish.payload).expect("JSON")));
            }
        }
        got
    })
}

#[tokio::test]
async fn subscribers_receive_every_acknowledged_message() {
    if missing(&[Peer::Mosquitto]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let broker = Broker::start(folder.path(), None, "allow_anonymous true\nmax_queued_messages 0");
    for qos in [1, 2] {
        let reader = subscribed(broker.port, 300).await;
        let channel = open(broker.port, json!({ "qos": qos }));
        assert_eq!(deliver(&*channel, many(300)).await, vec!["delivered accepted by the broker"; 300]);
        assert_eq!(channel.down(), None);
        assert!(channel.probe().await.is_ok_and(|text| text.ends_with("lets us in")));
        let got = reader.await.expect("a reader");
        for (number, (topic, id, body)) in got.iter().enumerate() {
            assert_eq!((topic.as_str(), id), ("notices/kobe/quakes", &format!("n-7-{number}.test")), "in their order");
            assert_eq!((&body["type"], &body["data"]["place"]), (&json!("quake"), &json!("Kobe")));
        }
        let wrong = deliver(&*channel, vec![outgoing(0, "#"), outgoing(1, "a\0b")]).await;
        assert!(wrong.iter().all(|shown| shown.starts_with("refused Address")), "{wrong:?}");
        let alone = deliver(&*channel, vec![outgoing(0, "nobody")]).await;
        let note = if qos == 1 { "; the topic has no subscribers at present" } else { "" };
        assert_eq!(alone, [format!("delivered accepted by the broker{note}")]);
        channel.close().await;
    }
}

#[tokio::test]
async fn an_unreachable_or_refusing_broker_takes_the_channel_down() {
    if missing(&[Peer::Mosquitto]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let broker = Broker::start(folder.path(), None, "allow_anonymous false");
    let channel = open(broker.port, json!({}));
    let shown = deliver(&*channel, many(1)).await;
    assert!(shown[0].starts_with("deferred Authentication no connection to the broker"), "{shown:?}");
    assert!(channel.down().is_some() && channel.probe().await.is_err());
    drop(channel);

    let port = broker.port;
    drop(broker);
    let channel = open(port, json!({}));
    let shown = deliver(&*channel, many(1)).await;
    assert!(shown[0].starts_with("deferred Connection no connection to the broker"), "{shown:?}");
    let _broker = Broker::start(folder.path(), Some(port), "allow_anonymous true");
    let shown = deliver(&*channel, many(1)).await;
    assert!(shown[0].starts_with("delivered accepted by the broker"), "{shown:?}");
    assert_eq!(channel.down(), None);
}

#[tokio::test]
async fn messages_above_the_packet_limit_are_refused_before_sending() {
    if missing(&[Peer::Mosquitto]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let broker = Broker::start(folder.path(), None, "allow_anonymous true\nmax_packet_size 4096");
    let channel = open(broker.port, json!({}));
    let mut large = outgoing(1, "a");
    content_of(&mut large).json = Some(format!("\"{}\"", "x".repeat(5_000)));
    let shown = deliver(&*channel, vec![outgoing(0, "a"), large, outgoing(2, "a")]).await;
    assert!(shown[1].starts_with("refused Answer with 5002 bytes it is larger than the broker takes"), "{shown:?}");
    assert!(shown[0].starts_with("delivered") && shown[2].starts_with("delivered"), "{shown:?}");
}

struct Conforming {
    port: u16,
    /// Ids that a subscriber has read.
    ids: Arc<Mutex<Vec<String>>>,
}

fn open_in(place: Value, options: Value, context: &Context) -> Box<dyn OpenChannel> {
    let mut all = json!({ "host": "127.0.0.1", "topic_prefix": "notices/" });
    for more in [place, options] {
        all.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    }
    let name = "broker".parse().expect("a name");
    crate::open(&name, &channel("mqtt", all, 16), context).unwrap_or_else(|problems| panic!("{problems:?}"))
}

#[async_trait]
impl Subject for Conforming {
    async fn open(&self, context: Context) -> Box<dyn OpenChannel> {
        open_in(json!({ "port": self.port }), json!({}), &context)
    }

    async fn open_silent(&self, context: Context) -> Option<Box<dyn OpenChannel>> {
        let port = silent_server().await.port();
        Some(open_in(json!({ "port": port }), json!({ "timeout": "200ms" }), &context))
    }

    fn outgoing(&self, ordinal: u32) -> Outgoing {
        outgoing(ordinal, "kobe/quakes")
    }

    async fn received_ids(&self) -> Vec<String> {
        self.ids.lock().clone()
    }

    fn in_flight_max(&self) -> usize {
        2 * 16
    }
}

#[tokio::test]
async fn slow_it_conforms() {
    if missing(&[Peer::Mosquitto]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let broker = Broker::start(folder.path(), None, "allow_anonymous true\nmax_queued_messages 0");
    let ids: Arc<Mutex<Vec<String>>> = Arc::default();
    let mut options = rumqttc::v5::MqttOptions::new("reader", "127.0.0.1", broker.port);
    // The oversize content as well.
    options.set_keep_alive(Duration::from_secs(60)).set_max_packet_size(Some(16 << 20));
    let (client, mut events) = AsyncClient::new(options, 10);
    client.subscribe("notices/kobe/#", QoS::AtLeastOnce).await.expect("a request");
    while !matches!(events.poll().await.expect("a connection"), Event::Incoming(Packet::SubAck(_))) {}
    let read = ids.clone();
    tokio::spawn(async move {
        let _client = client;
        while let Ok(event) = events.poll().await {
            if let Event::Incoming(Packet::Publish(publish)) = event {
                let properties = publish.properties.expect("properties");
                let id = properties.user_properties.into_iter().find(|(name, _)| name == "id").expect("an id").1;
                read.lock().push(id);
            }
        }
    });
    exercise(&Conforming { port: broker.port, ids }).await;
}
