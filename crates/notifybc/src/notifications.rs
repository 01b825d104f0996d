//! Rules of notifications as decisions: validation before storing, sending, states, and the dispatch record.

use serde_json::{Value, json};
use tocsin_model::time::Timestamp;

use crate::{
    identity::Identity,
    query::Where,
    record::{Document, date_text, is_user_notification, parse_date, text, truthy},
    subscriptions::is_same_address,
};

/// A property that is hidden from all answers has this prefix.
pub const INTERNAL_PREFIX: &str = "tocsin";

/// A notification that is refused before it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotificationError {
    /// 403: no recipient, or the recipient has no confirmed subscription.
    #[error("invalid user")]
    InvalidUser,
    /// 400: the sender's filter is not a text. The caller checks its syntax.
    #[error("invalid broadcastPushNotificationFilter")]
    InvalidFilter,
}

/// The needed checks of a body with its defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// Nothing else is checked.
    None,
    /// The syntax of the sender's filter of a broadcast.
    Filter(String),
    /// A confirmed subscription of this recipient must exist. Its address becomes the recipient.
    Recipient(Recipient),
}

/// The recipient of a push notification to one user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipient {
    /// The service.
    pub service: String,
    /// The channel.
    pub channel: String,
    /// The address, if given.
    pub address: Option<String>,
    /// The user, if given.
    pub user: Option<String>,
}

/// The checks of a body that has its defaults and typed values.
pub fn check(body: &Document) -> Result<Check, NotificationError> {
    let is_broadcast = body.get("isBroadcast").is_some_and(truthy);
    let skips = body.get("skipSubscriptionConfirmationCheck").is_some_and(truthy);
    let (address, user) = (text(body, "userChannelId"), text(body, "userId"));
    let channel = text(body, "channel").unwrap_or_default();
    if skips && !is_broadcast && address.is_none() {
        return Err(NotificationError::InvalidUser);
    }
    if is_broadcast && channel != "inApp" {
        return match body.get("broadcastPushNotificationSubscriptionFilter") {
            Some(Value::String(filter)) if !filter.is_empty() => Ok(Check::Filter(filter.clone())),
            Some(value) if truthy(value) => Err(NotificationError::InvalidFilter),
            _ => Ok(Check::None),
        };
    }
    if channel == "inApp" || skips || is_broadcast {
        return Ok(Check::None);
    }
    if address.is_none() && user.is_none() {
        return Err(NotificationError::InvalidUser);
    }
    Ok(Check::Recipient(Recipient {
        service: text(body, "serviceName").unwrap_or_default().to_owned(),
        channel: channel.to_owned(),
        address: address.map(str::to_owned),
        user: user.map(str::to_owned),
    }))
}

impl Recipient {
    /// Whether a subscription is that of the recipient: confirmed, of the service and channel, with the whole address,
    /// letter case aside, and the user.
    pub fn matches(&self, subscription: &Document) -> bool {
        let address = text(subscription, "userChannelId").unwrap_or_default();
        text(subscription, "state") == Some("confirmed")
            && text(subscription, "serviceName") == Some(&self.service)
            && text(subscription, "channel") == Some(&self.channel)
            && self.address.as_ref().is_none_or(|own| is_same_address(own, address))
            && self.user.as_ref().is_none_or(|user| text(subscription, "userId") == Some(user))
    }

    /// The condition of the subscriptions that can match, for an index. The address is compared by
    /// [`matches`](Recipient::matches) only, because its letter case is not part of an index.
    pub fn candidates(&self) -> Where {
        let mut parts = vec![
            Where::text("serviceName", &self.service),
            Where::text("channel", &self.channel),
            Where::text("state", "confirmed"),
        ];
        parts.extend(self.user.as_ref().map(|user| Where::text("userId", user)));
        Where::All(parts)
    }
}

/// The next step after a notification was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    /// Nothing: an in-app message, another channel, or one with a future `invalidBefore`.
    Later,
    /// To one recipient, before the answer.
    Unicast,
    /// To all candidates, before the answer.
    Broadcast,
    /// To all candidates, after the answer.
    BroadcastLater,
}

/// The next step of a stored notification.
pub fn sending(record: &Document, now: Timestamp) -> Sending {
    let is_push = matches!(text(record, "channel"), Some("email" | "sms"));
    if !is_push || is_early(record, now) {
        return Sending::Later;
    }
    match (
        record.get("isBroadcast").is_some_and(truthy),
        record.get("asyncBroadcastPushNotification").is_some_and(truthy),
    ) {
        (false, _) => Sending::Unicast,
        (true, false) => Sending::Broadcast,
        (true, true) => Sending::BroadcastLater,
    }
}

/// Whether `invalidBefore` lies in the future.
fn is_early(record: &Document, now: Timestamp) -> bool {
    text(record, "invalidBefore").and_then(parse_date).is_some_and(|start| start > now)
}

/// The address that gets the final record of an asynchronous broadcast.
pub fn callback_url(record: &Document) -> Option<&str> {
    text(record, "asyncBroadcastPushNotification")
        .filter(|url| url.starts_with("http://") || url.starts_with("https://"))
}

/// A record that the job sends now: push, `new`, and its `invalidBefore` has passed. A broadcast becomes asynchronous.
pub fn due(mut record: Document, now: Timestamp) -> Option<Document> {
    let start = text(&record, "invalidBefore").and_then(parse_date)?;
    let is_push = text(&record, "channel") != Some("inApp");
    if !is_push || text(&record, "state") != Some("new") || start > now {
        return None;
    }
    if !record.get("asyncBroadcastPushNotification").is_some_and(truthy) {
        record.insert("asyncBroadcastPushNotification".to_owned(), Value::Bool(true));
    }
    Some(record)
}

/// The decision about a PATCH by a caller.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// These properties are set.
    Set(Document),
    /// Nothing is changed.
    Nothing,
    /// 403 without text.
    Refused,
    /// 404.
    Missing,
}

/// The change of a PATCH. A user changes the state of an in-app message in view only; of a broadcast, the user is added
/// to `readBy` or `deletedBy` once. `record` is `None` for an unknown id.
pub fn change(record: Option<&Document>, body: Document, identity: &Identity, now: Timestamp) -> Change {
    if identity.role.is_admin() {
        return if record.is_some() { Change::Set(body) } else { Change::Missing };
    }
    let Some(user) = identity.user() else { return Change::Refused };
    let Some(record) = record.filter(|record| is_user_notification(record, user, &date_text(now))) else {
        return Change::Refused;
    };
    let Some(state) = body.get("state").filter(|state| truthy(state)) else { return Change::Missing };
    if !record.get("isBroadcast").is_some_and(truthy) {
        return Change::Set(Document::from_iter([("state".to_owned(), state.clone())]));
    }
    let list = match state.as_str() {
        Some("read") => "readBy",
        Some("deleted") => "deletedBy",
        _ => return Change::Nothing,
    };
    let mut users = record.get(list).and_then(Value::as_array).cloned().unwrap_or_default();
    if users.iter().any(|name| name == user) {
        return Change::Nothing;
    }
    users.push(Value::from(user));
    Change::Set(Document::from_iter([(list.to_owned(), Value::Array(users))]))
}

/// The change of a DELETE: the state `deleted`. `Missing` if the record is not in the caller's view.
pub fn deletion(record: Option<&Document>, identity: &Identity, now: Timestamp) -> Change {
    let user = identity.user();
    let in_view = |record: &&Document| user.is_none_or(|user| is_user_notification(record, user, &date_text(now)));
    match record.filter(in_view) {
        None => Change::Missing,
        record => change(record, Document::from_iter([("state".to_owned(), json!("deleted"))]), identity, now),
    }
}

/// Results of a broadcast.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Dispatch {
    /// Ids of the candidates.
    pub candidates: Vec<String>,
    /// Ids that were sent.
    pub successful: Vec<String>,
    /// Failed recipients: `subscriptionId`, `userChannelId` and `error`.
    pub failed: Vec<Value>,
    /// Ids that a filter excluded.
    pub skipped: Vec<String>,
}

impl Dispatch {
    /// The object `dispatch` of the record. Lists that would be empty are absent, except the candidates; `successful`
    /// is kept with the guarantee or bounces, `skipped` with the guarantee and its option.
    pub fn to_value(&self, keeps_successful: bool, keeps_skipped: bool) -> Value {
        let mut value = Document::from_iter([("candidates".to_owned(), json!(self.candidates))]);
        if keeps_successful && !self.successful.is_empty() {
            value.insert("successful".to_owned(), json!(self.successful));
        }
        if !self.failed.is_empty() {
            value.insert("failed".to_owned(), json!(self.failed));
        }
        if keeps_skipped && !self.skipped.is_empty() {
            value.insert("skipped".to_owned(), json!(self.skipped));
        }
        Value::Object(value)
    }

    /// The lists of a record that is sent again. Recipients in `failed`, `successful` or `skipped` are not sent to.
    pub fn of(record: &Document) -> Dispatch {
        let list =
            |name: &str| record.get("dispatch").and_then(|dispatch| dispatch.get(name)).and_then(Value::as_array);
        let ids = |name: &str| {
            let items = list(name).into_iter().flatten();
            items.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<String>>()
        };
        Dispatch {
            candidates: ids("candidates"),
            successful: ids("successful"),
            failed: list("failed").cloned().unwrap_or_default(),
            skipped: ids("skipped"),
        }
    }

    /// Ids with a result.
    pub fn done(&self) -> std::collections::HashSet<&str> {
        let failed = self.failed.iter().filter_map(|failure| failure.get("subscriptionId")?.as_str());
        self.successful.iter().chain(&self.skipped).map(String::as_str).chain(failed).collect()
    }
}

#[cfg(test)]
mod tests;
