//! What deliveries cost, protocol by protocol: readers of a topic are told of events, all of them of one or a few of each of
//! many. To accept the events is an operation of its own, so what that takes is seen with events that concern nobody, and
//! subtracted. Each reader is told something else, so that each message is formatted.

use std::io::Write;

use serde_json::{Value, json};
use tocsin_capacity::vectors::Linear;

use super::{Costed, Point, Watched, relay::Relay};
use crate::{
    bench::{
        context::Context,
        fanout::Fanout,
        peers::{Nginx, SmtpSink},
        probe::Used,
        server::Parts,
    },
    failure::Outcome,
};

/// Characters of what a message says.
const SIZES: [usize; 4] = [100, 400, 1_500, 6_000];
/// The topic of all readers; a fanout brings it.
const ALL: &str = "all";
/// The topic of a few of them.
const FEW: &str = "few";
const FEW_READERS: u64 = 20;
/// The topic of readers beyond a relay.
const WIRED: &str = "wired";
const WIRED_READERS: u64 = 100;
/// The topic of nobody.
const NOBODY: &str = "nobody";
/// Notifications that a digest tells. One is a message of its own.
const DIGESTS: [u64; 5] = [1, 2, 5, 10, 20];
const DIGEST_SIZES: [usize; 2] = [100, 1_000];

/// Before anything was used.
const NOTHING: Used = Used { processor: 0.0, disk_bytes: 0.0, syncs: Some(0.0) };

/// A protocol, and how its far end is reached.
struct Way {
    protocol: &'static str,
    /// A channel to a far end at this port, as a YAML mapping in one line.
    channel: fn(u16) -> String,
    /// Where the reader of a number is reached through it.
    address: fn(u16, u64) -> String,
}

const FILE: Way = Way {
    protocol: "file",
    channel: |_| "{protocol: file, options: {path: bench.ndjson}}".to_owned(),
    address: |_, number| format!("reader{number}"),
};

const INBOX: Way =
    Way { protocol: "inbox", channel: |_| "{protocol: inbox}".to_owned(), address: |_, number| format!("r{number}") };

const HTTP: Way = Way {
    protocol: "http",
    // Anybody's key: it guards nothing.
    channel: |_| {
        "{protocol: http, concurrency: 64, flow: {per_destination: 64}, options: {secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw, allow_networks: [127.0.0.0/8]}}"
            .to_owned()
    },
    address: |port, number| format!("http://127.0.0.1:{port}/hook/r{number}"),
};

const SMTP: Way = Way {
    protocol: "smtp",
    channel: |port| {
        format!(
            "{{protocol: smtp, concurrency: 10, options: {{servers: [{{host: 127.0.0.1, port: {port}}}], tls: off, from: Tocsin <news@example.org>}}}}"
        )
    },
    address: |_, number| format!("reader{number}@example.org"),
};

pub(super) async fn measure(context: &Context) -> Outcome<Vec<Costed>> {
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

/// The definition, with channels and a few more lines for the notification class.
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

/// A text with two values, of which one is the reader's own.
const ALONE: &str = r#"batch_size: 2500
    content: { templates: { base: { subject: "News of {{ topic }}", text: "{{ text }}\nfor {{ subscriber.id }}\n" } } }"#;

impl Way {
    /// Through a far end at this port, if it has any.
    async fn measure(&self, context: &Context, far: Option<u16>) -> Outcome<Costed> {
        let (messages, events) = (context.size(50_000, 500), context.size(1_000, 10));
        let relay = match far {
            Some(port) => Some(Relay::to(port).await?),
            None => None,
        };
        let mut channels = format!("out: {}", (self.channel)(far.unwrap_or_default()));
        if let Some(relay) = &relay {
            channels += &format!(", {WIRED}: {}", (self.channel)(relay.port));
        }
        let (address, port) = (self.address, far.unwrap_or_default());
        let definition = definition(&channels, ALONE);
        let fanout = Fanout::start_with(context, &definition, messages, move |number| address(port, number)).await?;
        let mut readers = Readers { fanout, told: 0 };
        readers.interest(FEW, "r", FEW_READERS).await?;
        if let Some(relay) = &relay {
            readers.bring_wired(self.address, relay.port).await?;
        }
        readers.tell(ALL, messages, 1, 100).await?;
        let watched = Watched::begin(context, &readers.fanout.server).await;
        let mut points = Vec::new();
        for characters in SIZES {
            let wire_each = match &relay {
                Some(relay) => readers.wire_each(relay, characters).await?,
                None => 0.0,
            };
            let (_, accepting) = watched.during(readers.tell(NOBODY, 0, events, characters)).await?;
            let accepting = accepting.per_second(events as f64);
            for (topic, together, events) in [(ALL, messages, 1), (FEW, FEW_READERS, events)] {
                let (_, used) = watched.during(readers.tell(topic, together, events, characters)).await?;
                points.push(Point {
                    bytes: characters as f64,
                    batch: together as f64,
                    items: (together * events) as f64,
                    used: used.since(&NOTHING, &accepting, events as f64),
                    wire_each,
                });
            }
        }
        let name = self.protocol;
        let about = format!("a notification is made, formatted and delivered by {name}, with its durable receipt");
        Ok(Costed::new(format!("deliver.{name}"), about, "deliver", points))
    }
}

/// A server whose readers are told, and how much they were.
struct Readers {
    fanout: Fanout,
    told: u64,
}

impl Readers {
    /// Tells the readers of a topic, who are so many, of so many events, one after the other.
    async fn tell(&mut self, topic: &str, readers: u64, events: u64, characters: usize) -> Outcome {
        let event = json!([{ "topic": topic, "text": text(characters) }]);
        for _ in 0..events {
            self.fanout.server.publish("delivery", "news", &event).await?;
        }
        self.told += readers * events;
        self.fanout.server.until_delivered(self.told).await?;
        Ok(())
    }

    /// The same of events that come in one batch.
    async fn tell_together(&mut self, readers: u64, events: u64, characters: usize) -> Outcome {
        let text = text(characters);
        let all: Value = (0..events).map(|_| json!({ "topic": ALL, "text": text })).collect();
        self.fanout.server.publish("delivery", "news", &all).await?;
        self.told += readers * events;
        self.fanout.server.until_delivered(self.told).await?;
        Ok(())
    }

    /// So many subscribers of this kind want to know of a topic.
    async fn interest(&self, topic: &'static str, kind: &'static str, count: u64) -> Outcome {
        let lines = move |out: &mut Parts| {
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

    /// Brings readers who are told through a relay at this port, and tells them something, so that what is done once for a
    /// connection is done.
    async fn bring_wired(&mut self, address: fn(u16, u64) -> String, port: u16) -> Outcome {
        let lines = move |out: &mut Parts| {
            (0..WIRED_READERS).try_for_each(|number| {
                let device = json!({ "channel": WIRED, "address": address(port, number) });
                writeln!(out, "{}", json!({ "id": format!("w{number}"), "devices": { "main": device } }))
            })
        };
        self.fanout.server.import_subscribers(lines).await?;
        self.interest(WIRED, "w", WIRED_READERS).await?;
        self.tell(WIRED, WIRED_READERS, 1, 100).await
    }

    /// Bytes on the wire of a message of so many characters.
    async fn wire_each(&mut self, relay: &Relay, characters: usize) -> Outcome<f64> {
        let before = relay.bytes();
        self.tell(WIRED, WIRED_READERS, 1, characters).await?;
        Ok((relay.bytes() - before) as f64 / WIRED_READERS as f64)
    }
}

fn text(characters: usize) -> String {
    "All the news that fits. ".chars().cycle().take(characters).collect()
}

/// One notification batch holds all that is told at once, or a reader would get the digests of two.
fn digest_class(batch_size: u64) -> String {
    format!(
        r#"batch_size: {batch_size}
    digest: {{ items_max: 20 }}
    content: {{ templates: {{ base: {{ subject: "News of {{{{ topic }}}}", text: "{{% for item in digest.items %}}{{{{ item.text }}}}\n{{% endfor %}}for {{{{ subscriber.id }}}}\n" }} }} }}"#
    )
}

/// Digests of more and more notifications, into a file.
async fn digests(context: &Context) -> Outcome<Costed> {
    let (people, notifications) = (context.size(5_000, 30), context.size(100_000, 600));
    let channels = format!("out: {}", (FILE.channel)(0));
    let definition = definition(&channels, &digest_class(notifications));
    let fanout = Fanout::start_with(context, &definition, people, |number| (FILE.address)(0, number)).await?;
    let mut readers = Readers { fanout, told: 0 };
    readers.tell_together(people, 1, 100).await?;
    let watched = Watched::begin(context, &readers.fanout.server).await;
    let mut points = Vec::new();
    for characters in DIGEST_SIZES {
        for told in DIGESTS {
            // As many notifications for each number of them.
            let rounds = notifications / (people * told);
            let (_, used) = watched
                .during(async {
                    for _ in 0..rounds {
                        readers.tell_together(people, told, characters).await?;
                    }
                    Ok(())
                })
                .await?;
            let items = (rounds * people * told) as f64;
            points.push(Point { bytes: characters as f64, batch: told as f64, items, used, wire_each: 0.0 });
        }
    }
    Ok(further(points))
}

/// What a notification costs that another's message tells along, from digests of several numbers. What such a message costs
/// is its channel's, which is asked for one that is as long.
pub(super) fn further(points: Vec<Point>) -> Costed {
    let about = "a further notification in a digest, with its durable receipt; the message is counted in its channel's";
    let own = |cost: Linear| Linear { item: cost.item, ..Linear::default() };
    Costed { own, ..Costed::new("deliver.digest", about, "deliver", points) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_in_order_and_each_reader_is_told_something_else() {
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
