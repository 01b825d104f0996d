//! Records as users see them: properties that are left out, and the state of an in-app message.

use serde_json::Value;

use super::{Document, text};

/// Properties of a subscription that users never see.
pub const HIDDEN_OF_SUBSCRIPTIONS: [&str; 4] = ["confirmationRequest", "unsubscriptionCode", "createdBy", "updatedBy"];

/// Properties of a notification that users never see.
pub const HIDDEN_OF_NOTIFICATIONS: [&str; 4] = ["createdBy", "updatedBy", "readBy", "deletedBy"];

/// A subscription for a user.
pub fn subscription_for_user(mut record: Document) -> Document {
    record.retain(|name, _| !HIDDEN_OF_SUBSCRIPTIONS.contains(&name.as_str()));
    record
}

/// A notification for a user: a broadcast that the user has read has the state `read`.
pub fn notification_for_user(mut record: Document, user: &str) -> Document {
    let is_broadcast = record.get("isBroadcast") == Some(&Value::Bool(true));
    if is_broadcast && names(record.get("readBy"), user) {
        record.insert("state".to_owned(), Value::from("read"));
    }
    record.retain(|name, _| !HIDDEN_OF_NOTIFICATIONS.contains(&name.as_str()));
    record
}

/// Whether a notification is in the list of a user: in-app, a broadcast or addressed to the user, valid now, and not a
/// broadcast that the user deleted. A deleted message to one user stays in the list, with its state. `now` is the text
/// of a date.
pub fn is_user_notification(record: &Document, user: &str, now: &str) -> bool {
    let is_broadcast = record.get("isBroadcast") == Some(&Value::Bool(true));
    let is_theirs = [text(record, "userId"), text(record, "userChannelId")].contains(&Some(user));
    let is_expired = text(record, "validTill").is_some_and(|end| end < now);
    let is_early = text(record, "invalidBefore").is_some_and(|start| start > now);
    text(record, "channel") == Some("inApp")
        && (is_broadcast || is_theirs)
        && !is_expired
        && !is_early
        && !(is_broadcast && names(record.get("deletedBy"), user))
}

fn names(list: Option<&Value>, user: &str) -> bool {
    list.and_then(Value::as_array).is_some_and(|list| list.iter().any(|name| name == user))
}
