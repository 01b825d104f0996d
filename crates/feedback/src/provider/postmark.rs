//! Postmark: bounce, spam complaint, subscription change and delivery webhooks. It signs nothing; the proof is the
//! credential in the URL or in a header field.
//! Format: <https://postmarkapp.com/developer/webhooks/bounce-webhook>.

use std::time::Duration;

use serde::Deserialize;
use tocsin_model::time::Timestamp;

use super::{
    Credential, EventParts, ProviderError, ProviderEvent, REFERENCE, Request, VerifiedPayload, bounded, fresh, json,
    loose_text, permanent, temporary,
};
use crate::{feedback::Class, limits::Limits};

/// Verifies the webhooks of a server.
#[derive(Debug)]
pub struct Postmark {
    credential: Credential,
    window: Duration,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Record {
    record_type: String,
    #[serde(rename = "ID", deserialize_with = "loose_text")]
    id: String,
    #[serde(rename = "Type")]
    kind: String,
    #[serde(rename = "MessageID")]
    message_id: String,
    email: String,
    recipient: String,
    #[serde(deserialize_with = "loose_text")]
    description: String,
    #[serde(deserialize_with = "loose_text")]
    details: String,
    bounced_at: String,
    changed_at: String,
    delivered_at: String,
    origin: String,
    suppress_sending: bool,
    #[serde(deserialize_with = "loose_text")]
    suppression_reason: String,
    metadata: serde_json::Value,
}

impl Default for Record {
    fn default() -> Record {
        let text = String::new;
        Record {
            record_type: text(),
            id: text(),
            kind: text(),
            message_id: text(),
            email: text(),
            recipient: text(),
            description: text(),
            details: text(),
            bounced_at: text(),
            changed_at: text(),
            delivered_at: text(),
            origin: text(),
            suppress_sending: false,
            suppression_reason: text(),
            metadata: serde_json::Value::Null,
        }
    }
}

impl Postmark {
    /// With the credential of the webhook and the replay window. Postmark repeats a bounce webhook for 10.5 hours.
    pub fn new(credential: Credential, window: Duration) -> Postmark {
        Postmark { credential, window }
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
        self.credential.check(request)?;
        let record: Record = json(bounded(request, limits)?)?;
        let time =
            [&record.bounced_at, &record.changed_at, &record.delivered_at].into_iter().find(|time| !time.is_empty());
        let time = time.ok_or(ProviderError::Stale)?;
        let at: Timestamp = time.parse().map_err(|_| ProviderError::Format(format!("the time `{time}`")))?;
        fresh(at, now, self.window)?;
        let key = match record.id.is_empty() {
            true => format!("postmark/{}/{}/{}/{time}", record.record_type, record.message_id, record.recipient),
            false => format!("postmark/{}/{}", record.record_type, record.id),
        };
        let events = record.parsed(&key, at, limits).into_iter().collect();
        Ok(VerifiedPayload { events, replay_key: key })
    }
}

impl Record {
    fn parsed(&self, key: &str, at: Timestamp, limits: &Limits) -> Option<ProviderEvent> {
        let diagnostic = if self.details.is_empty() { &self.description } else { &self.details };
        let class = match self.record_type.as_str() {
            "Bounce" => self.bounce(diagnostic, limits)?,
            "SpamComplaint" => (Class::Complaint, "provider.complaint"),
            "Delivery" => (Class::Delivered, "provider.delivered"),
            "SubscriptionChange" if self.suppress_sending => match self.suppression_reason.as_str() {
                "HardBounce" => (Class::Hard, "provider.suppressed"),
                "SpamComplaint" => (Class::Complaint, "provider.complaint"),
                // An operator's change in the console of the provider is not the recipient's.
                _ if self.origin == "Recipient" => (Class::Unsubscribe, "provider.unsubscribe"),
                _ => return None,
            },
            _ => return None,
        };
        let parts = EventParts {
            class: Some(class),
            recipient: if self.email.is_empty() { &self.recipient } else { &self.email },
            diagnostic,
            message_id: Some(&self.message_id),
            key: key.to_owned(),
            reference: self.metadata.get(REFERENCE).and_then(serde_json::Value::as_str),
            at: Some(at),
            ..EventParts::default()
        };
        Some(parts.event(limits))
    }

    /// The class of a bounce type.
    fn bounce(&self, diagnostic: &str, limits: &Limits) -> Option<(Class, &'static str)> {
        Some(match self.kind.as_str() {
            "HardBounce" => permanent(diagnostic, "", limits),
            "BadEmailAddress" => (Class::Hard, "provider.permanent"),
            "Transient" | "SoftBounce" | "DnsError" | "AddressChange" | "Undeliverable" => {
                temporary(diagnostic, "", limits)
            }
            "SpamNotification" | "VirusNotification" | "Blocked" | "DMARCPolicy" | "OpenRelayTest" => {
                (Class::Blocked, "provider.blocked")
            }
            "ChallengeVerification" => (Class::Challenge, "provider.challenge"),
            "AutoResponder" => (Class::OutOfOffice, "provider.automatic"),
            "Unsubscribe" => (Class::Unsubscribe, "provider.unsubscribe"),
            "SpamComplaint" => (Class::Complaint, "provider.complaint"),
            "Unknown" | "Unconfirmed" => (Class::Unknown, "provider.other"),
            _ => return None,
        })
    }
}
