//! Cost of deliveries by protocol: subscribers of a topic receive events, either all of them one event, or a few of
//! them many. Accepting events is a separate operation; its cost is measured with events that match nothing, and
//! subtracted. Each subscriber's message differs, so every message is rendered.

use std::io::Write;

use serde_json::{Value, json};
use tocsin_capacity::vectors::Linear;

use super::{
    cost::{CostSample, ObservedServer, OperationCost},
    relay::Relay,
};
use crate::{
    failure::Outcome,
    {
        context::Context,
        fanout_server::FanoutServer,
        peers::{Nginx, SmtpSink},
        resource_usage::ResourceUsage,
        server::ChunkWriter,
    },
};

/// Characters of a message's text.
const SIZES: [usize; 4] = [100, 400, 1_500, 6_000];
/// Topic of all subscribers; the fan-out server creates it.
const ALL: &str = "all";
/// Topic of a few subscribers.
const FEW: &str = "few";
const FEW_SUBSCRIBERS: u64 = 20;
/// Topic of subscribers behind a relay.
const WIRED: &str = "wired";
const WIRED_READERS: u64 = 100;
/// Topic without subscribers.
const NOBODY: &str = "nobody";
/// Notifications per digest; one is a plain message.
const DIGESTS: [u64; 5] = [1, 2, 5, 10, 20];
const DIGEST_SIZES: [usize; 2] = [100, 1_000];

/// Zero usage.
const ZERO_USAGE: ResourceUsage = ResourceUsage { processor: 0.0, disk_bytes: 0.0, syncs: Some(0.0) };

/// Protocol under test, with its channel and addresses.
struct DeliveryProtocol {
    protocol: &'static str,
    /// Channel for a receiver at this port, as a one-line YAML mapping.
    channel: fn(u16) -> String,
    /// Address of a subscriber by port and number.
    address: fn(u16, u64) -> String,
}

const FILE: DeliveryProtocol = DeliveryProtocol {
    protocol: "file",
    channel: |_| "{protocol: file, options: {path: bench.ndjson}}".to_owned(),
    address: |_, number| format!("reader{number}"),
};

const INBOX: DeliveryProtocol = DeliveryProtocol {
    protocol: "inbox",
    channel: |_| "{protocol: inbox}".to_owned(),
    address: |_, number| format!("r{number}"),
};

const HTTP: DeliveryProtocol = DeliveryProtocol {
    protocol: "http",
    // A public test key: it protects nothing.
    channel: |_| {
        "{protocol: http, concurrency: 64, flow: {per_destination: 64}, options: {secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw, allow_networks: [127.0.0.0/8]}}"
            .to_owned()
    },
    address: |port, number| format!("http://127.0.0.1:{port}/hook/r{number}"),
};

const SMTP: DeliveryProtocol = DeliveryProtocol {
    protocol: "smtp",
    channel: |port| {
        format!(
            "{{protocol: smtp, concurrency: 10, options: {{servers: [{{host: 127.0.0.1, port: {port}}}], tls: off, from: Tocsin <news@example.org>}}}}"
        )
    },
    address: |_, number| format!("reader{number}@example.org"),
};

pub(super) async fn measure(context: &Context) -> Outcome<Vec<OperationCost>> {
    let mut costed = vec![FILE.measure(context, None).await?, INBOX.measure(context, None).await?];
    if let Some(nginx) = Nginx::start(context).await? {
        costed.push(HTTP.measure(context, Some(nginx.port)).await?);
    }
    if context.program("smtp-sink").is_some() {
        let sink = SmtpSink::start(context).await?;
        costed.push(SMTP.measure(context, Some(sink.port)).await?);
    }
    costed.push(digests(context).await?);
    Ok(costed)
}

/// Definition with channels and extra lines for the notification class.
fn definition(channels: &str, class: &str) -> String {
    format!(
        r#"
application: delivery
events: {{ news: {{ fields: {{ topic: {{ type: string, required: true }}, text: string }} }} }}
subscriptions: {{ interest: {{ fields: {{ topic: {{ type: string, required: true }} }} }} }}
notifications:
  item:
    fields: {{ topic: string, text: string }}
    {class}
rules: {{ about: {{ on: news, subscription: interest, when: event.topic == sub.topic, notify: item }} }}
channels: {{ {channels} }}
"#
    )
}

/// Text with two values, one of which depends on the subscriber.
const ALONE: &str = r#"batch_size: 2500
    content: { templates: { base: { subject: "News of {{ topic }}", text: "{{ text }}\nfor {{ subscriber.id }}\n" } } }"#;

impl DeliveryProtocol {
    /// Measures the protocol, with a receiver at this port if it has one.
    async fn measure(&self, context: &Context, port: Option<u16>) -> Outcome<OperationCost> {
        let (messages, events) = (context.size(50_000, 500), context.size(1_000, 10));
        let relay = match port {
            Some(port) => Some(Relay::to(port).await?),
            None => None,
        };
        let mut channels = format!("out: {}", (self.channel)(port.unwrap_or_default()));
        if let Some(relay) = &relay {
            channels += &format!(", {WIRED}: {}", (self.channel)(relay.port));
        }
        let (address, receiver_port) = (self.address, port.unwrap_or_default());
        let definition = definition(&channels, ALONE);
        let fanout =
            FanoutServer::start_with(context, &definition, messages, move |number| address(receiver_port, number))
                .await?;
        let mut readers = Readers { fanout, delivered: 0 };
        readers.interest(FEW, "r", FEW_SUBSCRIBERS).await?;
        if let Some(relay) = &relay {
            readers.add_relayed_subscribers(self.address, relay.port).await?;
        }
        readers.publish(ALL, messages, 1, 100).await?;
        let watched = ObservedServer::begin(context, &readers.fanout.server).await;
        let mut points = Vec::new();
        for characters in SIZES {
            let wire_each = match &relay {
                Some(relay) => readers.wire_each(relay, characters).await?,
                None => 0.0,
            };
            let (_, accepting) = watched.during(readers.publish(NOBODY, 0, events, characters)).await?;
            let accepting = accepting.per_second(events as f64);
            for (topic, together, events) in [(ALL, messages, 1), (FEW, FEW_SUBSCRIBERS, events)] {
                let (_, used) = watched.during(readers.publish(topic, together, events, characters)).await?;
                points.push(CostSample {
                    bytes: characters as f64,
                    batch: together as f64,
                    items: (together * events) as f64,
                    used: used.since(&ZERO_USAGE, &accepting, events as f64),
                    wire_each,
                });
            }
        }
        let name = self.protocol;
        let about = format!("a notification is created, formatted and delivered by {name}, with a durable receipt");
        Ok(OperationCost::new(format!("deliver.{name}"), about, "deliver", points))
    }
}

/// Server with subscribers, and the number of deliveries to them.
struct Readers {
    fanout: FanoutServer,
    delivered: u64,
}

impl Readers {
    /// Publishes `events` events to the `readers` subscribers of a topic, one after the other.
    async fn publish(&mut self, topic: &str, readers: u64, events: u64, characters: usize) -> Outcome {
        let event = json!([{ "topic": topic, "text": text(characters) }]);
        for _ in 0..events {
            self.fanout.server.publish("delivery", "news", &event).await?;
        }
        self.delivered += readers * events;
        self.fanout.server.until_delivered(self.delivered).await?;
        Ok(())
    }

    /// Publishes the events in one batch; otherwise as [`Readers::publish`].
    async fn deliver_together(&mut self, readers: u64, events: u64, characters: usize) -> Outcome {
        let text = text(characters);
        let all: Value = (0..events).map(|_| json!({ "topic": ALL, "text": text })).collect();
        self.fanout.server.publish("delivery", "news", &all).await?;
        self.delivered += readers * events;
        self.fanout.server.until_delivered(self.delivered).await?;
        Ok(())
    }

    /// Subscribes `count` subscribers of this kind to a topic.
    async fn interest(&self, topic: &'static str, kind: &'static str, count: u64) -> Outcome {
        let lines = move |out: &mut ChunkWriter| {
            (0..count).try_for_each(|number| {
                let interest = json!({
                    "application": "delivery", "class": "interest", "subscriber": format!("{kind}{number}"),
                    "values": { "topic": topic },
                });
                writeln!(out, "{interest}")
            })
        };
        self.fanout.server.import_subscriptions("delivery", "interest", lines).await?;
        Ok(())
    }

    /// Creates subscribers behind a relay at this port and delivers one event, so that per-connection setup is done.
    async fn add_relayed_subscribers(&mut self, address: fn(u16, u64) -> String, port: u16) -> Outcome {
        let lines = move |out: &mut ChunkWriter| {
            (0..WIRED_READERS).try_for_each(|number| {
                let device = json!({ "channel": WIRED, "address": address(port, number) });
                writeln!(out, "{}", json!({ "id": format!("w{number}"), "devices": { "main": device } }))
            })
        };
        self.fanout.server.import_subscribers(lines).await?;
        self.interest(WIRED, "w", WIRED_READERS).await?;
        self.publish(WIRED, WIRED_READERS, 1, 100).await
    }

    /// Wire bytes of a message with this many characters.
    async fn wire_each(&mut self, relay: &Relay, characters: usize) -> Outcome<f64> {
        let before = relay.bytes();
        self.publish(WIRED, WIRED_READERS, 1, characters).await?;
        Ok((relay.bytes() - before) as f64 / WIRED_READERS as f64)
    }
}

fn text(characters: usize) -> String {
    "All the news that fits. ".chars().cycle().take(characters).collect()
}

/// The batch size covers one whole digest; otherwise a subscriber would get two.
fn digest_class(batch_size: u64) -> String {
    format!(
        r#"batch_size: {batch_size}
    digest: {{ items_max: 20 }}
    content: {{ templates: {{ base: {{ subject: "News of {{{{ topic }}}}", text: "{{% for item in digest.items %}}{{{{ item.text }}}}\n{{% endfor %}}for {{{{ subscriber.id }}}}\n" }} }} }}"#
    )
}

/// Digests of an increasing number of notifications, into a file.
async fn digests(context: &Context) -> Outcome<OperationCost> {
    let (people, notifications) = (context.size(5_000, 30), context.size(100_000, 600));
    let channels = format!("out: {}", (FILE.channel)(0));
    let definition = definition(&channels, &digest_class(notifications));
    let fanout = FanoutServer::start_with(context, &definition, people, |number| (FILE.address)(0, number)).await?;
    let mut readers = Readers { fanout, delivered: 0 };
    readers.deliver_together(people, 1, 100).await?;
    let watched = ObservedServer::begin(context, &readers.fanout.server).await;
    let mut points = Vec::new();
    for characters in DIGEST_SIZES {
        for count in DIGESTS {
            // As many notifications for each number of them.
            let rounds = notifications / (people * count);
            let (_, used) = watched
                .during(async {
                    for _ in 0..rounds {
                        readers.deliver_together(people, count, characters).await?;
                    }
                    Ok(())
                })
                .await?;
            let items = (rounds * people * count) as f64;
            points.push(CostSample { bytes: characters as f64, batch: count as f64, items, used, wire_each: 0.0 });
        }
    }
    Ok(digest_item_cost(points))
}

/// Cost of one more notification in a digest, fitted over several digest sizes. The cost of the message itself belongs
/// to its channel, at the same length.
pub(super) fn digest_item_cost(points: Vec<CostSample>) -> OperationCost {
    let about = "a further notification in a digest, with a durable receipt; the message is counted in its channel";
    let own = |cost: Linear| Linear { item: cost.item, ..Linear::default() };
    OperationCost { own, ..OperationCost::new("deliver.digest", about, "deliver", points) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_compile_and_each_message_differs() {
        for way in [FILE, INBOX, HTTP, SMTP] {
            let mut channels = format!("out: {}", (way.channel)(25));
            if !matches!(way.protocol, "file" | "inbox") {
                channels += &format!(", {WIRED}: {}", (way.channel)(26));
            }
            for class in [ALONE.to_owned(), digest_class(100_000)] {
                let compiled = tocsin_pipeline::compile_text(&definition(&channels, &class), 1, &|_| None);
                let problems = compiled.err();
                assert!(problems.is_none(), "{}: {problems:?}", way.protocol);
            }
        }
        assert!(ALONE.contains("subscriber.id"));
        assert_eq!(text(30), "All the news that fits. All th");
    }
}
