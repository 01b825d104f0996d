use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use rumqttc::v5::mqttbytes::v5::PublishProperties;
use rustls::ClientConfig;
use tocsin_connect::{Clock, mqtt::topic};
use tocsin_model::{
    content::PartsUsed,
    id::Name,
    receipt::{Disposition, Reason, ReasonKind},
};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{
    connection::{BrokerEvent, Connection},
    options::MqttOptions,
};
use crate::{
    channel::{Context, Message},
    pending::PendingDelivery,
    queue::Queue,
    record,
    running::{ProtocolSender, pause_after},
};

/// Room in a packet for everything but topic and content.
const PACKET_HEAD_BYTES: usize = 1024;

/// The session of a channel.
pub(super) struct Publisher {
    name: Name,
    options: MqttOptions,
    trust: Arc<ClientConfig>,
    client_id: String,
    clock: Arc<dyn Clock>,
    window: usize,
    queue: Arc<Queue>,
    last_failure: Mutex<Option<Reason>>,
}

impl Publisher {
    pub fn new(
        name: &Name,
        options: MqttOptions,
        trust: Arc<ClientConfig>,
        context: &Context,
        window: usize,
        queue: Arc<Queue>,
    ) -> Self {
        let client_id = options.connection.client_id.clone();
        let client_id = client_id.unwrap_or_else(|| format!("tocsin-{}-{name}", context.installation));
        let (name, clock) = (name.clone(), context.clock.clone());
        Publisher { name, options, trust, client_id, clock, window, queue, last_failure: Mutex::new(None) }
    }

    /// Serves one connection after the other, until the queue is closed.
    pub async fn run(self: Arc<Self>) {
        let mut failures = 0;
        // A connection is made when there is something to send.
        while let Some(first) = self.queue.pop_many(1).await {
            let (greeted, over) = self.serve(first).await;
            let Some(reason) = over else { return };
            tracing::warn!(channel = %self.name, "{}", reason.text);
            *self.last_failure.lock() = Some(reason);
            failures = if greeted { 1 } else { failures + 1 };
            sleep(pause_after(failures)).await;
        }
    }

    /// Sends over one connection until it ends or the queue is closed. Returns whether the broker accepted it, and
    /// why it ended.
    async fn serve(&self, first: Vec<PendingDelivery>) -> (bool, Option<Reason>) {
        let mut connection = self.connect(self.client_id.clone());
        let (mut waiting, mut open, mut greeted) = (first, true, false);
        let over = loop {
            if greeted {
                let mut lost = None;
                for pending in waiting.drain(..) {
                    match self.publish(&mut connection, pending) {
                        Ok(()) => {}
                        Err(Unsent::Refused(pending, reason)) => pending.answer(Disposition::Refused { reason }).await,
                        Err(Unsent::Lost(pending)) => lost = Some(*pending),
                    }
                }
                if let Some(pending) = lost {
                    waiting.push(pending);
                    break Some(Reason::new(ReasonKind::Connection, "the connection takes nothing any more"));
                }
            }
            if !open && waiting.is_empty() && connection.held() == 0 {
                break None;
            }
            let room = self.window.saturating_sub(connection.held() + waiting.len());
            let deadline = connection.deadline();
            tokio::select! {
                heard = connection.listen() => match heard {
                    BrokerEvent::Accepted => {
                        greeted = true;
                        *self.last_failure.lock() = None;
                    }
                    BrokerEvent::Acknowledged(pending, disposition) => pending.answer(disposition).await,
                    BrokerEvent::Irrelevant => {}
                    BrokerEvent::Ended(reason) => break Some(reason),
                },
                taken = self.queue.pop_many(room), if greeted && open && room > 0 => match taken {
                    Some(taken) => waiting = taken,
                    None => open = false,
                },
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    let text = format!("no answer of the broker within {}", self.options.connection.timeout);
                    break Some(Reason::new(ReasonKind::Timeout, text));
                }
            }
        };
        match over {
            None => {
                let patience = self.options.connection.timeout.0;
                // No message is unacknowledged, so a slow disconnect loses nothing.
                let _ = timeout(patience, connection.close()).await;
                (greeted, None)
            }
            Some(reason) => {
                waiting.extend(connection.abort());
                for pending in waiting {
                    let reason = reason.clone();
                    pending.answer(Disposition::Deferred { reason, retry_after: None }).await;
                }
                (greeted, Some(reason))
            }
        }
    }

    fn connect(&self, client_id: String) -> Connection {
        let options = self.options.connection.client(client_id, &self.trust);
        Connection::open(options, self.window)
    }

    fn publish(&self, connection: &mut Connection, pending: PendingDelivery) -> Result<(), Unsent> {
        if let Some(reason) = pending.too_late() {
            return Err(Unsent::Refused(Box::new(pending), reason));
        }
        let topic = match topic(&self.options.topic_prefix, &pending.outgoing.address) {
            Ok(topic) => topic,
            Err(text) => return Err(Unsent::Refused(Box::new(pending), Reason::new(ReasonKind::Address, text))),
        };
        let message = pending.outgoing.message.clone();
        let body = record::body(&message);
        let most = connection.greeting().and_then(|greeting| greeting.packet_bytes_max).unwrap_or(u32::MAX);
        if topic.len() + body.len() + PACKET_HEAD_BYTES > most as usize {
            let text = format!("with {} bytes it is larger than the broker takes ({most})", body.len());
            return Err(Unsent::Refused(Box::new(pending), Reason::new(ReasonKind::Answer, text)));
        }
        // The broker need not retain a message that expires either.
        let seconds =
            message.expires_at.map(|at| at.since(self.clock.now()).as_secs().clamp(1, u32::MAX.into()) as u32);
        let properties = PublishProperties {
            payload_format_indicator: Some(1),
            message_expiry_interval: seconds,
            content_type: Some("application/json".into()),
            user_properties: user_properties(&message),
            ..PublishProperties::default()
        };
        let deadline = Instant::now() + self.options.connection.timeout.0;
        let how = (self.options.quality(), self.options.retain);
        connection.publish(pending, topic, how, body.into(), properties, deadline).map_err(Unsent::Lost)
    }
}

/// User properties of a message.
fn user_properties(message: &Message) -> Vec<(String, String)> {
    let own = [("id", message.message_id.clone()), ("type", message.facts.class.to_string())];
    own.into_iter().chain(message.trace_headers()).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Why a message was not published.
enum Unsent {
    /// It can never be published.
    Refused(Box<PendingDelivery>, Reason),
    /// The connection ended.
    Lost(Box<PendingDelivery>),
}

#[async_trait]
impl ProtocolSender for Publisher {
    /// Logs in with another client id, so that the session's own connection is not taken over.
    async fn probe(&self) -> Result<String, Reason> {
        let mut connection = self.connect(format!("{}-probe", self.client_id));
        let greeting = async {
            loop {
                match connection.listen().await {
                    BrokerEvent::Accepted => return Ok(()),
                    BrokerEvent::Ended(reason) => return Err(reason),
                    BrokerEvent::Acknowledged(..) | BrokerEvent::Irrelevant => {}
                }
            }
        };
        let (host, port) = (&self.options.connection.host, self.options.connection.port());
        match timeout(self.options.connection.timeout.0, greeting).await {
            Ok(Ok(())) => {
                let _ = timeout(self.options.connection.timeout.0, connection.close()).await;
                Ok(format!("{host}:{port} lets us in"))
            }
            Ok(Err(reason)) => Err(reason),
            Err(_) => Err(Reason::new(ReasonKind::Timeout, format!("{host}:{port} does not answer"))),
        }
    }

    fn down(&self) -> Option<Reason> {
        self.last_failure.lock().clone()
    }

    fn parts_used(&self) -> PartsUsed {
        record::BODY_PARTS
    }
}
