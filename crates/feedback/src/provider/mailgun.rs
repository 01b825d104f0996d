//! Mailgun: HMAC-SHA-256 of timestamp and token by the signing key of the account.
//! Format: <https://documentation.mailgun.com/docs/mailgun/user-manual/webhooks/webhooks>.
//!
//! The signature does not cover the event. Its token is used once, so a copied signature is refused with it.

use std::time::Duration;

use ring::hmac;
use serde::Deserialize;
use tocsin_model::time::Timestamp;

use super::{
    EventParts, ProviderError, ProviderEvent, REFERENCE, Request, VerifiedPayload, bounded, fresh, json, loose_text,
    permanent, seconds, temporary,
};
use crate::{
    feedback::{Action, Class},
    limits::Limits,
};

/// Verifies the webhooks of an account.
#[derive(Debug)]
pub struct Mailgun {
    key: hmac::Key,
    window: Duration,
}

#[derive(Deserialize)]
struct Payload {
    signature: Signature,
    #[serde(rename = "event-data")]
    event: Event,
}

#[derive(Deserialize)]
struct Signature {
    #[serde(deserialize_with = "loose_text")]
    timestamp: String,
    token: String,
    signature: String,
}

#[derive(Deserialize)]
struct Event {
    event: String,
    #[serde(default)]
    id: String,
    #[serde(default)]
    severity: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    recipient: String,
    #[serde(default)]
    timestamp: f64,
    #[serde(default, rename = "delivery-status")]
    status: Status,
    #[serde(default)]
    message: Message,
    #[serde(default, rename = "user-variables")]
    variables: serde_json::Value,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    code: Option<u16>,
    #[serde(default, deserialize_with = "loose_text")]
    message: String,
    #[serde(default, deserialize_with = "loose_text")]
    description: String,
    #[serde(default, deserialize_with = "loose_text", rename = "enhanced-code")]
    enhanced: String,
    #[serde(default, deserialize_with = "loose_text", rename = "mx-host")]
    host: String,
}

#[derive(Default, Deserialize)]
struct Message {
    #[serde(default)]
    headers: Headers,
}

#[derive(Default, Deserialize)]
struct Headers {
    #[serde(default, rename = "message-id")]
    message_id: String,
}

impl Mailgun {
    /// With the signing key of the account and the replay window. Mailgun repeats a webhook for 8 hours.
    pub fn new(signing_key: &str, window: Duration) -> Mailgun {
        Mailgun { key: hmac::Key::new(hmac::HMAC_SHA256, signing_key.as_bytes()), window }
    }

    /// Verifies and parses a payload.
    ///
    /// # Errors
    /// It is refused.
    pub fn verify(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        limits: &Limits,
    ) -> Result<VerifiedPayload, ProviderError> {
        let Payload { signature, event } = json(bounded(request, limits)?)?;
        let given = hex::decode(&signature.signature).map_err(|_| ProviderError::Signature)?;
        let signed = format!("{}{}", signature.timestamp, signature.token);
        hmac::verify(&self.key, signed.as_bytes(), &given).map_err(|_| ProviderError::Signature)?;
        // The boundary between both is not signed.
        let at = signature.timestamp.parse::<i64>().map_err(|_| ProviderError::Stale)?;
        if signature.token.is_empty() || signature.timestamp.len() != at.to_string().len() {
            return Err(ProviderError::Signature);
        }
        fresh(seconds(at), now, self.window)?;
        let events = event.parsed(limits).into_iter().collect();
        Ok(VerifiedPayload { events, replay_key: format!("mailgun/{signed}") })
    }
}

impl Event {
    fn parsed(&self, limits: &Limits) -> Option<ProviderEvent> {
        let Status { code, message, description, enhanced, host } = &self.status;
        let diagnostic =
            [message.as_str(), description].iter().find(|text| !text.is_empty()).copied().unwrap_or(&self.reason);
        let class = match (self.event.as_str(), self.severity.as_str()) {
            ("delivered", _) => (Class::Delivered, "provider.delivered"),
            ("complained", _) => (Class::Complaint, "provider.complaint"),
            ("unsubscribed", _) => (Class::Unsubscribe, "provider.unsubscribe"),
            ("failed", "permanent") => match self.reason.as_str() {
                "suppress-complaint" => (Class::Complaint, "provider.suppressed"),
                "suppress-unsubscribe" => (Class::Unsubscribe, "provider.suppressed"),
                "suppress-bounce" => (Class::Hard, "provider.suppressed"),
                // Mailgun stops after its own number of attempts.
                "old" | "generic" | "espblock" => temporary(diagnostic, enhanced, limits),
                _ => permanent(diagnostic, enhanced, limits),
            },
            ("failed" | "rejected", _) => temporary(diagnostic, enhanced, limits),
            _ => return None,
        };
        let parts = EventParts {
            class: Some(class),
            recipient: &self.recipient,
            status: enhanced,
            reply: *code,
            diagnostic,
            message_id: Some(&self.message.headers.message_id),
            reporting_mta: Some(host),
            key: format!("mailgun/{}", self.id),
            reference: self.variables.get(REFERENCE).and_then(serde_json::Value::as_str),
            at: (self.timestamp > 0.0).then_some(Timestamp::from_millis((self.timestamp * 1_000.0) as i64)),
            // Mailgun tries again.
            action: (self.event == "failed" && self.severity == "temporary").then_some(Action::Delayed),
            ..EventParts::default()
        };
        Some(parts.event(limits))
    }
}
