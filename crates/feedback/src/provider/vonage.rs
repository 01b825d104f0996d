//! Vonage: delivery receipts and incoming messages of the SMS API and of the Messages API.
//! Formats: <https://developer.vonage.com/en/messaging/sms/guides/delivery-receipts>,
//! <https://developer.vonage.com/en/messaging/sms/guides/inbound-sms> and
//! <https://developer.vonage.com/en/getting-started/concepts/webhooks>.
//!
//! The proof is a JWT in `Authorization`, with a hash of the body, or the parameter `sig` of a signed webhook of the
//! SMS API by HMAC-SHA-256 or HMAC-SHA-512.

use std::time::Duration;

use ring::hmac;
use serde::Deserialize;
use tocsin_model::time::Timestamp;

use super::{
    ProviderError, bounded, fresh, seconds,
    sms::{
        Callback, Parameters, SmsEvent, SmsReceipt, SmsReply, VerifiedCallback, check_hash, claims, reply_text,
        seconds_of, short,
    },
};
use crate::{feedback::Class, limits::Limits};

/// Verifies the callbacks of an account.
#[derive(Debug)]
pub struct Vonage {
    secret: String,
    window: Duration,
}

#[derive(Deserialize)]
struct Claims {
    iat: i64,
    jti: String,
    payload_hash: String,
}

impl Vonage {
    /// With the signature secret of the account and the replay window.
    pub fn new(signature_secret: &str, window: Duration) -> Vonage {
        Vonage { secret: signature_secret.to_owned(), window }
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
        let parameters = Parameters::of(callback, limits)?;
        let replay_key = match callback.request.header("authorization").and_then(|value| value.strip_prefix("Bearer "))
        {
            Some(token) => {
                let claims: Claims = claims(token, self.secret.as_bytes())?;
                // A query is not covered by the hash of the body.
                if body.is_empty() {
                    return Err(ProviderError::Unsigned("body"));
                }
                check_hash(&claims.payload_hash, body)?;
                fresh(seconds(claims.iat), now, self.window)?;
                format!("vonage/{}", claims.jti)
            }
            None => self.signed_parameters(&parameters, now)?,
        };
        Ok(VerifiedCallback { event: event(&parameters, limits)?, replay_key })
    }

    /// Verifies the parameter `sig`. Returns the replay key.
    fn signed_parameters(&self, parameters: &Parameters<'_>, now: Timestamp) -> Result<String, ProviderError> {
        let given = parameters.first(&["sig"]).ok_or(ProviderError::Unsigned("signature"))?;
        let at = parameters.first(&["timestamp"]).ok_or(ProviderError::Unsigned("timestamp"))?;
        let signature = hex::decode(given).map_err(|_| ProviderError::Signature)?;
        let algorithm = match signature.len() {
            32 => hmac::HMAC_SHA256,
            64 => hmac::HMAC_SHA512,
            // MD5 and SHA-1 are no proof any more.
            _ => return Err(ProviderError::Signature),
        };
        let mut signed = String::new();
        for (name, value) in parameters.sorted().into_iter().filter(|(name, _)| *name != "sig") {
            signed.push_str(&format!("&{name}={}", value.replace(['&', '='], "_")));
        }
        let key = hmac::Key::new(algorithm, self.secret.as_bytes());
        hmac::verify(&key, signed.as_bytes(), &signature).map_err(|_| ProviderError::Signature)?;
        fresh(seconds_of(at).ok_or(ProviderError::Stale)?, now, self.window)?;
        Ok(format!("vonage/{}", given.to_ascii_lowercase()))
    }
}

fn event(parameters: &Parameters<'_>, limits: &Limits) -> Result<SmsEvent, ProviderError> {
    let missing = |name: &str| ProviderError::Format(format!("`{name}` is missing"));
    let text = |names: &[&str]| short(parameters.first(names), limits).ok_or_else(|| missing(names[0]));
    let id = text(&["messageId", "message_uuid"])?;
    let is_messages_api = parameters.first(&["message_uuid"]).is_some();
    let Some(status) = parameters.first(&["status"]) else {
        return Ok(SmsEvent::Reply(SmsReply {
            from: text(&["msisdn", "from"])?,
            to: text(&["to"])?,
            text: reply_text(parameters.first(&["text"]), limits),
            id,
            keyword: None,
        }));
    };
    let code = parameters.first(&["err-code"]).filter(|code| *code != "0");
    let class = match (status, code) {
        ("delivered" | "read", _) => Class::Delivered,
        // The subscriber does not exist any more; not a number.
        ("failed" | "rejected", Some("3" | "9")) => Class::Hard,
        // Filters, regulations, quotas and blocks concern the sender.
        ("failed" | "rejected", Some("4" | "6" | "10" | "13" | "14" | "16" | "50" | "51" | "52" | "53" | "54")) => {
            Class::Blocked
        }
        ("failed" | "rejected" | "expired" | "undeliverable", _) => Class::Soft,
        _ => return Ok(SmsEvent::Progress),
    };
    Ok(SmsEvent::Receipt(SmsReceipt {
        class,
        // A receipt of the SMS API has our sender in `to`.
        recipient: if is_messages_api { text(&["to"])? } else { text(&["msisdn"])? },
        reference: short(parameters.first(&["client-ref", "client_ref"]), limits),
        key: format!("vonage/{id}"),
        code: short(code, limits),
        diagnostic: status.to_owned(),
    }))
}
