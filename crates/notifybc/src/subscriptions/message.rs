//! Messages of the workflow: confirmation requests, texts for duplicates, acknowledgements.

use crate::{
    configuration::{MessageTemplate, SubscriptionConfiguration},
    record::{Document, text, truthy},
};

/// The texts of the message after a POST or PATCH, if one is sent: the record is unconfirmed, and its request says
/// `sendRequest`. They are merged without the data of the subscription. `is_duplicate` counts only if the configuration
/// detects duplicates; see [`is_duplicate`](super::is_duplicate).
pub fn confirmation(
    configuration: &SubscriptionConfiguration,
    record: &Document,
    is_duplicate: bool,
) -> Option<MessageTemplate> {
    if !is_confirmation_sent(record) {
        return None;
    }
    let own = || Some(MessageTemplate::of(record.get("confirmationRequest")?.as_object()?));
    match is_duplicate && configuration.detects_duplicates {
        true => configuration.duplicate_message(text(record, "channel").unwrap_or_default()).or_else(own),
        false => own(),
    }
}

/// Whether a message is sent after a POST or PATCH.
pub fn is_confirmation_sent(record: &Document) -> bool {
    let is_requested = record.get("confirmationRequest").and_then(|request| request.get("sendRequest"));
    text(record, "state") == Some("unconfirmed") && is_requested.is_some_and(truthy)
}

/// The texts of the acknowledgement of an unsubscription, if the channel has one. They are merged with the data of the
/// unsubscribed record, which has its additional services.
pub fn unsubscription_acknowledgement<'c>(
    configuration: &'c SubscriptionConfiguration,
    record: &Document,
) -> Option<&'c MessageTemplate> {
    let channel = text(record, "channel").filter(|channel| matches!(*channel, "email" | "sms"))?;
    configuration.unsubscription_message(channel)
}
