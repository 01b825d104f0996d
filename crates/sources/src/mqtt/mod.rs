//! MQTT 5 source, with QoS 1. Messages are acknowledged after their events are stored.
//!
//! The broker keeps the session while the source is disconnected, and redelivers unacknowledged messages with the same
//! packet id and the duplicate flag. For de-duplication, the packet ids of the last accepted messages are remembered,
//! each with a hash of the content: a duplicate that matches both is only acknowledged. A broker that loses its session
//! loses messages; one that does not set the duplicate flag duplicates some after a crash.
//!
//! The broker keeps the subscriptions with the session, and cannot be queried for them. So the filters of the session
//! are stored before they are subscribed, and on each connection those no longer in the definition are unsubscribed. A
//! message that matches none of the topics is acknowledged and discarded, whichever subscription delivered it.
//!
//! The memory for messages is bounded. When it is full for longer, such as while the journal cannot be written, further
//! messages are read and discarded without an acknowledgement, since the broker expects pings. Once all others are
//! acknowledged, the session is resumed on a new connection, and the broker redelivers them, except those of QoS 0.

mod options; // the options of an operator
mod topics; // topic filters and matching

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
pub use options::MqttOptions;
use rumqttc::{
    Outgoing,
    v5::{
        AsyncClient, Event,
        mqttbytes::{
            QoS,
            v5::{
                ConnAck, Filter, Packet, Publish, RetainForwardRule, SubscribeProperties, SubscribeReasonCode,
                UnsubAckReason,
            },
        },
    },
};
use serde::{Deserialize, Serialize};
use tocsin_connect::options::read;
use tocsin_model::{definition::secrets::SecretShape, mark::Mark, problem::Problem, trace_context::TraceContext};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinHandle,
};

use self::topics::Subscription;
use crate::{
    batch_builder::BatchBuilder,
    description::{KindDescription, LocationDescription, Opened, SourceResource, check_of, not_allowed_of, schema_of},
    items::Item,
    mapping::Mapping,
    seen_items::hash,
    source::{self, BATCH_BYTES_MAX, OpenSource, SourceBatch, SourceError, SourceSettings, stored},
};

/// The part of the marks with the last accepted messages.
const RECENT: &str = "recent";
/// The part with the filters that the session may have: [`Filters`].
const SUBSCRIBED: &str = "subscribed";
/// The part with the last retained message of each topic.
const RETAINED: &str = "retained";
/// Most topics with a remembered retained message; beyond, the oldest are forgotten.
const RETAINED_MAX: usize = 1_000;
/// Most topics for which the delivering subscription is remembered.
const LEADERS_MAX: usize = 10_000;
/// Receive maximum: unacknowledged messages that the broker may send.
const WINDOW: u16 = 500;
/// Most remembered accepted messages: those of the last batch, and of the one before, whose acknowledgements may be
/// lost.
const RECENT_MAX: usize = 2 * WINDOW as usize;
/// Longest packet: a message of 64 MiB with its properties. The broker drops a longer one (MQTT 5, 3.1.2.11.4).
const PACKET_BYTES_MAX: u32 = 65 << 20;
/// Time limit for the broker to close a connection.
const CLOSE_WAIT: Duration = Duration::from_secs(5);
/// Messages in memory that are not yet accepted.
const MEMORY: Memory = Memory { bytes_max: 2 * PACKET_BYTES_MAX, wait: Duration::from_secs(5) };

/// Its row in the table of kinds.
pub(crate) static KIND: KindDescription = KindDescription {
    name: "mqtt",
    summary: "messages of topics of an MQTT 5 broker",
    schema: schema_of::<MqttOptions>,
    needs: &[SourceResource::NamedServers, SourceResource::ReadableFiles],
    secrets: &[("password", SecretShape::Whole)],
    location: Some(LocationDescription { event_options: &["fields"] }),
    check: check_of::<MqttOptions>,
    not_allowed: not_allowed_of::<MqttOptions>,
    open,
};

fn open(setting: SourceSettings, marks: Vec<Mark>) -> Opened {
    Ok(Box::new(session(setting, marks)?))
}

fn session(setting: SourceSettings, marks: Vec<Mark>) -> Result<Session, Vec<Problem>> {
    let options: MqttOptions = read(&setting.options, "")?;
    let connection = &options.connection;
    let trust = connection.tls.certificates.client_config(&setting.context.files).map_err(|problem| vec![problem])?;
    let client_id = connection.client_id.clone().unwrap_or_else(|| setting.remote_name.clone());
    let id = format!("{}:{}/{client_id}", connection.host, connection.port.unwrap_or_default());
    let mut connect = connection.client(client_id, &trust);
    connect.set_clean_start(false).set_manual_acks(true).set_receive_maximum(Some(WINDOW));
    connect.set_session_expiry_interval(Some(u32::try_from(options.session.0.as_secs()).unwrap_or(u32::MAX)));
    connect.set_max_packet_size(Some(PACKET_BYTES_MAX));
    Ok(Session {
        mapping: Mapping::new(&setting.output.fields(), &options.fields),
        recent: stored(&marks, RECENT)?.unwrap_or_default(),
        retained: stored(&marks, RETAINED)?.unwrap_or_default(),
        filters: stored(&marks, SUBSCRIBED)?.unwrap_or_default(),
        subscriptions: Subscription::of(&options.topics),
        leaders: HashMap::new(),
        is_stray_known: false,
        connection: None,
        held: Vec::new(),
        memory: MEMORY,
        session: id,
        connect,
        setting,
    })
}

/// A session at a broker.
struct Session {
    setting: SourceSettings,
    connect: rumqttc::v5::MqttOptions,
    memory: Memory,
    mapping: Mapping,
    connection: Option<Connection>,
    /// Identifies the session: the broker's address and the client id.
    session: String,
    /// The filters that the session may have, as stored.
    filters: Filters,
    subscriptions: Vec<Subscription>,
    /// The subscription whose copies are taken, by topic, where several match.
    leaders: HashMap<String, usize>,
    /// Whether a message of an unknown topic was reported.
    is_stray_known: bool,
    /// Packet id and hash of the last accepted messages, the newest last.
    recent: VecDeque<(u16, String)>,
    /// Hashes of a topic and of its last retained message, the newest last.
    retained: VecDeque<(String, String)>,
    /// Messages of the last batch.
    held: Vec<Arrived>,
}

/// The filters that a session has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Filters {
    session: String,
    filters: BTreeSet<String>,
}

impl Filters {
    fn mark(&self) -> Mark {
        Mark::set(SUBSCRIBED, serde_json::to_vec(self).expect("it is JSON"))
    }
}

/// The bound of messages in memory.
#[derive(Clone, Copy)]
struct Memory {
    bytes_max: u32,
    /// Time for which the connection is not read when the memory is full; less than the keep-alive interval.
    wait: Duration,
}

/// A connection, whose protocol runs in its own task.
struct Connection {
    client: AsyncClient,
    incoming: mpsc::Receiver<Result<Incoming, String>>,
    protocol: JoinHandle<()>,
    /// Whether it has ended because the memory was full.
    is_over: bool,
}

/// A message, with its part of the memory.
struct Arrived {
    publish: Publish,
    _room: OwnedSemaphorePermit,
}

/// A message or event from the broker.
enum Incoming {
    Message(Box<Arrived>),
    /// All subscriptions and unsubscriptions are confirmed.
    Subscribed,
    /// Messages were discarded because the memory was full, and all others are acknowledged: the connection has ended.
    Over,
}

/// Messages to take, or the confirmation of the subscriptions.
enum Received {
    Messages(Vec<Arrived>),
    Subscribed,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.protocol.abort();
    }
}

impl Connection {
    fn open(
        connect: rumqttc::v5::MqttOptions,
        memory: Memory,
        requested: Vec<Subscription>,
        unwanted: Vec<String>,
    ) -> Connection {
        // Every message may need an acknowledgement at once, and each filter a request.
        let (client, mut events) = AsyncClient::new(connect, 2 * usize::from(WINDOW) + 2 * options::TOPICS_MAX);
        let (sender, incoming) = mpsc::channel(usize::from(WINDOW));
        let subscriber = client.clone();
        let room = Arc::new(Semaphore::new(memory.bytes_max as usize));
        let protocol = tokio::spawn(async move {
            let mut open = 0;
            // Messages that are passed on and not yet acknowledged.
            let mut unacknowledged = 0_usize;
            let mut is_full = false;
            loop {
                let said = match events.poll().await {
                    Ok(Event::Incoming(Packet::ConnAck(greeting))) => {
                        match subscribe(&subscriber, &greeting, &requested, &unwanted) {
                            Ok(requests) => {
                                open = requests;
                                continue;
                            }
                            Err(error) => Err(error),
                        }
                    }
                    Ok(Event::Incoming(Packet::SubAck(answer))) => {
                        open -= 1;
                        match answer.return_codes.iter().find(|code| !is_granted(code)) {
                            Some(code) => Err(format!("the broker rejects a subscription: {code:?}")),
                            None if open == 0 => Ok(Incoming::Subscribed),
                            None => continue,
                        }
                    }
                    Ok(Event::Incoming(Packet::UnsubAck(answer))) => {
                        open -= 1;
                        match answer.reasons.iter().find(|reason| !is_gone(reason)) {
                            Some(reason) => Err(format!("the broker rejects an unsubscription: {reason:?}")),
                            None if open == 0 => Ok(Incoming::Subscribed),
                            None => continue,
                        }
                    }
                    Ok(Event::Incoming(Packet::Publish(publish))) => {
                        // Without those before it, a message would be out of order.
                        if is_full {
                            continue;
                        }
                        let bytes = u32::try_from(publish.payload.len()).unwrap_or(u32::MAX).min(memory.bytes_max);
                        let fitting = async {
                            let slot = sender.reserve().await.ok()?;
                            Some((slot, room.clone().acquire_many_owned(bytes).await.ok()?))
                        };
                        match tokio::time::timeout(memory.wait, fitting).await {
                            Ok(Some((slot, room))) => {
                                unacknowledged += usize::from(publish.pkid != 0);
                                slot.send(Ok(Incoming::Message(Box::new(Arrived { publish, _room: room }))));
                                continue;
                            }
                            Ok(None) => return,
                            Err(_) => is_full = true,
                        }
                        if unacknowledged > 0 {
                            continue;
                        }
                        Ok(Incoming::Over)
                    }
                    Ok(Event::Outgoing(Outgoing::PubAck(_))) => {
                        unacknowledged = unacknowledged.saturating_sub(1);
                        if !is_full || unacknowledged > 0 {
                            continue;
                        }
                        Ok(Incoming::Over)
                    }
                    Ok(Event::Incoming(Packet::Disconnect(goodbye))) => {
                        Err(format!("the broker disconnects: {:?}", goodbye.reason_code))
                    }
                    Ok(_) => continue,
                    Err(error) => Err(error.to_string()),
                };
                if matches!(said, Ok(Incoming::Over)) {
                    // Until the broker closes: data that is still unread would reset the connection, and lose
                    // acknowledgements.
                    let _ = subscriber.try_disconnect();
                    let closed = async { while events.poll().await.is_ok() {} };
                    let _ = tokio::time::timeout(CLOSE_WAIT, closed).await;
                }
                // After an error the library would reconnect by itself; that is left to the supervisor.
                let over = matches!(said, Err(_) | Ok(Incoming::Over));
                if sender.send(said).await.is_err() || over {
                    return;
                }
            }
        });
        Connection { client, incoming, protocol, is_over: false }
    }
}

/// Updates the subscriptions of a session. Returns the number of expected responses.
fn subscribe(
    client: &AsyncClient,
    greeting: &ConnAck,
    requested: &[Subscription],
    unwanted: &[String],
) -> Result<usize, String> {
    let has_ids = greeting.properties.as_ref().is_none_or(|known| known.subscription_identifiers_available != Some(0));
    // Existing ones too: the broker may have lost some, and does not send retained messages again.
    for Subscription { filter, id } in requested {
        let filter = Filter {
            path: filter.clone(),
            qos: QoS::AtLeastOnce,
            nolocal: false,
            preserve_retain: false,
            retain_forward_rule: RetainForwardRule::OnNewSubscribe,
        };
        let properties = SubscribeProperties { id: has_ids.then_some(*id), user_properties: Vec::new() };
        let sent = client.try_subscribe_many_with_properties([filter], properties);
        sent.map_err(|error| format!("a subscription cannot be sent: {error}"))?;
    }
    // After the subscriptions, so that no message is lost between an old filter and a new one.
    let unwanted: &[String] = if greeting.session_present { unwanted } else { &[] };
    for filter in unwanted {
        client.try_unsubscribe(filter.clone()).map_err(|error| format!("an unsubscription cannot be sent: {error}"))?;
    }
    Ok(requested.len() + unwanted.len())
}

fn is_granted(code: &SubscribeReasonCode) -> bool {
    matches!(code, SubscribeReasonCode::Success(_))
}

fn is_gone(reason: &UnsubAckReason) -> bool {
    matches!(reason, UnsubAckReason::Success | UnsubAckReason::NoSubscriptionExisted)
}

fn hash_of(publish: &Publish) -> String {
    hash(&[&publish.topic, &publish.payload])
}

impl Session {
    /// The filters that the broker should have.
    fn expected_filters(&self) -> Filters {
        let filters = self.subscriptions.iter().map(|one| one.filter.clone()).collect();
        Filters { session: self.session.clone(), filters }
    }

    /// The filters that it may have from now on, unless they are stored already.
    fn new_filters(&mut self) -> Option<Mark> {
        let mut all = self.expected_filters();
        if self.filters.session == self.session {
            all.filters.extend(self.filters.filters.iter().cloned());
        }
        let is_new = all != self.filters;
        self.filters = all;
        is_new.then(|| self.filters.mark())
    }

    /// The messages that have arrived, or the first that arrives.
    async fn receive(&mut self) -> Result<Received, SourceError> {
        if self.connection.as_ref().is_some_and(|connection| connection.is_over) {
            let (application, source) = (&self.setting.application, &self.setting.name);
            tracing::info!(%application, %source, "the memory for messages was full; the session is resumed");
            self.connection = None;
        }
        if self.connection.is_none() {
            let requested = self.expected_filters();
            let unwanted = self.filters.filters.difference(&requested.filters).cloned().collect();
            let (connect, subscriptions) = (self.connect.clone(), self.subscriptions.clone());
            self.connection = Some(Connection::open(connect, self.memory, subscriptions, unwanted));
        }
        let Some(mut connection) = self.connection.take() else {
            return Err(SourceError::of("there is no connection to the broker"));
        };
        let received = self.receive_from(&mut connection).await;
        self.connection = Some(connection);
        received
    }

    async fn receive_from(&mut self, connection: &mut Connection) -> Result<Received, SourceError> {
        let (mut messages, mut bytes) = (Vec::new(), 0);
        let mut next = connection.incoming.recv().await;
        loop {
            match next {
                Some(Ok(Incoming::Message(message))) => match self.should_accept(&message.publish) {
                    true => {
                        bytes += message.publish.payload.len();
                        messages.push(*message);
                    }
                    false => acknowledge(&connection.client, &message.publish).await?,
                },
                Some(Ok(Incoming::Subscribed)) if messages.is_empty() => return Ok(Received::Subscribed),
                // The stored filters remain valid; the next connection repeats the requests.
                Some(Ok(Incoming::Subscribed)) => {}
                Some(Ok(Incoming::Over)) => {
                    connection.is_over = true;
                    return Ok(Received::Messages(messages));
                }
                // Messages received before could not be acknowledged any more, and are redelivered.
                Some(Err(error)) => return Err(SourceError::new("the connection to the broker", error)),
                None => return Err(SourceError::of("the connection to the broker has ended")),
            }
            if bytes >= BATCH_BYTES_MAX {
                return Ok(Received::Messages(messages));
            }
            next = match connection.incoming.try_recv() {
                Ok(next) => Some(next),
                Err(_) => return Ok(Received::Messages(messages)),
            };
        }
    }

    /// Whether a message is to be taken: of a topic of the definition, and not taken before.
    fn should_accept(&mut self, publish: &Publish) -> bool {
        let said = hash_of(publish);
        if publish.dup && self.recent.contains(&(publish.pkid, said.clone())) {
            return false;
        }
        // A renewed subscription delivers the last retained message again.
        if publish.retain {
            let topic = hash(&[&publish.topic]);
            let is_known = self.recent.iter().any(|(_, known)| *known == said)
                || self.retained.iter().any(|(known, last)| *known == topic && *last == said);
            if is_known {
                return false;
            }
        }
        let topic = String::from_utf8_lossy(&publish.topic);
        if !self.subscriptions.iter().any(|one| one.matches(&topic)) {
            if !std::mem::replace(&mut self.is_stray_known, true) {
                tracing::warn!(
                    application = %self.setting.application, source = %self.setting.name, %topic,
                    "the broker's session has a subscription that is not in the definition: its messages are discarded; another `client_id` starts a new session"
                );
            }
            metrics::counter!("tocsin_source_filtered_total", "reason" => "topic").increment(1);
            return false;
        }
        if self.is_copy(publish, &topic) {
            metrics::counter!("tocsin_source_filtered_total", "reason" => "overlap").increment(1);
            return false;
        }
        true
    }

    /// Whether a message is a further copy, because several subscriptions match its topic. A broker that sends one copy
    /// per subscription includes the subscription identifiers.
    fn is_copy(&mut self, publish: &Publish, topic: &str) -> bool {
        let Some(ids) = publish.properties.as_ref().map(|properties| &properties.subscription_identifiers) else {
            return false;
        };
        let matching: Vec<&Subscription> = self.subscriptions.iter().filter(|one| one.matches(topic)).collect();
        if matching.len() < 2 || ids.is_empty() {
            return false;
        }
        let own = |one: &&&Subscription| ids.contains(&one.id);
        let Some(carried) = matching.iter().filter(|one| !one.is_shared()).find(own) else {
            // A shared subscription has its own copy.
            return matching.iter().any(|one| !one.is_shared()) && matching.iter().any(|one| own(&one));
        };
        if self.leaders.len() >= LEADERS_MAX && !self.leaders.contains_key(topic) {
            self.leaders.clear();
        }
        let leader = *self.leaders.entry(topic.to_owned()).or_insert(carried.id);
        !ids.contains(&leader)
    }

    fn batch(&mut self, messages: Vec<Arrived>) -> SourceBatch {
        let mut builder = BatchBuilder::new(&self.setting.output);
        let mut has_retained = false;
        for Arrived { publish, .. } in &messages {
            let item = || Item::Json(publish.payload.to_vec());
            builder.take(&self.mapping, item, || raw_message(publish), trace_of(publish).as_ref());
            if publish.pkid != 0 {
                self.recent.push_back((publish.pkid, hash_of(publish)));
            }
            if publish.retain {
                has_retained = true;
                let topic = hash(&[&publish.topic]);
                self.retained.retain(|(known, _)| *known != topic);
                self.retained.push_back((topic, hash_of(publish)));
            }
        }
        while self.recent.len() > RECENT_MAX {
            self.recent.pop_front();
        }
        while self.retained.len() > RETAINED_MAX {
            self.retained.pop_front();
        }
        let mut batch = builder.finish();
        batch.marks = vec![Mark::set(RECENT, serde_json::to_vec(&self.recent).expect("it is JSON"))];
        if has_retained {
            batch.marks.push(Mark::set(RETAINED, serde_json::to_vec(&self.retained).expect("it is JSON")));
        }
        self.held = messages;
        batch
    }
}

/// The trace context in the user properties of a message.
fn trace_of(publish: &Publish) -> Option<TraceContext> {
    let properties = &publish.properties.as_ref()?.user_properties;
    let find = |name: &str| properties.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    TraceContext::read(find("traceparent")?, find("tracestate"))
}

/// A message with its user properties and its topic.
fn raw_message(publish: &Publish) -> source::Message {
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

async fn acknowledge(client: &AsyncClient, publish: &Publish) -> Result<(), SourceError> {
    if publish.pkid == 0 {
        return Ok(());
    }
    client.ack(publish).await.map_err(|error| SourceError::new("a message cannot be acknowledged", error))
}

#[async_trait]
impl OpenSource for Session {
    async fn next(&mut self) -> Result<SourceBatch, SourceError> {
        // Before subscribing: after a crash the broker may have all of them.
        if self.connection.is_none()
            && let Some(mark) = self.new_filters()
        {
            return Ok(SourceBatch { marks: vec![mark], ..SourceBatch::default() });
        }
        loop {
            match self.receive().await? {
                Received::Messages(messages) if messages.is_empty() => {}
                Received::Messages(messages) => return Ok(self.batch(messages)),
                Received::Subscribed => {
                    let requested = self.expected_filters();
                    let is_new = self.filters != requested;
                    self.filters = requested;
                    let marks = is_new.then(|| self.filters.mark()).into_iter().collect();
                    return Ok(SourceBatch { marks, ..SourceBatch::default() });
                }
            }
        }
    }

    async fn accepted(&mut self) -> Result<(), SourceError> {
        let held = std::mem::take(&mut self.held);
        let Some(connection) = &self.connection else { return Ok(()) };
        for message in &held {
            acknowledge(&connection.client, &message.publish).await?;
        }
        Ok(())
    }
}
