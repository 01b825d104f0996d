//! MessageBird (Bird): status reports and incoming messages, with a JWT over hashes of URL and body.
//! Formats: <https://developers.messagebird.com/api/#verifying-http-requests> and
//! <https://developers.messagebird.com/api/sms-messaging/#handle-a-status-report>.
//!
//! A status report is a GET, whose parameters are in the query.

use std::time::Duration;

use serde::Deserialize;
use tocsin_model::time::Timestamp;

use super::{
    ProviderError, bounded, fresh, seconds,
    sms::{
        Callback, Parameters, SmsEvent, SmsReceipt, SmsReply, VerifiedCallback, check_hash, claims, reply_text, short,
    },
};
use crate::{feedback::Class, limits::Limits};

/// Header field of the signature.
pub const SIGNATURE_HEADER: &str = "MessageBird-Signature-JWT";

/// Verifies the callbacks of an account.
#[derive(Debug)]
pub struct MessageBird {
    key: String,
    window: Duration,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    nbf: i64,
    exp: i64,
    jti: String,
    url_hash: String,
    #[serde(default)]
    payload_hash: Option<String>,
}

impl MessageBird {
    /// With the signing key of the account and the replay window.
    pub fn new(signing_key: &str, window: Duration) -> MessageBird {
        MessageBird { key: signing_key.to_owned(), window }
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
        let token = callback.request.header(SIGNATURE_HEADER).ok_or(ProviderError::Unsigned("signature"))?;
        let claims: Claims = claims(token, self.key.as_bytes())?;
        check_hash(&claims.url_hash, callback.url.as_bytes())?;
        match &claims.payload_hash {
            Some(hash) => check_hash(hash, body)?,
            None if body.is_empty() => {}
            None => return Err(ProviderError::Unsigned("body")),
        }
        if claims.iss != "MessageBird" {
            return Err(ProviderError::Signature);
        }
        fresh(seconds(claims.nbf), now, self.window)?;
        if now.since(seconds(claims.exp)) > super::CLOCK_SKEW_MAX {
            return Err(ProviderError::Stale);
        }
        let event = event(&Parameters::of(callback, limits)?, limits)?;
        Ok(VerifiedCallback { event, replay_key: format!("messagebird/{}", claims.jti) })
    }
}

fn event(parameters: &Parameters<'_>, limits: &Limits) -> Result<SmsEvent, ProviderError> {
    let missing = |name: &str| ProviderError::Format(format!("`{name}` is missing"));
    let text = |names: &[&str]| short(parameters.first(names), limits).ok_or_else(|| missing(names[0]));
    let id = text(&["id"])?;
    let Some(status) = parameters.first(&["status"]) else {
        return Ok(SmsEvent::Reply(SmsReply {
            from: text(&["originator"])?,
            to: text(&["recipient"])?,
            text: reply_text(parameters.first(&["body", "payload", "message"]), limits),
            id,
            keyword: None,
        }));
    };
    let reason = parameters.first(&["statusReason"]);
    let class = match (status, reason) {
        ("delivered", _) => Class::Delivered,
        ("delivery_failed" | "expired", Some("unknown subscriber" | "EC_UNKNOWN_SUBSCRIBER")) => Class::Hard,
        ("delivery_failed", Some("opted out" | "opted_out")) => Class::Unsubscribe,
        ("delivery_failed" | "expired", _) => Class::Soft,
        _ => return Ok(SmsEvent::Progress),
    };
    Ok(SmsEvent::Receipt(SmsReceipt {
        class,
        recipient: text(&["recipient"])?,
        reference: short(parameters.first(&["reference"]), limits),
        key: format!("messagebird/{id}"),
        code: short(parameters.first(&["statusErrorCode"]), limits),
        diagnostic: short(reason, limits).unwrap_or_else(|| status.to_owned()),
    }))
}
