//! Events that concern many: the deliveries through the whole server, from the answer that accepts them to the last receipt
//! on disk.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    context::{Context, Scratch},
    probe::Tally,
    server::Server,
};
use crate::failure::Outcome;

/// A server with one topic and many readers of it.
pub struct Fanout {
    /// The server.
    pub server: Server,
    /// How many read the topic.
    pub readers: u64,
    /// Cost of each delivery.
    pub tally: Tally,
    delivered: u64,
    _folder: Scratch,
}

/// The definition, with this channel, a YAML mapping in one line, and one more line for the notification class.
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

impl Fanout {
    /// Starts a server whose readers are told through this channel; `class` is one more line for the notification class, or
    /// empty, and `address` gives the address of each.
    ///
    /// # Errors
    /// The server refuses something.
    pub async fn start(
        context: &Context,
        channel: &str,
        class: &str,
        readers: u64,
        address: impl Fn(u64) -> String + Send + 'static,
    ) -> Outcome<Self> {
        Fanout::start_with(context, &definition(channel, class), readers, address).await
    }

    /// The same with a definition of one's own, which has the events, the subscriptions, the rule and the channel of the usual
    /// one by their names.
    ///
    /// # Errors
    /// The server refuses something.
    pub async fn start_with(
        context: &Context,
        definition: &str,
        readers: u64,
        address: impl Fn(u64) -> String + Send + 'static,
    ) -> Outcome<Self> {
        let folder = context.folder()?;
        let server = Server::start(context, folder.path()).await?;
        server.apply("delivery", definition).await?;
        let subscribers = move |out: &mut super::server::Parts| {
            for number in 0..readers {
                let address = Value::from(address(number));
                writeln!(out, r#"{{"id":"r{number}","devices":{{"main":{{"channel":"out","address":{address}}}}}}}"#)?;
            }
            Ok(())
        };
        server.import_subscribers(subscribers).await?;
        let interests = move |out: &mut super::server::Parts| {
            for number in 0..readers {
                writeln!(
                    out,
                    r#"{{"application":"delivery","class":"interest","subscriber":"r{number}","values":{{"topic":"all"}}}}"#
                )?;
            }
            Ok(())
        };
        server.import_subscriptions("delivery", "interest", interests).await?;
        Ok(Fanout { tally: Tally::of(&server), server, readers, delivered: 0, _folder: folder })
    }

    /// Tells all readers of one event with a text of so many characters. Gives the time from its acceptance to the last
    /// receipt.
    ///
    /// # Errors
    /// Not everybody was told exactly once.
    pub async fn tell_all(&mut self, characters: usize) -> Outcome<Duration> {
        self.tell_all_of(1, characters).await
    }

    /// The same of so many events, which come in one batch.
    ///
    /// # Errors
    /// Not everybody was told exactly once of each.
    pub async fn tell_all_of(&mut self, events: u64, characters: usize) -> Outcome<Duration> {
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
