//! Twilio: status callbacks and incoming messages, HMAC-SHA-1 over the URL and the sorted parameters.
//! Formats: <https://www.twilio.com/docs/usage/webhooks/webhooks-security>,
//! <https://www.twilio.com/docs/messaging/guides/track-outbound-message-status> and
//! <https://www.twilio.com/docs/messaging/guides/webhook-request>.
//!
//! The signature has no time. The caller accepts each id and state once.

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::hmac;

use super::{
    ProviderError, bounded,
    sms::{Callback, Keyword, Parameters, SmsEvent, SmsReceipt, SmsReply, VerifiedCallback, reply_text, short},
};
use crate::{feedback::Class, limits::Limits};

/// Header field of the signature.
pub const SIGNATURE_HEADER: &str = "X-Twilio-Signature";
/// Parameter of the query of a status callback: the id of our message.
pub const REFERENCE_PARAMETER: &str = "message";

/// Verifies the callbacks of an account.
#[derive(Debug)]
pub struct Twilio {
    key: hmac::Key,
}

impl Twilio {
    /// With the primary auth token of the account.
    pub fn new(auth_token: &str) -> Twilio {
        Twilio { key: hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, auth_token.as_bytes()) }
    }

    /// Verifies and parses a callback.
    ///
    /// # Errors
    /// It is refused.
    pub fn verify(&self, callback: &Callback<'_>, limits: &Limits) -> Result<VerifiedCallback, ProviderError> {
        let body = bounded(&callback.request, limits)?;
        let given = callback.request.header(SIGNATURE_HEADER).ok_or(ProviderError::Unsigned("signature"))?;
        let given = BASE64_STANDARD.decode(given).map_err(|_| ProviderError::Signature)?;
        let parameters = Parameters::of_form(body)?;
        let mut signed = callback.url.to_owned();
        for (name, value) in parameters.sorted() {
            signed.push_str(name);
            signed.push_str(value);
        }
        hmac::verify(&self.key, signed.as_bytes(), &given).map_err(|_| ProviderError::Signature)?;
        parsed(callback, &parameters, limits)
    }
}

fn parsed(
    callback: &Callback<'_>,
    parameters: &Parameters<'_>,
    limits: &Limits,
) -> Result<VerifiedCallback, ProviderError> {
    let missing = |name: &str| ProviderError::Format(format!("`{name}` is missing"));
    let id = short(parameters.first(&["MessageSid", "SmsSid"]), limits).ok_or_else(|| missing("MessageSid"))?;
    let status = parameters.first(&["MessageStatus", "SmsStatus"]).unwrap_or_default();
    let number = |name: &str| short(parameters.first(&[name]), limits).ok_or_else(|| missing(name));
    let event = match status {
        "received" | "receiving" => SmsEvent::Reply(SmsReply {
            from: number("From")?,
            to: number("To")?,
            text: reply_text(parameters.first(&["Body"]), limits),
            id: id.clone(),
            // Advanced opt-out: Twilio has recognized the keyword, and has answered itself.
            keyword: match parameters.first(&["OptOutType"]) {
                Some("STOP") => Some(Keyword::Stop),
                Some("START") => Some(Keyword::Start),
                Some("HELP") => Some(Keyword::Help),
                _ => None,
            },
        }),
        "delivered" | "read" | "undelivered" | "failed" => {
            let code = parameters.first(&["ErrorCode"]);
            let query = callback.url.split_once('?').map(|(_, query)| query).unwrap_or_default();
            let query = Parameters::of_form(query.as_bytes())?;
            SmsEvent::Receipt(SmsReceipt {
                class: class(status, code),
                recipient: number("To")?,
                reference: short(query.first(&[REFERENCE_PARAMETER]), limits),
                key: format!("twilio/{id}"),
                code: short(code, limits),
                diagnostic: short(parameters.first(&["ErrorMessage"]), limits).unwrap_or_else(|| status.to_owned()),
            })
        }
        _ => SmsEvent::Progress,
    };
    Ok(VerifiedCallback { event, replay_key: format!("twilio/{id}/{status}") })
}

/// The class by the error code: <https://www.twilio.com/docs/api/errors>.
fn class(status: &str, code: Option<&str>) -> Class {
    match (status, code) {
        ("delivered" | "read", _) => Class::Delivered,
        // Unknown destination; landline or unreachable carrier; not a phone number; not a mobile number.
        (_, Some("30005" | "30006" | "21211" | "21614")) => Class::Hard,
        // The recipient has replied STOP.
        (_, Some("21610")) => Class::Unsubscribe,
        // Blocked, filtered by the carrier, sender not registered.
        (_, Some("30004" | "30007" | "30032" | "30034")) => Class::Blocked,
        _ => Class::Soft,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::Request;

    /// The example of the documentation, with the signature of the libraries of Twilio.
    #[test]
    fn the_documented_signature_is_computed() {
        let url = "https://mycompany.com/myapp.php?foo=1&bar=2";
        let body = b"CallSid=CA1234567890ABCDE&Caller=%2B12349013030&Digits=1234&From=%2B12349013030&To=%2B18005551212";
        let verify = |url: &str, signature: &str| {
            let headers = [(SIGNATURE_HEADER, signature)];
            let callback = Callback { url, request: Request { headers: &headers, body } };
            Twilio::new("12345").verify(&callback, &Limits::default())
        };
        // The signature is valid; a call has no message.
        assert!(matches!(verify(url, "0/KCTR6DLpKmkAf8muzZqo1nDgQ="), Err(ProviderError::Format(_))));
        let other = "https://mycompany.com/myapp.php?foo=1&bar=3";
        assert_eq!(verify(other, "0/KCTR6DLpKmkAf8muzZqo1nDgQ="), Err(ProviderError::Signature));
        assert_eq!(verify(url, "1/KCTR6DLpKmkAf8muzZqo1nDgQ="), Err(ProviderError::Signature));
    }
}
