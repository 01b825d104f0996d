//! Callbacks of other SMS services, in a format of our own, signed as in Standard Webhooks 1.0 (HMAC-SHA-256 over id,
//! timestamp and body): <https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>.
//!
//! ```json
//! {"type": "sms.receipt", "data": {"id": "77", "message": "n-3-41.aewo3", "to": "+49170", "status": "hard"}}
//! {"type": "sms.reply", "data": {"id": "78", "from": "+49170", "to": "+4930", "text": "STOP"}}
//! ```
//!
//! `status` is `delivered`, `soft`, `hard`, `blocked` or `unsubscribe`.

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

/// Verifies callbacks of a service.
#[derive(Debug)]
pub struct StandardWebhooks {
    keys: Vec<hmac::Key>,
    window: Duration,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    #[serde(deserialize_with = "loose_text")]
    id: String,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    from: String,
    #[serde(default)]
    to: String,
    #[serde(default)]
    status: String,
    #[serde(default, deserialize_with = "loose_text")]
    code: String,
    #[serde(default, deserialize_with = "loose_text")]
    text: String,
}

impl StandardWebhooks {
    /// With secrets, `whsec_` and 24 to 64 bytes in Base64, separated by spaces during a change, and the replay window.
    ///
    /// # Errors
    /// A secret has another form.
    pub fn new(secrets: &str, window: Duration) -> Result<StandardWebhooks, ProviderError> {
        let wrong = || ProviderError::Certificate("a secret is `whsec_` and 24 to 64 bytes in Base64");
        let key = |text: &str| {
            let bytes = text.strip_prefix("whsec_").and_then(|text| BASE64_STANDARD.decode(text).ok());
            let bytes = bytes.filter(|bytes| (24..=64).contains(&bytes.len())).ok_or_else(wrong)?;
            Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
        };
        let keys = secrets.split_ascii_whitespace().map(key).collect::<Result<Vec<_>, ProviderError>>()?;
        match keys.len() {
            1..=4 => Ok(StandardWebhooks { keys, window }),
            _ => Err(wrong()),
        }
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
        let id = header("webhook-id", "id")?;
        let timestamp = header("webhook-timestamp", "timestamp")?;
        let signatures = header("webhook-signature", "signature")?;
        let signed = [id.as_bytes(), b".", timestamp.as_bytes(), b".", body].concat();
        let given = signatures.split(' ').filter_map(|one| BASE64_STANDARD.decode(one.strip_prefix("v1,")?).ok());
        let is_valid =
            given.take(10).any(|given| self.keys.iter().any(|key| hmac::verify(key, &signed, &given).is_ok()));
        if !is_valid {
            return Err(ProviderError::Signature);
        }
        fresh(seconds_of(timestamp).ok_or(ProviderError::Stale)?, now, self.window)?;
        let event = json::<Event>(body)?.parsed(limits)?;
        let id = short(Some(id), limits).ok_or(ProviderError::Unsigned("id"))?;
        Ok(VerifiedCallback { event, replay_key: format!("webhook/{id}") })
    }
}

impl Event {
    fn parsed(&self, limits: &Limits) -> Result<SmsEvent, ProviderError> {
        let Data { id, message, from, to, status, code, text } = &self.data;
        let required = |name: &str, value: &str| {
            short(Some(value), limits).ok_or_else(|| ProviderError::Format(format!("`data.{name}` is missing")))
        };
        match self.kind.as_str() {
            "sms.reply" => Ok(SmsEvent::Reply(SmsReply {
                from: required("from", from)?,
                to: required("to", to)?,
                text: reply_text(Some(text), limits),
                id: required("id", id)?,
                keyword: None,
            })),
            "sms.receipt" => {
                let class = match status.as_str() {
                    "delivered" => Class::Delivered,
                    "soft" => Class::Soft,
                    "hard" => Class::Hard,
                    "blocked" => Class::Blocked,
                    "unsubscribe" => Class::Unsubscribe,
                    other => return Err(ProviderError::Format(format!("the status `{}`", other.escape_debug()))),
                };
                Ok(SmsEvent::Receipt(SmsReceipt {
                    class,
                    recipient: required("to", to)?,
                    reference: short(message.as_deref(), limits),
                    key: format!("webhook/{}", required("id", id)?),
                    code: short(Some(code), limits),
                    diagnostic: short(Some(text), limits).unwrap_or_else(|| status.clone()),
                }))
            }
            kind => Err(ProviderError::Format(format!("the type `{}`", kind.escape_debug()))),
        }
    }
}
