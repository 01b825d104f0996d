//! Unsubscription by an SMS keyword, which the gateway Swift posts.

use crate::{
    codes,
    configuration::{Sms, SmsProvider},
    record::{CastError, Collection, Document, RecordId, text},
};

/// The subscription that a keyword unsubscribes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwiftTarget {
    /// The confirmed SMS subscription with this id.
    Reference(RecordId),
    /// The confirmed SMS subscription whose address contains these digits, dashes aside. The country code 1 is not
    /// part of them.
    Phone(String),
}

/// The subscription of a post. `Ok(None)`: 403, because Swift is not the provider, the key is wrong, or neither
/// reference nor number is given.
pub fn swift_target(sms: &Sms, body: &Document) -> Result<Option<SwiftTarget>, CastError> {
    let is_swift = matches!(sms.provider, SmsProvider::Swift { .. });
    let is_known = sms
        .swift_key
        .as_deref()
        .zip(text(body, "notifyBCSwiftKey"))
        .is_some_and(|(own, given)| codes::equals(own, given));
    if !is_swift || !is_known {
        return Ok(None);
    }
    if let Some(reference) = text(body, "Reference") {
        return RecordId::parse(reference, Collection::Subscription).map(|id| Some(SwiftTarget::Reference(id)));
    }
    let number = match body.get("PhoneNumber") {
        Some(serde_json::Value::String(number)) => number.clone(),
        Some(serde_json::Value::Number(number)) => number.to_string(),
        _ => return Ok(None),
    };
    let digits: String = number.chars().filter(char::is_ascii_digit).collect();
    let digits = digits.strip_prefix('1').map(str::to_owned).unwrap_or(digits);
    Ok(Some(SwiftTarget::Phone(digits)).filter(|_| !number.is_empty()))
}

impl SwiftTarget {
    /// Whether a subscription is the target.
    pub fn matches(&self, record: &Document) -> bool {
        let is_open = text(record, "state") == Some("confirmed") && text(record, "channel") == Some("sms");
        is_open
            && match self {
                SwiftTarget::Reference(id) => text(record, "id") == Some(id.to_string().as_str()),
                SwiftTarget::Phone(digits) => {
                    let address = text(record, "userChannelId").unwrap_or_default().replace('-', "");
                    !digits.is_empty() && address.contains(digits.as_str())
                }
            }
    }
}
