use std::sync::Arc;

use async_nats::{
    Client, ConnectOptions,
    connection::State,
    jetstream::{self, message::PublishMessage},
};
use async_trait::async_trait;
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use parking_lot::Mutex;
use tocsin_connect::nats::subject;
use tocsin_model::{
    content::PartsUsed,
    id::Name,
    receipt::{Disposition, Reason, ReasonKind},
};
use tokio::time::{sleep, timeout};

use super::{classify, options::NatsOptions};
use crate::{
    pending::PendingDelivery,
    queue::Queue,
    record,
    running::{ProtocolSender, pause_after},
};

/// The session of a channel.
pub(super) struct Publisher {
    name: Name,
    options: NatsOptions,
    connect: ConnectOptions,
    /// Most unacknowledged messages.
    window: usize,
    queue: Arc<Queue>,
    reached: Mutex<Reached>,
}

/// State of the connection.
#[derive(Default)]
struct Reached {
    client: Option<Client>,
    /// The latest connection failure, if any.
    last_failure: Option<Reason>,
}

/// A message with the result of its publish.
type Acknowledged = BoxFuture<'static, (PendingDelivery, Disposition)>;

impl Publisher {
    pub fn new(name: &Name, options: NatsOptions, connect: ConnectOptions, window: usize, queue: Arc<Queue>) -> Self {
        Publisher { name: name.clone(), options, connect, window, queue, reached: Mutex::default() }
    }

    /// Runs until the queue is closed, and then waits for the remaining acknowledgements.
    pub async fn run(self: Arc<Self>) {
        let mut on_their_way: FuturesUnordered<Acknowledged> = FuturesUnordered::new();
        let (mut open, mut failures) = (true, 0);
        while open || !on_their_way.is_empty() {
            let room = self.window.saturating_sub(on_their_way.len());
            tokio::select! {
                Some((pending, disposition)) = on_their_way.next() => pending.answer(disposition).await,
                taken = self.queue.pop_many(room.max(1)), if open && room > 0 => match taken {
                    None => open = false,
                    Some(taken) => match self.client().await {
                        Ok(client) => {
                            failures = 0;
                            let context = jetstream::new(client);
                            for pending in taken {
                                let acknowledged = self.publish(&context, pending).await;
                                on_their_way.push(acknowledged);
                            }
                        }
                        Err(reason) => {
                            failures += 1;
                            for pending in taken {
                                let reason = reason.clone();
                                pending.answer(Disposition::Deferred { reason, retry_after: None }).await;
                            }
                            sleep(pause_after(failures)).await;
                        }
                    },
                },
            }
        }
    }

    /// The client, connected with the first message; it reconnects automatically.
    async fn client(&self) -> Result<Client, Reason> {
        let known = self.reached.lock().client.clone();
        if let Some(client) = known {
            // The client would buffer messages published meanwhile and send them after the reconnect, whenever that
            // is.
            return match client.connection_state() {
                State::Connected => Ok(client),
                _ => Err(Reason::new(ReasonKind::Connection, "the connection broke and is not back yet")),
            };
        }
        match self.connect.clone().connect(self.options.connection.addresses()).await {
            Ok(client) => {
                *self.reached.lock() = Reached { client: Some(client.clone()), last_failure: None };
                Ok(client)
            }
            Err(error) => {
                let reason = classify::connect(&error.kind(), format!("no connection: {error}"));
                tracing::warn!(channel = %self.name, "{}", reason.text);
                self.reached.lock().last_failure = Some(reason.clone());
                Err(reason)
            }
        }
    }

    /// Publishes a message; the future returned waits for its acknowledgement.
    async fn publish(&self, context: &jetstream::Context, mut pending: PendingDelivery) -> Acknowledged {
        let at_once = |pending, disposition| -> Acknowledged { Box::pin(async move { (pending, disposition) }) };
        if let Some(reason) = pending.too_late() {
            return at_once(pending, Disposition::Refused { reason });
        }
        let subject = match subject(&self.options.subject_prefix, &pending.outgoing.address) {
            Ok(subject) => subject,
            Err(text) => {
                return at_once(pending, Disposition::Refused { reason: Reason::new(ReasonKind::Address, text) });
            }
        };
        let message = &pending.outgoing.message;
        let publish = PublishMessage::build()
            .message_id(identity(&pending))
            .header("Tocsin-Message-Id", message.message_id.as_str())
            .header("Tocsin-Class", message.facts.class.as_str())
            .header("Content-Type", "application/json")
            .payload(record::body(message).into());
        let publish = message.trace_headers().fold(publish, |publish, (name, value)| publish.header(name, value));
        pending.sent();
        let patience = self.options.connection.timeout.0;
        let sent = timeout(patience, context.send_publish(subject, publish)).await;
        let timed_out = || {
            let text = "the connection took nothing in time";
            Disposition::Deferred { reason: Reason::new(ReasonKind::Timeout, text), retry_after: None }
        };
        match sent {
            Err(_) => at_once(pending, timed_out()),
            Ok(Err(error)) => {
                let disposition = classify::publish(Err((error.kind(), error.to_string())));
                at_once(pending, disposition)
            }
            Ok(Ok(acknowledgement)) => Box::pin(async move {
                let result = timeout(patience, acknowledgement.into_future()).await;
                let disposition = match &result {
                    Err(_) => timed_out(),
                    Ok(Ok(ack)) => classify::publish(Ok(ack)),
                    Ok(Err(error)) => classify::publish(Err((error.kind(), error.to_string()))),
                };
                (pending, disposition)
            }),
        }
    }
}

/// `Nats-Msg-Id` of a message; each recipient of a multicast gets its own.
fn identity(pending: &PendingDelivery) -> String {
    format!("{}.{}", pending.outgoing.message.message_id, pending.outgoing.ticket.ordinal)
}

#[async_trait]
impl ProtocolSender for Publisher {
    async fn probe(&self) -> Result<String, Reason> {
        let client = self.client().await?;
        let info = client.server_info();
        match info.jetstream {
            true => Ok(format!("{} {} keeps streams", info.server_name, info.version)),
            false => Err(Reason::new(ReasonKind::Answer, format!("{} has JetStream switched off", info.server_name))),
        }
    }

    fn down(&self) -> Option<Reason> {
        let reached = self.reached.lock();
        match &reached.client {
            Some(client) if client.connection_state() == State::Connected => None,
            Some(_) => Some(Reason::new(ReasonKind::Connection, "the connection broke and is not back yet")),
            None => reached.last_failure.clone(),
        }
    }

    fn parts_used(&self) -> PartsUsed {
        record::BODY_PARTS
    }
}
