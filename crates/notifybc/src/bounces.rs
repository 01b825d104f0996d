//! Inbound mail: recipients `un-…` and `bn-…`, and the count of bounces.

mod mail; // parts of a mail

use serde_json::{Value, json};
use tocsin_model::time::Timestamp;

pub use mail::BounceMail;

use crate::{
    configuration::BounceOptions,
    record::{Document, date_text, text},
    subscriptions::is_same_address,
};

/// Most messages that a bounce record keeps; the oldest are dropped.
pub const MESSAGES_MAX: usize = 100;
/// Most bytes of messages that a bounce record keeps; the oldest are dropped. The newest is always kept.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// The recipient of an inbound mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboundRecipient {
    /// The purpose of the mail.
    pub kind: InboundKind,
    /// The id of the subscription, as it is written in the address.
    pub id: String,
    /// The unsubscription code.
    pub code: String,
}

/// The purpose of an inbound mail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InboundKind {
    /// `un-<id>-<code>`: unsubscription.
    Unsubscription,
    /// `bn-<id>-<code>`: bounce.
    Bounce,
}

impl InboundRecipient {
    /// The recipient of an address in one of the domains, which are in lower case. No domain means any.
    pub fn parse(address: &str, domains: &[String]) -> Option<InboundRecipient> {
        let (local, domain) = address.rsplit_once('@')?;
        if !domains.is_empty() && !domains.contains(&domain.to_lowercase()) {
            return None;
        }
        let kind = match local.get(..3)?.to_ascii_lowercase().as_str() {
            "un-" => InboundKind::Unsubscription,
            "bn-" => InboundKind::Bounce,
            _ => return None,
        };
        let (id, code) = local[3..].split_once('-')?;
        // Some servers change the letter case of local parts. An id has none; a code is compared as it is.
        (!id.is_empty()).then(|| InboundRecipient { kind, id: id.to_lowercase(), code: code.to_owned() })
    }
}

/// Whether a bounce counts for a subscription's address: subject and status code match, and the failed recipient, if
/// the mail names one, is the address.
pub fn counts(options: &BounceOptions, mail: &BounceMail, address: &str) -> bool {
    let body = mail.body();
    let subject = mail.subject.as_deref().unwrap_or_default();
    let recipient = match mail.failed_recipients.as_deref().filter(|header| !header.is_empty()) {
        Some(header) => Some(header),
        None => options.failed_recipient.as_ref().and_then(|regex| regex.find(body)).map(|found| found.as_str()),
    };
    options.subject.as_ref().is_none_or(|regex| regex.is_match(subject))
        && options.status_code.as_ref().is_none_or(|regex| regex.is_match(body))
        && recipient.is_none_or(|recipient| is_same_address(recipient, address))
}

/// Whether a subscription takes a bounce: a confirmed e-mail one with the code.
pub fn takes_bounce(subscription: &Document, code: &str) -> bool {
    text(subscription, "channel") == Some("email")
        && text(subscription, "state") == Some("confirmed")
        && text(subscription, "unsubscriptionCode").is_some_and(|own| crate::codes::equals(own, code))
}

/// The result of a bounce.
#[derive(Debug, Clone, PartialEq)]
pub struct Bounced {
    /// The properties of the bounce record to set, or those of a new one.
    pub changes: Document,
    /// Whether the address is now unsubscribed from all services, and the record becomes `deleted`.
    pub unsubscribes: bool,
}

/// Adds a bounce to the active record of an address, or to a new one.
pub fn bounced(
    options: &BounceOptions,
    record: Option<&Document>,
    address: &str,
    message: &str,
    is_counted: bool,
    now: Timestamp,
) -> Bounced {
    let count = record.and_then(|record| record.get("hardBounceCount")).and_then(Value::as_u64).unwrap_or(0);
    let count = count.saturating_add(u64::from(is_counted));
    let former = record.and_then(|record| record.get("bounceMessages")).and_then(Value::as_array);
    let mut messages = vec![json!({"date": date_text(now), "message": message})];
    let mut bytes = message.len();
    for former in former.into_iter().flatten().take(MESSAGES_MAX - 1) {
        bytes += former.get("message").and_then(Value::as_str).map_or(0, str::len);
        if bytes > MESSAGE_BYTES_MAX {
            break;
        }
        messages.push(former.clone());
    }
    let unsubscribes = count > options.unsubscription_threshold;
    let mut changes = Document::from_iter([
        ("hardBounceCount".to_owned(), json!(count)),
        ("bounceMessages".to_owned(), Value::Array(messages)),
    ]);
    if record.is_none() {
        changes.insert("channel".to_owned(), json!("email"));
        changes.insert("userChannelId".to_owned(), json!(address));
    }
    Bounced { changes, unsubscribes }
}

/// Whether the job clears a bounce record: it is active, its last notification ended long enough ago, and its newest
/// message came before that notification started.
pub fn is_cleared(record: &Document, hours_min: f64, now: Timestamp) -> bool {
    let time = |name: &str| text(record, name).and_then(crate::record::parse_date);
    let Some(ended) = time("latestNotificationEnded") else { return false };
    let newest =
        record.get("bounceMessages").and_then(|messages| messages.get(0)).and_then(|message| message.get("date"));
    let newest = newest.and_then(Value::as_str).and_then(crate::record::parse_date);
    let is_quiet = newest.zip(time("latestNotificationStarted")).is_some_and(|(newest, started)| newest <= started);
    let elapsed = (now.as_millis() - ended.as_millis()) as f64;
    text(record, "state") == Some("active") && elapsed > hours_min * 3_600_000.0 && is_quiet
}

#[cfg(test)]
mod tests;
