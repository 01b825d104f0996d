//! Sinch: delivery reports by recipient and incoming messages of the SMS API, HMAC-SHA-256 over body, nonce and
//! timestamp.
//! Formats: <https://developers.sinch.com/docs/sms/api-reference/sms/webhooks>.
//!
//! A report of a whole batch names no recipients in all its forms, and is refused: send with
//! `delivery_report: per_recipient`.

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::hmac;
use serde::Deserialize;
use tocsin_model::time::Timestamp;

use super::{
    ProviderError, bounded, fresh, json, loose_text,
    sms::{Callback, SmsEvent, SmsReceipt, SmsReply, VerifiedCallback, reply_text, seconds_of, short},
};
use crate::{feedback::Class, limits::Limits};

/// Verifies the callbacks of a service plan.
#[derive(Debug)]
pub struct Sinch {
    key: hmac::Key,
    window: Duration,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    id: String,
    #[serde(default)]
    batch_id: String,
    #[serde(default)]
    from: String,
    #[serde(default)]
    to: String,
    #[serde(default)]
    recipient: String,
    #[serde(default)]
    status: String,
    #[serde(default, deserialize_with = "loose_text")]
    code: String,
    #[serde(default)]
    client_reference: Option<String>,
    #[serde(default, deserialize_with = "loose_text")]
    body: String,
}

impl Sinch {
    /// With the secret of the HMAC configuration and the replay window.
    pub fn new(secret: &str, window: Duration) -> Sinch {
        Sinch { key: hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), window }
    }

    /// Verifies and parses a callback.
    ///
    /// # Errors
    /// It is refused.
    pub fn verify(
        &self,
        callback: &Callback<'_>,
        now: Timestamp,
        limits: &Limits,
    ) -> Result<VerifiedCallback, ProviderError> {
        let body = bounded(&callback.request, limits)?;
        let header = |name, what| callback.request.header(name).ok_or(ProviderError::Unsigned(what));
        let given = header("x-sinch-webhook-signature", "signature")?;
        let nonce = header("x-sinch-webhook-signature-nonce", "nonce")?;
        let timestamp = header("x-sinch-webhook-signature-timestamp", "timestamp")?;
        let given = BASE64_STANDARD.decode(given).map_err(|_| ProviderError::Signature)?;
        let signed = [body, b".", nonce.as_bytes(), b".", timestamp.as_bytes()].concat();
        hmac::verify(&self.key, &signed, &given).map_err(|_| ProviderError::Signature)?;
        fresh(seconds_of(timestamp).ok_or(ProviderError::Stale)?, now, self.window)?;
        let event = json::<Event>(body)?.parsed(limits)?;
        Ok(VerifiedCallback { event, replay_key: format!("sinch/{nonce}/{timestamp}") })
    }
}

impl Event {
    fn parsed(&self, limits: &Limits) -> Result<SmsEvent, ProviderError> {
        let text = |name: &str, value: &str| {
            short(Some(value), limits).ok_or_else(|| ProviderError::Format(format!("`{name}` is missing")))
        };
        match self.kind.as_str() {
            "mo_text" => Ok(SmsEvent::Reply(SmsReply {
                from: text("from", &self.from)?,
                to: text("to", &self.to)?,
                text: reply_text(Some(&self.body), limits),
                id: text("id", &self.id)?,
                keyword: None,
            })),
            "recipient_delivery_report_sms" => {
                // The codes do not say whether a number exists, so no failure is hard.
                let class = match self.status.as_str() {
                    "Delivered" => Class::Delivered,
                    "Failed" | "Expired" => Class::Soft,
                    "Rejected" | "Aborted" => Class::Blocked,
                    _ => return Ok(SmsEvent::Progress),
                };
                let recipient = text("recipient", &self.recipient)?;
                Ok(SmsEvent::Receipt(SmsReceipt {
                    class,
                    key: format!("sinch/{}/{recipient}", text("batch_id", &self.batch_id)?),
                    recipient,
                    reference: short(self.client_reference.as_deref(), limits),
                    code: short(Some(&self.code), limits),
                    diagnostic: self.status.clone(),
                }))
            }
            "mo_binary" | "mo_media" => Ok(SmsEvent::Progress),
            kind => Err(ProviderError::Format(format!("the type `{}`", kind.escape_debug()))),
        }
    }
}
