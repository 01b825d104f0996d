//! Sample notifications: a preview of the content, or one test message through an open channel. Nothing is stored.

use std::{sync::Arc, time::Duration};

use tocsin_delivery::{Answer, Facts, Message, Outgoing, Ticket};
use tocsin_formatting::{DeviceScope, EventScope, LinkScope, Scope};
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

/// Timeout of a test message.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Input of a sample notification.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The rule that makes it.
    pub rule: Name,
    /// Its event, a row of the rule's event class.
    pub event: Row,
    /// The id of a stored event.
    pub event_id: Option<EventId>,
    /// When the event was accepted.
    pub accepted_at: Timestamp,
    /// A row of the rule's subscription class.
    pub subscription: Row,
    /// The subscriber.
    pub subscriber: SubscriberId,
    /// Profile of the subscriber.
    pub profile: Profile,
    /// The name of the device.
    pub device: String,
    /// The channel to use.
    pub channel: Name,
    /// The address on that channel.
    pub address: String,
    /// The current time, as templates see it.
    pub now: Timestamp,
}

/// Reason why a sample makes no notification.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The rule does not exist or is disabled.
    #[error("there is no enabled rule `{0}`")]
    Rule(Name),
    /// A field cannot be filled.
    #[error("{0}")]
    Field(String),
}

impl Compiled {
    /// Renders a sample, with the fields of the notification.
    ///
    /// # Errors
    /// The rule does not exist, or a required field has no value. Errors of templates are in the preview.
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
            id: SAMPLE_ID,
            rule: &sample.rule,
            matched_at: sample.now,
            accepted_at: sample.accepted_at,
            now: sample.now,
            fields: &fields,
            event: &event,
            digest: None,
            links: SAMPLE_LINKS,
            subscriber: &sample.subscriber,
            profile: &sample.profile,
            subscription: (&class.fields, &sample.subscription),
            device: DeviceScope { name: &sample.device, channel: sample.channel.as_str(), address: &sample.address },
        };
        let facts = crate::render::facts(notify, fields.clone());
        Ok(make(formatter, sample.profile.locale.as_deref(), &scope, facts))
    }
}

/// Links of sample notifications; they lead nowhere.
const SAMPLE_LINKS: LinkScope<'static> = LinkScope {
    preferences: Some("https://tocsin.example/p/sample"),
    confirm: Some("https://tocsin.example/confirm/sample"),
    code: Some("123456"),
};

/// Id of sample notifications; no batch has this number.
const SAMPLE_ID: NotificationId = NotificationId { batch: NotificationBatchId(0), ordinal: 0 };

/// Reason why a test message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum TestError {
    /// The sample makes no notification.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A template fails.
    #[error(transparent)]
    Format(#[from] FormatError),
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
    #[error("the channel has not answered within 60 s; the message may still be sent")]
    Silent,
}

impl Pipeline {
    /// Sends a sample once through an open channel of the application. It is not stored and not retried. Waits for
    /// the receiver's answer.
    ///
    /// # Errors
    /// It cannot be formatted, its address is suppressed, the channel is not open, or there is no answer within a
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
        let channel = running.and_then(|running| running.active.channel(&sample.channel));
        let channel = channel.ok_or_else(|| TestError::Channel(sample.channel.clone()))?;
        // Recipients who complained must not get tests either.
        self.flow.suppressions.refresh(&*self.flow.suppression_store).await?;
        let device = sample.device.parse().unwrap_or_else(|_| sample.channel.clone());
        let (protocol, subscriber) = (channel.protocol(), &sample.subscriber);
        let to = Destination {
            protocol,
            application: &application.name,
            channel: &sample.channel,
            address: &sample.address,
            subscriber,
            device: &device,
        };
        if let Some(cause) = self.flow.suppressions.cause(&to, false, sample.now) {
            return Err(TestError::Suppressed(cause));
        }
        let class = application.rules.get(&sample.rule).map(|rule| rule.notify.clone());
        let message = Message {
            message_id: format!("test-{}.{}", sample.now.0, self.flow.installation.installation()),
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
            withdrawal: None,
        };
        let outgoing = Outgoing {
            id: SAMPLE_ID,
            subscriber: self.flow.subscriber_store.subscriber(&sample.subscriber).await?.map(|found| found.number),
            address: sample.address.clone(),
            ticket: Ticket { key: 0, ordinal: 0 },
            // A test message has no unsubscribe link.
            unsubscribe: None,
            subscription: None,
            recall: None,
            message: Arc::new(message),
            others: Vec::new(),
        };
        let (answers, mut answered) = mpsc::channel(1);
        let sent = async {
            channel.send(outgoing, &answers).await;
            answered.recv().await
        };
        match tokio::time::timeout(TIMEOUT, sent).await {
            Ok(Some(answer)) => Ok(answer),
            _ => Err(TestError::Silent),
        }
    }
}
