//! Messages of an MQTT 5 broker, with quality 1. They are acknowledged when their events are accepted.
//!
//! The broker keeps the session while we are away, and gives again what was not acknowledged, with the same number and the
//! mark of a duplicate. So the numbers of the last accepted messages are remembered, each with a hash of what it said: one
//! that comes again as a duplicate with both is only acknowledged. A broker that loses its session loses messages; one that
//! does not mark duplicates doubles some after a crash.

mod options; // what an operator may set

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use async_trait::async_trait;
pub use options::MqttOptions;
use rumqttc::v5::{
    AsyncClient, Event,
    mqttbytes::{
        QoS,
        v5::{Packet, Publish},
    },
};
use tocsin_delivery::{options::read, tls};
use tocsin_model::{mark::Mark, problem::Problem, trace_context::TraceContext};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{
    items::Item,
    known::hash,
    mapping::Mapping,
    source::{self, OpenSource, Portion, Setting, Trouble},
    tray::Tray,
};

/// The part with the last accepted messages.
const RECENT: &str = "recent";
/// Messages that the broker may have on their way to us.
const WINDOW: u16 = 500;
/// Accepted messages that are remembered: those of the last portion, and of the one before, whose acknowledgements may not
/// have arrived.
const RECENT_MAX: usize = 2 * WINDOW as usize;
/// Longest packet.
const PACKET_BYTES_MAX: u32 = 1 << 20;

pub(crate) fn open(setting: Setting, marks: Vec<Mark>) -> Result<Box<dyn OpenSource>, Vec<Problem>> {
    let options: MqttOptions = read(&setting.options, "")?;
    let trust = tls::trust(options.ca_file.as_deref(), "ca_file").map_err(|problem| vec![problem])?;
    let recent = marks.iter().find(|mark| &*mark.part == RECENT).and_then(|mark| mark.value.clone());
    let mut connect =
        options.broker().connect(options.client_id.clone().unwrap_or_else(|| setting.far_name.clone()), &trust);
    connect.set_clean_start(false).set_manual_acks(true).set_receive_maximum(Some(WINDOW));
    connect.set_session_expiry_interval(Some(u32::try_from(options.session.0.as_secs()).unwrap_or(u32::MAX)));
    connect.set_max_packet_size(Some(PACKET_BYTES_MAX));
    Ok(Box::new(Session {
        mapping: Mapping::new(&setting.gives.fields(), &options.fields),
        recent: recent.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default(),
        connection: None,
        held: Vec::new(),
        connect,
        setting,
        options,
    }))
}

/// A session of a broker.
struct Session {
    setting: Setting,
    options: MqttOptions,
    connect: rumqttc::v5::MqttOptions,
    mapping: Mapping,
    connection: Option<Connection>,
    /// Number and hash of the last accepted messages, the last last.
    recent: VecDeque<(u16, String)>,
    /// Messages of the last portion.
    held: Vec<Publish>,
}

/// A connection, whose protocol runs in a task of its own.
struct Connection {
    client: AsyncClient,
    messages: mpsc::Receiver<Result<Publish, String>>,
    protocol: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.protocol.abort();
    }
}

impl Connection {
    fn open(connect: rumqttc::v5::MqttOptions, topics: Vec<String>) -> Connection {
        // Every message may want its acknowledgement at once.
        let (client, mut events) = AsyncClient::new(connect, 2 * usize::from(WINDOW));
        let (sender, messages) = mpsc::channel(usize::from(WINDOW));
        let subscriber = client.clone();
        let protocol = tokio::spawn(async move {
            loop {
                let said = match events.poll().await {
                    Ok(Event::Incoming(Packet::ConnAck(greeting))) if !greeting.session_present => {
                        for topic in &topics {
                            if subscriber.try_subscribe(topic.clone(), QoS::AtLeastOnce).is_err() {
                                let _ = sender.send(Err("a subscription cannot be sent".to_owned())).await;
                                return;
                            }
                        }
                        continue;
                    }
                    Ok(Event::Incoming(Packet::SubAck(answer))) => {
                        match answer.return_codes.iter().find(|code| !is_granted(code)) {
                            Some(code) => Err(format!("the broker refuses a topic: {code:?}")),
                            None => continue,
                        }
                    }
                    Ok(Event::Incoming(Packet::Publish(publish))) => Ok(publish),
                    Ok(Event::Incoming(Packet::Disconnect(goodbye))) => {
                        Err(format!("the broker says goodbye: {:?}", goodbye.reason_code))
                    }
                    Ok(_) => continue,
                    Err(error) => Err(error.to_string()),
                };
                // After trouble the library would connect again by itself; that is for whoever opens sources.
                let over = said.is_err();
                if sender.send(said).await.is_err() || over {
                    return;
                }
            }
        });
        Connection { client, messages, protocol }
    }
}

fn is_granted(code: &rumqttc::v5::mqttbytes::v5::SubscribeReasonCode) -> bool {
    matches!(code, rumqttc::v5::mqttbytes::v5::SubscribeReasonCode::Success(_))
}

fn hash_of(publish: &Publish) -> String {
    hash(&[&publish.topic, &publish.payload])
}

impl Session {
    /// The messages that have come, or the first that comes.
    async fn messages(&mut self) -> Result<Vec<Publish>, Trouble> {
        let (connect, topics) = (&self.connect, &self.options.topics);
        let connection = self.connection.get_or_insert_with(|| Connection::open(connect.clone(), topics.clone()));
        let mut messages = Vec::new();
        let mut said = connection.messages.recv().await;
        loop {
            match said {
                Some(Ok(publish)) if self.recent.contains(&(publish.pkid, hash_of(&publish))) && publish.dup => {
                    acknowledge(&connection.client, &publish).await?;
                }
                Some(Ok(publish)) => messages.push(publish),
                // What has come before is still to be taken, but could not be acknowledged any more.
                Some(Err(error)) => return Err(Trouble::new("the connection to the broker", error)),
                None => return Err(Trouble::of("the connection to the broker is over")),
            }
            said = match connection.messages.try_recv() {
                Ok(next) => Some(next),
                Err(_) => return Ok(messages),
            };
        }
    }

    fn portion(&mut self, messages: Vec<Publish>) -> Portion {
        let mut tray = Tray::new(&self.setting.gives);
        for publish in &messages {
            let item = || Item::Json(publish.payload.to_vec());
            tray.take(&self.mapping, item, || as_it_is(publish), trace_of(publish).as_ref());
            if publish.pkid != 0 {
                self.recent.push_back((publish.pkid, hash_of(publish)));
            }
        }
        while self.recent.len() > RECENT_MAX {
            self.recent.pop_front();
        }
        let mut portion = tray.finish();
        portion.marks = vec![Mark::set(RECENT, serde_json::to_vec(&self.recent).expect("it is JSON"))];
        self.held = messages;
        portion
    }
}

/// Where a message stands in a trace, if its user properties say it.
fn trace_of(publish: &Publish) -> Option<TraceContext> {
    let properties = &publish.properties.as_ref()?.user_properties;
    let find = |name: &str| properties.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    TraceContext::read(find("traceparent")?, find("tracestate"))
}

/// A message with its user properties and its topic.
fn as_it_is(publish: &Publish) -> source::Message {
    let mut headers = vec![("mqtt-topic".to_owned(), String::from_utf8_lossy(&publish.topic).into_owned())];
    let properties = publish.properties.as_ref();
    for (name, value) in properties.iter().flat_map(|properties| &properties.user_properties) {
        let name = name.to_ascii_lowercase();
        if name != "mqtt-topic" {
            headers.push((name, value.clone()));
        }
    }
    let content_type = properties.and_then(|properties| properties.content_type.clone()).unwrap_or_default();
    source::Message { content_type, headers, body: publish.payload.clone() }
}

async fn acknowledge(client: &AsyncClient, publish: &Publish) -> Result<(), Trouble> {
    client.ack(publish).await.map_err(|error| Trouble::new("a message cannot be acknowledged", error))
}

#[async_trait]
impl OpenSource for Session {
    async fn next(&mut self) -> Result<Portion, Trouble> {
        loop {
            let messages = self.messages().await?;
            if !messages.is_empty() {
                return Ok(self.portion(messages));
            }
        }
    }

    async fn accepted(&mut self) -> Result<(), Trouble> {
        let held = std::mem::take(&mut self.held);
        let Some(connection) = &self.connection else { return Ok(()) };
        for publish in &held {
            acknowledge(&connection.client, publish).await?;
        }
        Ok(())
    }
}
