//! Sample notifications: a preview of the content, or one test message through an open channel. Nothing is stored.

use std::time::Duration;

use tocsin_delivery::Answer;
use tocsin_formatting::{DeviceScope, EventScope, LinkScope, Scope};
use tocsin_model::{
    delivery_policy::Priority,
    field::Row,
    id::{EventId, Name, SubscriberId},
    subscriber::Profile,
    time::Timestamp,
};

pub use tocsin_formatting::{FormatError, Formatted, Part, Preview, PreviewedPart, ShortMessage, measure_sms};

use crate::{
    Pipeline,
    compile::Compiled,
    direct::{DIRECT_ID, DirectError, DirectMessage},
};

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
            id: DIRECT_ID,
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

/// Reason why a test message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum TestError {
    /// The sample makes no notification.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A template fails.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// It was formatted, and has no answer.
    #[error(transparent)]
    Direct(#[from] DirectError),
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
        let mut fields = facts;
        let formatted = formatted?;
        fields.extend(formatted.computed.into_iter().map(|(name, value)| (name.to_string(), value)));
        let application = &compiled.application;
        let class = application.rules.get(&sample.rule).map(|rule| rule.notify.clone());
        let message = DirectMessage {
            application: application.name.clone(),
            channel: sample.channel.clone(),
            address: sample.address.clone(),
            // Recipients who complained must not get tests either.
            subscriber: sample.subscriber.clone(),
            device: sample.device.parse().ok(),
            content: formatted.content,
            class: class.unwrap_or_else(|| sample.rule.clone()),
            fields,
            event: sample.event_id,
            priority: Priority::default(),
            id_prefix: "test",
            timeout: TIMEOUT,
        };
        Ok(self.send_direct(message).await?)
    }
}
