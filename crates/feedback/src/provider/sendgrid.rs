//! SendGrid: signed event webhook, ECDSA P-256 with SHA-256 over the timestamp and the body.
//! Format: <https://www.twilio.com/docs/sendgrid/for-developers/tracking-events/event>.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use serde::Deserialize;
use tocsin_model::time::Timestamp;
use x509_cert::{der::Decode, spki::SubjectPublicKeyInfoOwned};

use super::{
    EventParts, ProviderError, ProviderEvent, Request, VerifiedPayload, bounded, fresh, json, loose_text, permanent,
    seconds, temporary,
};
use crate::{
    feedback::{Action, Class},
    limits::Limits,
};

/// Header field of the signature.
pub const SIGNATURE_HEADER: &str = "X-Twilio-Email-Event-Webhook-Signature";
/// Header field of the timestamp.
pub const TIMESTAMP_HEADER: &str = "X-Twilio-Email-Event-Webhook-Timestamp";

/// Verifies the event webhook of an account.
#[derive(Debug)]
pub struct SendGrid {
    key: UnparsedPublicKey<Vec<u8>>,
    window: Duration,
}

#[derive(Deserialize)]
struct Event {
    event: String,
    #[serde(default)]
    email: String,
    #[serde(default)]
    timestamp: i64,
    #[serde(default, rename = "smtp-id")]
    smtp_id: String,
    #[serde(default)]
    sg_event_id: String,
    #[serde(default)]
    sg_message_id: String,
    #[serde(default, deserialize_with = "loose_text")]
    status: String,
    #[serde(default, deserialize_with = "loose_text")]
    reason: String,
    #[serde(default, deserialize_with = "loose_text")]
    response: String,
    #[serde(default, rename = "type", deserialize_with = "loose_text")]
    kind: String,
    #[serde(default, deserialize_with = "loose_text")]
    bounce_classification: String,
    /// Custom arguments are members of the event.
    #[serde(default, deserialize_with = "loose_text")]
    tocsin: String,
}

impl SendGrid {
    /// With the verification key that the settings of the webhook show (Base64 of a DER public key) and the replay
    /// window. SendGrid repeats a webhook for 24 hours.
    ///
    /// # Errors
    /// The key is not a public key of the curve P-256.
    pub fn new(verification_key: &str, window: Duration) -> Result<SendGrid, ProviderError> {
        let wrong = ProviderError::Certificate("the verification key is not a P-256 public key in DER and Base64");
        let der = BASE64_STANDARD.decode(verification_key.trim()).map_err(|_| wrong.clone())?;
        let key = SubjectPublicKeyInfoOwned::from_der(&der).map_err(|_| wrong.clone())?;
        // An uncompressed point: 4, x, y.
        let point =
            key.subject_public_key.as_bytes().filter(|point| point.len() == 65 && point[0] == 4).ok_or(wrong)?;
        Ok(SendGrid { key: UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point.to_vec()), window })
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
        let body = bounded(request, limits)?;
        let signature = request.header(SIGNATURE_HEADER).ok_or(ProviderError::Unsigned("signature"))?;
        let timestamp = request.header(TIMESTAMP_HEADER).ok_or(ProviderError::Unsigned("timestamp"))?;
        let der = BASE64_STANDARD.decode(signature).map_err(|_| ProviderError::Signature)?;
        let signed = [timestamp.as_bytes(), body].concat();
        self.key.verify(&signed, &der).map_err(|_| ProviderError::Signature)?;
        // The boundary between both is not signed: the body begins with `[`, so the timestamp has all digits.
        let at = timestamp.parse::<i64>().map_err(|_| ProviderError::Signature)?;
        fresh(seconds(at), now, self.window)?;
        let events: Vec<Event> = json(body)?;
        if events.len() > limits.events_max {
            return Err(ProviderError::TooLarge("events_max"));
        }
        let events = events.iter().filter_map(|event| event.parsed(limits)).collect();
        Ok(VerifiedPayload { events, replay_key: format!("sendgrid/{signature}") })
    }
}

impl Event {
    fn parsed(&self, limits: &Limits) -> Option<ProviderEvent> {
        let diagnostic = if self.reason.is_empty() { &self.response } else { &self.reason };
        let class = match (self.event.as_str(), self.kind.as_str()) {
            ("delivered", _) => (Class::Delivered, "provider.delivered"),
            ("spamreport", _) => (Class::Complaint, "provider.complaint"),
            ("unsubscribe" | "group_unsubscribe", _) => (Class::Unsubscribe, "provider.unsubscribe"),
            ("dropped", _) => dropped(&self.reason)?,
            ("deferred", _) => temporary(diagnostic, &self.status, limits),
            ("bounce", kind) => match (kind, self.bounce_classification.as_str()) {
                (_, "Reputation" | "Content" | "Frequency or Volume Too High") => (Class::Blocked, "provider.blocked"),
                (_, "Invalid Address") => (Class::Hard, "provider.permanent"),
                ("blocked", _) | (_, "Technical" | "Mailbox Unavailable") => {
                    temporary(diagnostic, &self.status, limits)
                }
                _ => permanent(diagnostic, &self.status, limits),
            },
            _ => return None,
        };
        let key = if self.sg_event_id.is_empty() { &self.sg_message_id } else { &self.sg_event_id };
        let parts = EventParts {
            class: Some(class),
            recipient: &self.email,
            status: &self.status,
            diagnostic,
            message_id: Some(&self.smtp_id),
            key: format!("sendgrid/{key}"),
            reference: Some(&self.tocsin),
            at: Some(seconds(self.timestamp)),
            action: (self.event == "deferred").then_some(Action::Delayed),
            ..EventParts::default()
        };
        Some(parts.event(limits))
    }
}

/// The class of a mail that SendGrid did not send because of an earlier event.
fn dropped(reason: &str) -> Option<(Class, &'static str)> {
    match reason.to_ascii_lowercase().as_str() {
        "bounced address" | "invalid" => Some((Class::Hard, "provider.suppressed")),
        "spam reporting address" => Some((Class::Complaint, "provider.suppressed")),
        "unsubscribed address" => Some((Class::Unsubscribe, "provider.suppressed")),
        _ => None,
    }
}
