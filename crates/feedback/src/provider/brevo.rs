//! Brevo: transactional webhooks. It signs nothing; the proof is the credential of the webhook.
//! Format: <https://developers.brevo.com/docs/transactional-webhooks>.

use std::time::Duration;

use serde::Deserialize;
use tocsin_model::time::Timestamp;

use super::{
    Credential, EventParts, ProviderError, ProviderEvent, Request, VerifiedPayload, bounded, fresh, json, loose_text,
    permanent, seconds, temporary,
};
use crate::{
    feedback::{Action, Class},
    limits::Limits,
};

/// Verifies the webhooks of an account.
#[derive(Debug)]
pub struct Brevo {
    credential: Credential,
    window: Duration,
}

#[derive(Deserialize)]
struct Event {
    event: String,
    #[serde(default)]
    email: String,
    #[serde(default, rename = "message-id")]
    message_id: String,
    #[serde(default)]
    ts_event: i64,
    #[serde(default, deserialize_with = "loose_text")]
    reason: String,
    #[serde(default, rename = "X-Mailin-custom", deserialize_with = "loose_text")]
    custom: String,
}

impl Brevo {
    /// With the credential of the webhook and the replay window.
    pub fn new(credential: Credential, window: Duration) -> Brevo {
        Brevo { credential, window }
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
        let event: Event = json(bounded(request, limits)?)?;
        let at = seconds(event.ts_event);
        fresh(at, now, self.window)?;
        let key = format!("brevo/{}/{}/{}/{}", event.event, event.message_id, event.email, event.ts_event);
        let events = event.parsed(&key, at, limits).into_iter().collect();
        Ok(VerifiedPayload { events, replay_key: key })
    }
}

impl Event {
    fn parsed(&self, key: &str, at: Timestamp, limits: &Limits) -> Option<ProviderEvent> {
        let class = match self.event.as_str() {
            "delivered" => (Class::Delivered, "provider.delivered"),
            "hard_bounce" => permanent(&self.reason, "", limits),
            "invalid_email" => (Class::Hard, "provider.permanent"),
            "soft_bounce" | "deferred" => temporary(&self.reason, "", limits),
            // Brevo did not send it: the address is on its list.
            "blocked" => (Class::Blocked, "provider.blocked"),
            "spam" | "complaint" => (Class::Complaint, "provider.complaint"),
            "unsubscribed" => (Class::Unsubscribe, "provider.unsubscribe"),
            _ => return None,
        };
        let parts = EventParts {
            class: Some(class),
            recipient: &self.email,
            diagnostic: &self.reason,
            message_id: Some(&self.message_id),
            key: key.to_owned(),
            reference: Some(&self.custom),
            at: Some(at),
            action: (self.event == "deferred").then_some(Action::Delayed),
            ..EventParts::default()
        };
        Some(parts.event(limits))
    }
}
