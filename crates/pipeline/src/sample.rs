//! A notification that nobody is told of: how it would read, and, if somebody asks for it, one message of it through an
//! open channel. Nothing of either is stored.

use std::{sync::Arc, time::Duration};

use tocsin_delivery::{Answer, Facts, Message, Outgoing, Ticket};
use tocsin_formatting::{DeviceScope, EventScope, Scope};
use tocsin_model::{
    field::Row,
    id::{EventId, Name, NotificationBatchId, NotificationId, SubscriberId},
    subscriber::Profile,
    suppression::Cause,
    time::Timestamp,
};
use tokio::sync::mpsc;

pub use tocsin_formatting::{FormatError, Formatted, Part, Preview, PreviewedPart, ShortMessage, measure_sms};

use tocsin_store::error::StoreError;

use crate::{Pipeline, compile::Compiled, suppress::Destination};

/// How long a message that somebody waits for may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// All that a notification is made of.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The rule that would make it.
    pub rule: Name,
    /// Its event, a row of the rule's event class.
    pub event: Row,
    /// The id of a stored event.
    pub event_id: Option<EventId>,
    /// When the event was accepted.
    pub accepted_at: Timestamp,
    /// A row of the rule's subscription class.
    pub subscription: Row,
    /// Whom it would be for.
    pub subscriber: SubscriberId,
    /// What is known of them.
    pub profile: Profile,
    /// The name of the device.
    pub device: String,
    /// The channel by which it would leave.
    pub channel: Name,
    /// The address there.
    pub address: String,
    /// What it takes for the present.
    pub now: Timestamp,
}

/// Why a sample makes no notification.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// There is no such rule, or it does not run.
    #[error("there is no enabled rule `{0}`")]
    Rule(Name),
    /// A field cannot be filled.
    #[error("{0}")]
    Field(String),
}

impl Compiled {
    /// How a sample would read, with the fields of the notification.
    ///
    /// # Errors
    /// The rule does not exist, or a required field has no value. What templates fail at is in the preview.
    pub fn preview(
        &self,
        sample: &Sample,
    ) -> Result<(Preview, serde_json::Map<String, serde_json::Value>), SampleError> {
        self.with_scope(sample, |formatter, locale, scope, facts| {
            let preview = formatter.preview(locale, sample.channel.as_str(), scope);
            (preview, facts)
        })
    }

    fn with_scope<T>(
        &self,
        sample: &Sample,
        make: impl FnOnce(
            &tocsin_formatting::Formatter,
            Option<&str>,
            &Scope<'_>,
            serde_json::Map<String, serde_json::Value>,
        ) -> T,
    ) -> Result<T, SampleError> {
        let unknown = || SampleError::Rule(sample.rule.clone());
        let rule = self.application.rules.get(&sample.rule).ok_or_else(unknown)?;
        let notify = self.notify.get(&sample.rule).ok_or_else(unknown)?;
        let formatter = self.formatters.get(&rule.notify).ok_or_else(unknown)?;
        let event_fields = self.application.events.get(&rule.on).map(|class| &class.fields).ok_or_else(unknown)?;
        let class = self.application.subscriptions.get(&rule.subscription).ok_or_else(unknown)?;
        let fields = notify
            .row_for(&sample.event, &sample.subscription)
            .map_err(|missing| SampleError::Field(missing.to_string()))?;
        let event = EventScope::new(event_fields, &sample.event);
        let scope = Scope {
            id: NOBODY,
            rule: &sample.rule,
            matched_at: sample.now,
            accepted_at: sample.accepted_at,
            now: sample.now,
            fields: &fields,
            event: &event,
            digest: None,
            subscriber: &sample.subscriber,
            profile: &sample.profile,
            subscription: (&class.fields, &sample.subscription),
            device: DeviceScope { name: &sample.device, channel: sample.channel.as_str(), address: &sample.address },
        };
        let facts = crate::render::facts(notify, fields.clone());
        Ok(make(formatter, sample.profile.locale.as_deref(), &scope, facts))
    }
}

/// The id of notifications that nobody is told of; no batch has this number.
const NOBODY: NotificationId = NotificationId { batch: NotificationBatchId(0), ordinal: 0 };

/// Why a test message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum TestError {
    /// The sample makes no notification.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A template fails.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The application does not run, or has no such channel.
    #[error("the channel `{0}` is not open")]
    Channel(Name),
    /// Nothing is sent to the address.
    #[error("the address is suppressed: {}", .0.phrase())]
    Suppressed(Cause),
    /// The records failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The channel gave no answer in time; the message may still leave.
    #[error("the channel has not answered within 60 s; the message may still leave")]
    Silent,
}

impl Pipeline {
    /// Sends a sample through an open channel of the application, once, past the flow: it is not stored and not tried
    /// again. Waits for the far side's answer.
    ///
    /// # Errors
    /// It cannot be formatted, nothing may be sent to its address, the channel is not open, or it does not answer within a
    /// minute.
    pub async fn send_test(&self, compiled: &Compiled, sample: &Sample) -> Result<Answer, TestError> {
        let (formatted, facts) = compiled.with_scope(sample, |formatter, locale, scope, facts| {
            (formatter.format(locale, sample.channel.as_str(), scope), facts)
        })?;
        let mut facts = facts;
        let formatted = formatted?;
        facts.extend(formatted.computed.into_iter().map(|(name, value)| (name.to_string(), value)));
        let application = &compiled.application;
        let running = self.running.lock().get(&application.name).cloned();
        let channel = running.and_then(|running| running.channel(&sample.channel));
        let channel = channel.ok_or_else(|| TestError::Channel(sample.channel.clone()))?;
        // Whoever complained did not ask for tests either.
        self.flow.suppressions.follow(&*self.flow.records).await?;
        let device = sample.device.parse().unwrap_or_else(|_| sample.channel.clone());
        let (protocol, subscriber) = (channel.protocol(), &sample.subscriber);
        let to = Destination { protocol, address: &sample.address, subscriber, device: &device };
        if let Some(cause) = self.flow.suppressions.cause(&to, false, sample.now) {
            return Err(TestError::Suppressed(cause));
        }
        let class = application.rules.get(&sample.rule).map(|rule| rule.notify.clone());
        let message = Message {
            message_id: format!("test-{}.{}", sample.now.0, self.flow.records.installation()),
            content: Arc::new(formatted.content),
            facts: Facts {
                application: application.name.clone(),
                class: class.unwrap_or_else(|| sample.rule.clone()),
                event: sample.event_id,
                fields: Arc::new(facts.into()),
            },
            formatted_at: sample.now,
            priority: Default::default(),
            expires_at: None,
            place: None,
        };
        let outgoing = Outgoing {
            id: NOBODY,
            subscriber: self.flow.records.subscriber(&sample.subscriber).await?.map(|found| found.number),
            address: sample.address.clone(),
            ticket: Ticket { key: 0, ordinal: 0 },
            // A test ends nobody's subscription.
            unsubscribe: None,
            message: Arc::new(message),
            others: Vec::new(),
        };
        let (answers, mut answered) = mpsc::channel(1);
        let sent = async {
            channel.send(outgoing, &answers).await;
            answered.recv().await
        };
        match tokio::time::timeout(PATIENCE, sent).await {
            Ok(Some(answer)) => Ok(answer),
            _ => Err(TestError::Silent),
        }
    }
}
