//! Direct messages: one content, through an open channel, to one address. The caller waits for the answer.
//!
//! A direct message is not stored: the caller learns its disposition, and repeats it if it needs to. Rates, priorities
//! and suspensions of the channel apply, as do suppressions.

use std::{sync::Arc, time::Duration};

use tocsin_delivery::{Answer, Facts, Message, Outgoing, Ticket};
use tocsin_model::{
    content::Content,
    delivery_policy::Priority,
    id::{EventId, Name, NotificationBatchId, NotificationId, SubscriberId},
    suppression::Cause,
};
use tocsin_store::error::StoreError;
use tokio::sync::mpsc;

use crate::{Pipeline, active_version::OpenedChannel, suppress::Destination};

/// Id of the notifications of direct messages; no batch has this number.
pub(crate) const DIRECT_ID: NotificationId = NotificationId { batch: NotificationBatchId(0), ordinal: 0 };

/// A message to send now.
#[derive(Debug, Clone)]
pub struct DirectMessage {
    /// The application.
    pub application: Name,
    /// Its channel.
    pub channel: Name,
    /// The address.
    pub address: String,
    /// The subscriber, for suppressions and feeds.
    pub subscriber: SubscriberId,
    /// The device, for suppressions; default: the name of the channel.
    pub device: Option<Name>,
    /// The content.
    pub content: Content,
    /// The notification class that receivers see.
    pub class: Name,
    /// Fields of the message, for protocols that carry data.
    pub fields: serde_json::Map<String, serde_json::Value>,
    /// The event, if it is stored.
    pub event: Option<EventId>,
    /// Priority in the queue of the channel.
    pub priority: Priority,
    /// First part of the id of the message at the receiver.
    pub id_prefix: &'static str,
    /// Time after which the answer is no longer awaited.
    pub timeout: Duration,
}

/// Reason why a direct message has no answer.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// The application is not running, or has no such channel.
    #[error("the channel `{0}` is not open")]
    Channel(Name),
    /// The address is suppressed.
    #[error("the address is suppressed: {}", .0.phrase())]
    Suppressed(Cause),
    /// The records failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The channel did not answer in time; the message may still be sent.
    #[error("the channel has not answered within {} s; the message may still be sent", .0.as_secs())]
    Silent(Duration),
}

impl Pipeline {
    /// Sends a message once through an open channel, and waits for the receiver's answer.
    ///
    /// # Errors
    /// The channel is not open, the address is suppressed, the records are unavailable, or there is no answer in time.
    pub async fn send_direct(&self, message: DirectMessage) -> Result<Answer, DirectError> {
        let channel = self.open_channel(&message.application, &message.channel);
        let channel = channel.ok_or_else(|| DirectError::Channel(message.channel.clone()))?;
        let now = self.flow.clock.now();
        self.flow.suppressions.refresh(&*self.flow.suppression_store).await?;
        let device = message.device.as_ref().unwrap_or(&message.channel);
        let to = Destination {
            protocol: channel.protocol(),
            application: &message.application,
            channel: &message.channel,
            address: &message.address,
            subscriber: &message.subscriber,
            device,
        };
        if let Some(cause) = self.flow.suppressions.cause(&to, false, now) {
            return Err(DirectError::Suppressed(cause));
        }
        let unique = (self.flow.jitter() * f64::from(u32::MAX)) as u32;
        let installation = self.flow.installation.installation();
        let outgoing = Outgoing {
            id: DIRECT_ID,
            subscriber: self.flow.subscriber_store.subscriber(&message.subscriber).await?.map(|found| found.number),
            address: message.address,
            ticket: Ticket { key: 0, ordinal: 0 },
            // A direct message has no unsubscribe link of the channel.
            unsubscribe: None,
            subscription: None,
            recall: None,
            message: Arc::new(Message {
                message_id: format!("{}-{}-{unique:08x}.{installation}", message.id_prefix, now.0),
                content: Arc::new(message.content),
                facts: Facts {
                    application: message.application,
                    class: message.class,
                    event: message.event,
                    fields: Arc::new(message.fields.into()),
                },
                formatted_at: now,
                priority: message.priority,
                expires_at: None,
                place: None,
                withdrawal: None,
            }),
            others: Vec::new(),
        };
        let (answers, mut answered) = mpsc::channel(1);
        let sent = async {
            channel.send(outgoing, &answers).await;
            answered.recv().await
        };
        match tokio::time::timeout(message.timeout, sent).await {
            Ok(Some(answer)) => Ok(answer),
            _ => Err(DirectError::Silent(message.timeout)),
        }
    }

    /// An open channel of a running application.
    fn open_channel(&self, application: &Name, channel: &Name) -> Option<Arc<OpenedChannel>> {
        let running = self.running.lock().get(application).cloned()?;
        running.active.channel(channel)
    }
}
