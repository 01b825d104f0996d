//! Erasure of a person from the journal.

use std::collections::HashSet;

use async_trait::async_trait;
use bytes::Bytes;
use memchr::memmem;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tocsin_model::{
    event::PackedEvents,
    id::{EventBatchId, NotificationBatchId, SubscriberId, SubscriberNumber, SubscriptionId},
    notification::Notifications,
    receipt::Attempt,
    time::Timestamp,
    value::Value,
};

use crate::error::StoreError;

/// Replaces an erased name within a text.
pub const ERASED: &str = "erased";
/// A shorter name is found only as a whole value; a longer one also as a word of a text.
const WORD_BYTES_MIN: usize = 6;

/// Erasures of persons. The request is stored first and removed last, so that a restart continues it.
///
/// An event that names the person loses its values, once it is matched. Values that notifications of the person
/// captured, and replies to them, are overwritten, and so are names in other texts. Batches, counts and the numbers of
/// subscriptions stay. Each method changes a bounded number of rows in one commit.
#[async_trait]
pub trait Erasures: Send + Sync + 'static {
    /// Stores a request; one of the same person begins again. Event batches accepted so far belong to it.
    async fn begin_erasure(&self, person: ErasedPerson, now: Timestamp) -> Result<(), StoreError>;

    /// All requests that are not finished, by number of the person.
    async fn erasures(&self) -> Result<Vec<Erasure>, StoreError>;

    /// Examines event batches after the progress of an erasure: up to `limit` that contain a name of the person, and
    /// the last batch examined.
    async fn event_batches_naming(
        &self,
        erasure: &Erasure,
        limit: usize,
    ) -> Result<(Vec<EventBatchId>, EventBatchId), StoreError>;

    /// Replaces events of matched batches, and records the progress.
    async fn erase_events(
        &self,
        person: SubscriberNumber,
        events: Vec<ErasedEvents>,
        examined: EventBatchId,
    ) -> Result<(), StoreError>;

    /// Overwrites data of the person in the next notification batches, with their receipts, and records the progress.
    async fn erase_notifications(&self, erasure: &Erasure, now: Timestamp) -> Result<ErasedNotifications, StoreError>;

    /// Overwrites names in the texts of operators and of failures, and removes delayed notifications.
    async fn erase_texts(&self, erasure: &Erasure, now: Timestamp) -> Result<(), StoreError>;

    /// Removes the request, overwrites the free parts of the file, and truncates its log.
    ///
    /// # Errors
    /// `Unavailable` while a backup reads the file; the call is then repeated.
    async fn finish_erasure(&self, person: SubscriberNumber) -> Result<(), StoreError>;
}

/// A person to erase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErasedPerson {
    /// Number of the subscriber.
    pub number: SubscriberNumber,
    /// Id of the subscriber.
    pub id: SubscriberId,
    /// Id and addresses, former ones included.
    pub names: PersonNames,
    /// Subscriptions, removed ones included.
    pub subscriptions: Vec<SubscriptionId>,
}

/// An erasure and its progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Erasure {
    /// The person; `None` once only free parts of the file are to be overwritten.
    pub person: Option<ErasedPerson>,
    /// Number of the subscriber.
    pub number: SubscriberNumber,
    /// Time of the request.
    pub asked_at: Timestamp,
    /// The last event batch that belongs to it.
    pub last_event: EventBatchId,
    /// Event batches up to this one are done.
    pub events: EventBatchId,
    /// Notification batches up to this one are done.
    pub notifications: NotificationBatchId,
}

/// Events of a batch after an erasure.
#[derive(Debug, Clone, PartialEq)]
pub struct ErasedEvents {
    /// Batch.
    pub batch: EventBatchId,
    /// Its events.
    pub events: PackedEvents,
    /// Its chronicle values, if it has any.
    pub chronicled: Bytes,
}

/// Result of [`Erasures::erase_notifications`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErasedNotifications {
    /// There may be more.
    Some(NotificationBatchId),
    /// All that exist are done, and no more will be made of events that belong to the erasure.
    All(NotificationBatchId),
    /// Events that belong to the erasure are not matched, or notifications of the person are being delivered.
    Waiting(NotificationBatchId),
}

/// Texts that name a person, such as its id and addresses. Comparisons ignore the case of ASCII letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersonNames(Vec<Box<str>>);

impl PersonNames {
    /// The names: all texts that are not empty.
    pub fn new(texts: impl IntoIterator<Item = String>) -> PersonNames {
        let mut names: Vec<Box<str>> = texts
            .into_iter()
            .map(|text| text.trim().to_ascii_lowercase().into_boxed_str())
            .filter(|name| !name.is_empty())
            .collect();
        names.sort_unstable_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        names.dedup();
        PersonNames(names)
    }

    /// Whether bytes can have a name. A quick test before they are unpacked.
    pub fn may_be_in(&self, bytes: &[u8]) -> bool {
        let lower = bytes.to_ascii_lowercase();
        self.0.iter().any(|name| {
            memmem::find(&lower, name.as_bytes()).is_some() || {
                // As lists and maps are stored.
                let json = Json::from(&**name).to_string();
                let json = &json[1..json.len() - 1];
                json != &**name && memmem::find(&lower, json.as_bytes()).is_some()
            }
        })
    }

    /// Whether a text is a name or has one as a word.
    pub fn is_in(&self, text: &str) -> bool {
        self.first_in(&text.to_ascii_lowercase()).is_some()
    }

    /// Whether a value is or contains a text with a name.
    pub fn is_in_value(&self, value: &Value) -> bool {
        match value {
            Value::Text(text) => self.is_in(text),
            Value::List(_) | Value::Map(_) => serde_json::to_value(value).is_ok_and(|json| self.is_in_json(&json)),
            Value::Null | Value::Boolean(_) | Value::Integer(_) | Value::Number(_) | Value::Timestamp(_) => false,
        }
    }

    fn is_in_json(&self, json: &Json) -> bool {
        match json {
            Json::String(text) => self.is_in(text),
            Json::Array(items) => items.iter().any(|item| self.is_in_json(item)),
            Json::Object(members) => members.iter().any(|(name, item)| self.is_in(name) || self.is_in_json(item)),
            Json::Null | Json::Bool(_) | Json::Number(_) => false,
        }
    }

    /// The text without names; `None` if it has none.
    pub fn erased(&self, text: &str) -> Option<String> {
        let mut lower = text.to_ascii_lowercase();
        let mut rest = text.to_owned();
        let mut has_any = false;
        while let Some(found) = self.first_in(&lower) {
            rest.replace_range(found.clone(), ERASED);
            lower.replace_range(found, ERASED);
            has_any = true;
        }
        has_any.then_some(rest)
    }

    /// A JSON text without names in its texts; `None` if it has none. A text that is not JSON is taken as plain text.
    pub fn erased_json(&self, text: &str) -> Option<String> {
        let Ok(mut json) = serde_json::from_str::<Json>(text) else { return self.erased(text) };
        self.erase_in(&mut json).then(|| json.to_string())
    }

    fn erase_in(&self, json: &mut Json) -> bool {
        match json {
            Json::String(text) => match self.erased(text) {
                Some(erased) => {
                    *text = erased;
                    true
                }
                None => false,
            },
            Json::Array(items) => items.iter_mut().fold(false, |any, item| self.erase_in(item) | any),
            Json::Object(members) => {
                let named: Vec<String> = members.keys().filter(|name| self.is_in(name)).cloned().collect();
                named.iter().for_each(|name| drop(members.remove(name)));
                members.iter_mut().fold(!named.is_empty(), |any, (_, item)| self.erase_in(item) | any)
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => false,
        }
    }

    /// The first name in a text of lower case.
    fn first_in(&self, lower: &str) -> Option<std::ops::Range<usize>> {
        self.0.iter().find_map(|name| {
            if name.len() < WORD_BYTES_MIN {
                return (lower.trim() == &**name).then_some(0..lower.len());
            }
            // The replacement must not be found again.
            if &**name == ERASED {
                return None;
            }
            let is_part = |byte: Option<&u8>| {
                byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_' || !byte.is_ascii())
            };
            memmem::find_iter(lower.as_bytes(), name.as_bytes()).map(|at| at..at + name.len()).find(|found| {
                let before = found.start.checked_sub(1).and_then(|at| lower.as_bytes().get(at));
                !is_part(before) && !is_part(lower.as_bytes().get(found.end))
            })
        })
    }
}

impl ErasedPerson {
    /// Its subscriptions, for look-ups.
    pub(crate) fn subscription_set(&self) -> HashSet<SubscriptionId> {
        self.subscriptions.iter().copied().collect()
    }

    /// Erases captured values of a batch. Returns whether any were erased, and the ordinals of the person.
    pub(crate) fn erase_captured(
        &self,
        subscriptions: &HashSet<SubscriptionId>,
        notifications: &mut Notifications,
    ) -> (bool, Vec<u32>) {
        let is_erased =
            |subscription, value: &Value| subscriptions.contains(&subscription) || self.names.is_in_value(value);
        let ordinals = (0u32..)
            .zip(&notifications.subscriptions)
            .filter(|(_, subscription)| subscriptions.contains(subscription))
            .map(|(ordinal, _)| ordinal)
            .collect();
        (notifications.erase_captured(is_erased), ordinals)
    }

    /// Erases replies to notifications of the person, and other replies that name it. Returns whether any was.
    pub(crate) fn erase_replies(&self, ordinals: &[u32], attempts: &mut [Attempt]) -> bool {
        let mut has_any = false;
        for attempt in attempts {
            let is_own = ordinals.binary_search(&attempt.ordinal).is_ok();
            if attempt.reply.is_empty() || attempt.reply == ERASED {
                continue;
            }
            if is_own {
                attempt.reply = ERASED.to_owned();
            } else if let Some(erased) = self.names.erased(&attempt.reply) {
                attempt.reply = erased;
            } else {
                continue;
            }
            has_any = true;
        }
        has_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> PersonNames {
        PersonNames::new(["ann".to_owned(), "Ann.Lee@example.org".to_owned(), "customer-77".to_owned()])
    }

    #[test]
    fn a_long_name_is_found_as_a_word_and_a_short_one_as_a_whole_value() {
        for (text, expected) in [
            ("ann", Some("erased")),
            (" Ann ", Some("erased")),
            ("ann and bob", None),
            ("banner", None),
            ("550 <ann.lee@EXAMPLE.org>: unknown", Some("550 <erased>: unknown")),
            ("to=ann.lee@example.org, customer-77.", Some("to=erased, erased.")),
            ("joann.lee@example.org", None),
            ("customer-770", None),
            ("", None),
        ] {
            assert_eq!(names().erased(text).as_deref(), expected, "{text}");
            assert_eq!(names().is_in(text), expected.is_some(), "{text}");
            assert!(expected.is_none() || names().may_be_in(text.as_bytes()), "{text}");
        }
        assert_eq!(PersonNames::new(["erased".to_owned()]).erased("erased"), None, "the replacement is left alone");
    }

    #[test]
    fn names_within_json_are_found_in_texts_and_members() {
        let text = r#"{"to":["ann","bob"],"Ann.Lee@example.org":1,"note":"for customer-77"}"#;
        let erased = names().erased_json(text);
        assert_eq!(erased.as_deref(), Some(r#"{"to":["erased","bob"],"note":"for erased"}"#));
        assert_eq!(names().erased_json(r#"{"to":"bob"}"#), None);
        let value = Value::from(serde_json::from_str::<Json>(text).expect("JSON"));
        assert!(names().is_in_value(&value));
        assert!(!names().is_in_value(&Value::Integer(77)));
        let quoted = PersonNames::new(["a \"quoted\" name".to_owned()]);
        assert!(quoted.may_be_in(br#"["a \"quoted\" name"]"#));
    }
}
