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
use crate::pending::Pending;

/// What happened on the connection, as it comes.
type Happening = Result<Event, ConnectionError>;

/// A connection, from the attempt to make it to its end. Its protocol runs in a task of its own, which ends with it.
pub(super) struct Connection {
    client: AsyncClient,
    happenings: mpsc::Receiver<Happening>,
    protocol: JoinHandle<()>,
    /// What the broker said at the beginning.
    greeting: Option<Greeting>,
    /// Published, but without a number yet, in their order.
    unnumbered: VecDeque<Held>,
    /// By the number that the protocol gave them.
    numbered: HashMap<u16, Held>,
}

/// What a broker says of itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Greeting {
    /// The largest packet that it takes, in bytes.
    pub packet_bytes_max: Option<u32>,
}

/// A message on its way, and until when its answer may come.
struct Held {
    pending: Pending,
    deadline: Instant,
}

/// What comes of listening for a moment.
pub(super) enum Heard {
    /// The broker lets us in.
    Greeted,
    /// A message has its answer.
    Answer(Box<Pending>, Disposition),
    /// Nothing that matters here.
    Nothing,
    /// The connection is over.
    Over(Reason),
}

impl Connection {
    /// Begins to connect; at most `window` messages will be on their way at a time.
    pub fn open(options: MqttOptions, window: usize) -> Connection {
        let (client, mut events) = AsyncClient::new(options, window);
        let (sender, happenings) = mpsc::channel(window);
        let protocol = tokio::spawn(async move {
            loop {
                let happening = events.poll().await;
                // After trouble the library would connect again and send what we have given up.
                let over = happening.is_err();
                if sender.send(happening).await.is_err() || over {
                    return;
                }
            }
        });
        Connection {
            client,
            happenings,
            protocol,
            greeting: None,
            unnumbered: VecDeque::new(),
            numbered: HashMap::new(),
        }
    }

    pub fn greeting(&self) -> Option<Greeting> {
        self.greeting
    }

    /// How many messages are on their way.
    pub fn held(&self) -> usize {
        self.unnumbered.len() + self.numbered.len()
    }

    /// When the first of them should have its answer.
    pub fn deadline(&self) -> Option<Instant> {
        self.unnumbered.iter().chain(self.numbered.values()).map(|held| held.deadline).min()
    }

    /// Hands a message over. Gives it back if the connection is over.
    pub fn publish(
        &mut self,
        mut pending: Pending,
        topic: String,
        (quality, retain): (QoS, bool),
        body: bytes::Bytes,
        properties: PublishProperties,
        deadline: Instant,
    ) -> Result<(), Box<Pending>> {
        match self.client.try_publish_with_properties(topic, quality, retain, body, properties) {
            Ok(()) => {
                pending.sent();
                self.unnumbered.push_back(Held { pending, deadline });
                Ok(())
            }
            Err(_) => Err(Box::new(pending)),
        }
    }

    /// Waits for the next thing that happens. Nothing is lost if the wait is given up.
    pub async fn listen(&mut self) -> Heard {
        let event = match self.happenings.recv().await {
            Some(Ok(event)) => event,
            Some(Err(error)) => return Heard::Over(classify::broken(&error)),
            None => return Heard::Over(Reason::new(ReasonKind::Connection, "the connection to the broker is over")),
        };
        let answer = |held: Option<Held>, disposition| match held {
            Some(held) => Heard::Answer(Box::new(held.pending), disposition),
            None => Heard::Nothing,
        };
        match event {
            Event::Outgoing(Sent::Publish(number)) => {
                if let Some(held) = self.unnumbered.pop_front() {
                    self.numbered.insert(number, held);
                }
                Heard::Nothing
            }
            Event::Incoming(Packet::ConnAck(ConnAck { properties, .. })) => {
                let packet_bytes_max = properties.and_then(|properties| properties.max_packet_size);
                self.greeting = Some(Greeting { packet_bytes_max });
                Heard::Greeted
            }
            Event::Incoming(Packet::PubAck(ack)) => {
                answer(self.numbered.remove(&ack.pkid), classify::acknowledged(ack.reason))
            }
            Event::Incoming(Packet::PubRec(receipt)) => match classify::received(receipt.reason) {
                Some(disposition) => answer(self.numbered.remove(&receipt.pkid), disposition),
                None => Heard::Nothing,
            },
            Event::Incoming(Packet::PubComp(end)) => {
                answer(self.numbered.remove(&end.pkid), classify::completed(end.reason))
            }
            Event::Incoming(Packet::Disconnect(end)) => {
                let text = format!("the broker ended the connection: {:?}", end.reason_code);
                Heard::Over(Reason::new(ReasonKind::Connection, text))
            }
            _ => Heard::Nothing,
        }
    }

    /// Says goodbye and ends; gives back what has no answer.
    pub async fn close(mut self) -> Vec<Pending> {
        if self.client.disconnect().await.is_ok() {
            while !matches!(self.listen().await, Heard::Over(_)) {}
        }
        self.abandon()
    }

    /// Ends at once; gives back what has no answer.
    pub fn abandon(mut self) -> Vec<Pending> {
        let numbered = std::mem::take(&mut self.numbered).into_values();
        std::mem::take(&mut self.unnumbered).into_iter().chain(numbered).map(|held| held.pending).collect()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.protocol.abort();
    }
}
