//! Fan-out server: one event to many subscribers, measured from the response that accepts the event to the last durable
//! receipt.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    context::{Context, Scratch},
    resource_usage::CostMeter,
    server::Server,
};
use crate::failure::Outcome;

/// Server with one topic and many subscribers of it.
pub struct FanoutServer {
    /// Server under test.
    pub server: Server,
    /// Number of subscribers.
    pub readers: u64,
    /// Cost of each delivery.
    pub tally: CostMeter,
    delivered: u64,
    _folder: Scratch,
}

/// Definition with this channel (a one-line YAML mapping) and one extra line for the notification class.
fn definition(channel: &str, class: &str) -> String {
    format!(
        r#"
application: delivery
events: {{ news: {{ fields: {{ topic: {{ type: string, required: true }}, text: string }} }} }}
subscriptions: {{ interest: {{ fields: {{ topic: {{ type: string, required: true }} }} }} }}
notifications:
  item:
    fields: {{ topic: string, text: string }}
    batch_size: 2500
    {class}
    content: {{ templates: {{ base: {{ subject: "News of {{{{ topic }}}}", text: "{{{{ text }}}}\n" }} }} }}
rules: {{ about: {{ on: news, subscription: interest, when: event.topic == sub.topic, notify: item }} }}
channels: {{ out: {channel} }}
"#
    )
}

impl FanoutServer {
    /// Starts a server whose subscribers use this channel. `class` is one extra line for the notification class, or
    /// empty; `address` returns the address of each subscriber.
    ///
    /// # Errors
    /// If the server rejects a request.
    pub async fn start(
        context: &Context,
        channel: &str,
        class: &str,
        readers: u64,
        address: impl Fn(u64) -> String + Send + 'static,
    ) -> Outcome<Self> {
        FanoutServer::start_with(context, &definition(channel, class), readers, address).await
    }

    /// Starts a server with another definition. It must name its events, subscriptions, rule and channel as the
    /// standard one does.
    ///
    /// # Errors
    /// If the server rejects a request.
    pub async fn start_with(
        context: &Context,
        definition: &str,
        readers: u64,
        address: impl Fn(u64) -> String + Send + 'static,
    ) -> Outcome<Self> {
        let folder = context.folder()?;
        let server = Server::start(context, folder.path()).await?;
        server.apply("delivery", definition).await?;
        let subscribers = move |out: &mut super::server::ChunkWriter| {
            for number in 0..readers {
                let address = Value::from(address(number));
                writeln!(out, r#"{{"id":"r{number}","devices":{{"main":{{"channel":"out","address":{address}}}}}}}"#)?;
            }
            Ok(())
        };
        server.import_subscribers(subscribers).await?;
        let interests = move |out: &mut super::server::ChunkWriter| {
            for number in 0..readers {
                writeln!(
                    out,
                    r#"{{"application":"delivery","class":"interest","subscriber":"r{number}","values":{{"topic":"all"}}}}"#
                )?;
            }
            Ok(())
        };
        server.import_subscriptions("delivery", "interest", interests).await?;
        Ok(FanoutServer { tally: CostMeter::of(&server), server, readers, delivered: 0, _folder: folder })
    }

    /// Publishes one event with a text of this length. Returns the time from its acceptance to the last receipt.
    ///
    /// # Errors
    /// If a delivery is missing or repeated.
    pub async fn deliver_event(&mut self, characters: usize) -> Outcome<Duration> {
        self.deliver_events(1, characters).await
    }

    /// Publishes `events` events in one batch; otherwise as [`FanoutServer::deliver_event`].
    ///
    /// # Errors
    /// If a delivery of an event is missing or repeated.
    pub async fn deliver_events(&mut self, events: u64, characters: usize) -> Outcome<Duration> {
        let text: String = "All the news that fits. ".chars().cycle().take(characters).collect();
        let all: Value = (0..events).map(|_| json!({"topic": "all", "text": text})).collect();
        self.tally.begin();
        self.server.publish("delivery", "news", &all).await?;
        let accepted = Instant::now();
        self.delivered += self.readers * events;
        self.server.until_delivered(self.delivered).await?;
        let took = accepted.elapsed();
        self.tally.end((self.readers * events) as f64);
        Ok(took)
    }
}
