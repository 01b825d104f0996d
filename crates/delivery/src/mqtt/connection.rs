use std::collections::{HashMap, VecDeque};

use rumqttc::{
    Outgoing as Sent,
    v5::{
        AsyncClient, ConnectionError, Event, MqttOptions,
        mqttbytes::{
            QoS,
            v5::{ConnAck, Packet, PublishProperties},
        },
    },
};
use tocsin_model::receipt::{Disposition, Reason, ReasonKind};
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};

use super::classify;
use crate::pending::PendingDelivery;

/// An event of the connection.
type ConnectionEvent = Result<Event, ConnectionError>;

/// A connection, from connecting to its end. Its protocol runs in its own task, which ends with it.
pub(super) struct Connection {
    client: AsyncClient,
    events: mpsc::Receiver<ConnectionEvent>,
    protocol: JoinHandle<()>,
    /// The broker's CONNACK.
    greeting: Option<Greeting>,
    /// Published, but without a packet identifier yet, in order.
    unnumbered: VecDeque<UnacknowledgedPublish>,
    /// By packet identifier.
    numbered: HashMap<u16, UnacknowledgedPublish>,
}

/// Properties of a broker, from its CONNACK.
#[derive(Debug, Clone, Copy)]
pub(super) struct Greeting {
    /// The largest packet that it accepts, in bytes.
    pub packet_bytes_max: Option<u32>,
}

/// A message in flight, and the deadline of its acknowledgement.
struct UnacknowledgedPublish {
    pending: PendingDelivery,
    deadline: Instant,
}

/// Event of a connection.
pub(super) enum BrokerEvent {
    /// The broker accepted the connection.
    Accepted,
    /// A message was acknowledged.
    Acknowledged(Box<PendingDelivery>, Disposition),
    /// An event that needs no action.
    Irrelevant,
    /// The connection ended.
    Ended(Reason),
}

impl Connection {
    /// Begins to connect; at most `window` messages are in flight at a time.
    pub fn open(options: MqttOptions, window: usize) -> Connection {
        let (client, mut event_loop) = AsyncClient::new(options, window);
        let (sender, events) = mpsc::channel(window);
        let protocol = tokio::spawn(async move {
            loop {
                let event = event_loop.poll().await;
                // After a failure the library would reconnect and resend messages that we have given up.
                let over = event.is_err();
                if sender.send(event).await.is_err() || over {
                    return;
                }
            }
        });
        Connection { client, events, protocol, greeting: None, unnumbered: VecDeque::new(), numbered: HashMap::new() }
    }

    pub fn greeting(&self) -> Option<Greeting> {
        self.greeting
    }

    /// Number of messages in flight.
    pub fn held(&self) -> usize {
        self.unnumbered.len() + self.numbered.len()
    }

    /// The earliest deadline of an acknowledgement.
    pub fn deadline(&self) -> Option<Instant> {
        self.unnumbered.iter().chain(self.numbered.values()).map(|held| held.deadline).min()
    }

    /// Publishes a message. Returns it if the connection has ended.
    pub fn publish(
        &mut self,
        mut pending: PendingDelivery,
        topic: String,
        (quality, retain): (QoS, bool),
        body: bytes::Bytes,
        properties: PublishProperties,
        deadline: Instant,
    ) -> Result<(), Box<PendingDelivery>> {
        match self.client.try_publish_with_properties(topic, quality, retain, body, properties) {
            Ok(()) => {
                pending.sent();
                self.unnumbered.push_back(UnacknowledgedPublish { pending, deadline });
                Ok(())
            }
            Err(_) => Err(Box::new(pending)),
        }
    }

    /// Waits for the next event. Cancel-safe.
    pub async fn listen(&mut self) -> BrokerEvent {
        let event = match self.events.recv().await {
            Some(Ok(event)) => event,
            Some(Err(error)) => return BrokerEvent::Ended(classify::broken(&error)),
            None => {
                return BrokerEvent::Ended(Reason::new(ReasonKind::Connection, "the connection to the broker is over"));
            }
        };
        let answer = |held: Option<UnacknowledgedPublish>, disposition| match held {
            Some(held) => BrokerEvent::Acknowledged(Box::new(held.pending), disposition),
            None => BrokerEvent::Irrelevant,
        };
        match event {
            Event::Outgoing(Sent::Publish(number)) => {
                if let Some(held) = self.unnumbered.pop_front() {
                    self.numbered.insert(number, held);
                }
                BrokerEvent::Irrelevant
            }
            Event::Incoming(Packet::ConnAck(ConnAck { properties, .. })) => {
                let packet_bytes_max = properties.and_then(|properties| properties.max_packet_size);
                self.greeting = Some(Greeting { packet_bytes_max });
                BrokerEvent::Accepted
            }
            Event::Incoming(Packet::PubAck(ack)) => {
                answer(self.numbered.remove(&ack.pkid), classify::acknowledged(ack.reason))
            }
            Event::Incoming(Packet::PubRec(receipt)) => match classify::received(receipt.reason) {
                Some(disposition) => answer(self.numbered.remove(&receipt.pkid), disposition),
                None => BrokerEvent::Irrelevant,
            },
            Event::Incoming(Packet::PubComp(end)) => {
                answer(self.numbered.remove(&end.pkid), classify::completed(end.reason))
            }
            Event::Incoming(Packet::Disconnect(end)) => {
                let text = format!("the broker ended the connection: {:?}", end.reason_code);
                BrokerEvent::Ended(Reason::new(ReasonKind::Connection, text))
            }
            _ => BrokerEvent::Irrelevant,
        }
    }

    /// Disconnects; returns unacknowledged messages.
    pub async fn close(mut self) -> Vec<PendingDelivery> {
        if self.client.disconnect().await.is_ok() {
            while !matches!(self.listen().await, BrokerEvent::Ended(_)) {}
        }
        self.abort()
    }

    /// Drops the connection; returns unacknowledged messages.
    pub fn abort(mut self) -> Vec<PendingDelivery> {
        let numbered = std::mem::take(&mut self.numbered).into_values();
        std::mem::take(&mut self.unnumbered).into_iter().chain(numbered).map(|held| held.pending).collect()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.protocol.abort();
    }
}
