//! Inbox: the items of a subscriber, and broadcasts that are stored once for all.
//!
//! A **feed** is the view of one subscriber: its delivered items, and the broadcasts whose audience includes it,
//! newest first. Items with equal content share one stored content.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::{
    id::{EventId, IdError, InboxBroadcastId, Name, NotificationId, SubscriberNumber},
    time::Timestamp,
};

/// Most actions of an item.
pub const ACTIONS_MAX: usize = 4;
/// Longest link, in bytes.
pub const LINK_BYTES_MAX: usize = 2_048;
/// Longest label of an action, in characters.
pub const LABEL_CHARACTERS_MAX: usize = 100;

/// Content of an item, with its origin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InboxContent {
    /// The application.
    pub application: Name,
    /// The notification class, or the class that a broadcast names.
    pub class: Name,
    /// The channel; none for a broadcast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<Name>,
    /// The event that caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<EventId>,
    /// The default wording.
    #[serde(flatten)]
    pub wording: Wording,
    /// Wordings for other locales, by language tag.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub translations: BTreeMap<String, Wording>,
}

impl InboxContent {
    /// The wording for a locale: that of `de-AT`, else that of `de`, else the default.
    pub fn wording(&self, locale: Option<&str>) -> &Wording {
        let exact = locale.and_then(|locale| self.translations.get(locale));
        let language = || locale.and_then(|locale| self.translations.get(locale.split('-').next().unwrap_or_default()));
        exact.or_else(language).unwrap_or(&self.wording)
    }
}

/// Texts, data and actions of an item.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Wording {
    /// One line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Plain text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// HTML.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub html: Option<String>,
    /// Fields for programs.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub data: Map<String, Json>,
    /// Link of the item: a web address, or a path of the application.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// Actions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Action>,
}

/// An action of an item, shown as a button.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// Label of the button.
    pub label: String,
    /// Link of the action: a web address, or a path of the application.
    pub link: String,
}

impl Action {
    /// Whether label and link are valid.
    pub fn is_fair(&self) -> bool {
        let length = self.label.chars().count();
        (1..=LABEL_CHARACTERS_MAX).contains(&length) && is_link(&self.link)
    }
}

/// Whether a text may become a link: a web address, or a path that begins with one `/`. Others are unsafe:
/// `javascript:` would run with the reader's rights.
pub fn is_link(text: &str) -> bool {
    let is_web = ["https://", "http://"].iter().any(|scheme| {
        text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)) && text.len() > scheme.len()
    });
    let is_path = text.starts_with('/') && !text.starts_with("//") && !text.starts_with("/\\");
    text.len() <= LINK_BYTES_MAX
        && (is_web || is_path)
        && !text.chars().any(|letter| letter.is_control() || letter == ' ')
}

/// An item to be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct NewItem {
    /// Owner of the feed.
    pub subscriber: SubscriberNumber,
    /// Its notification; unique within a feed.
    pub id: NotificationId,
    /// Its content.
    pub content: Arc<InboxContent>,
    /// Expiry time.
    pub expires_at: Timestamp,
}

/// Id of an item in a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ItemId {
    /// A delivered notification: `n-7-15`.
    Notification(NotificationId),
    /// A broadcast: `b-4`.
    Broadcast(InboxBroadcastId),
}

impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ItemId::Notification(id) => id.fmt(f),
            ItemId::Broadcast(id) => id.fmt(f),
        }
    }
}

impl FromStr for ItemId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let broadcast = || text.parse().map(ItemId::Broadcast).ok();
        text.parse()
            .map(ItemId::Notification)
            .ok()
            .or_else(broadcast)
            .ok_or_else(|| IdError { text: text.to_owned(), expected: "the id of an item, such as `n-7-15` or `b-4`" })
    }
}

impl Serialize for ItemId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ItemId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// An item in a subscriber's feed.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Its id.
    pub id: ItemId,
    /// Its position among all items and changes; newer ones have higher numbers.
    pub number: u64,
    /// Position of its last change; `number` if there was none.
    pub changed: u64,
    /// Its content.
    pub content: Arc<InboxContent>,
    /// Creation time.
    pub created_at: Timestamp,
    /// When it was read, if it was.
    pub read_at: Option<Timestamp>,
    /// When it was archived, if it was.
    pub archived_at: Option<Timestamp>,
    /// Expiry time.
    pub expires_at: Timestamp,
}

/// Filter of a feed's items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InboxItemFilter {
    /// Items that are not archived.
    #[default]
    Current,
    /// Unread items that are not archived.
    Unread,
    /// Read items that are not archived.
    Read,
    /// Archived items.
    Archived,
    /// All items.
    All,
}

impl InboxItemFilter {
    /// All filters.
    pub const ALL: [InboxItemFilter; 5] = [
        InboxItemFilter::Current,
        InboxItemFilter::Unread,
        InboxItemFilter::Read,
        InboxItemFilter::Archived,
        InboxItemFilter::All,
    ];

    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            InboxItemFilter::Current => "current",
            InboxItemFilter::Unread => "unread",
            InboxItemFilter::Read => "read",
            InboxItemFilter::Archived => "archived",
            InboxItemFilter::All => "all",
        }
    }

    /// Whether an item in this state passes the filter.
    pub fn holds(self, is_read: bool, is_archived: bool) -> bool {
        match self {
            InboxItemFilter::Current => !is_archived,
            InboxItemFilter::Unread => !is_archived && !is_read,
            InboxItemFilter::Read => !is_archived && is_read,
            InboxItemFilter::Archived => is_archived,
            InboxItemFilter::All => true,
        }
    }
}

/// A mark that a reader sets on an item. Idempotent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Read.
    Read,
    /// Unread again.
    Unread,
    /// Archived.
    Archived,
    /// No longer archived.
    Unarchived,
    /// Deleted permanently.
    Deleted,
}

impl Mark {
    /// All marks.
    pub const ALL: [Mark; 5] = [Mark::Read, Mark::Unread, Mark::Archived, Mark::Unarchived, Mark::Deleted];

    /// Its name, in routes and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Mark::Read => "read",
            Mark::Unread => "unread",
            Mark::Archived => "archive",
            Mark::Unarchived => "unarchive",
            Mark::Deleted => "delete",
        }
    }

    /// Read and archive times of an item after this mark; `None` if it is deleted.
    pub fn applied(
        self,
        read_at: Option<Timestamp>,
        archived_at: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<(Option<Timestamp>, Option<Timestamp>)> {
        match self {
            Mark::Read => Some((read_at.or(Some(now)), archived_at)),
            Mark::Unread => Some((None, archived_at)),
            Mark::Archived => Some((read_at, archived_at.or(Some(now)))),
            Mark::Unarchived => Some((read_at, None)),
            Mark::Deleted => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_web_and_application_links_are_allowed() {
        for right in ["https://a.example/b?c=d", "HTTP://a.example", "/orders/5", "/"] {
            assert!(is_link(right), "{right}");
        }
        let long = format!("/{}", "a".repeat(LINK_BYTES_MAX));
        for wrong in [
            "",
            "javascript:alert(1)",
            "//evil.example",
            "/\\evil.example",
            "https://",
            "data:text/html,x",
            "a b",
            "/a\nb",
            "orders",
            &long,
        ] {
            assert!(!is_link(wrong), "{wrong}");
        }
    }

    #[test]
    fn ids_have_one_spelling() {
        for text in ["n-7-15", "b-4"] {
            assert_eq!(text.parse::<ItemId>().expect("an id").to_string(), text);
        }
        for wrong in ["", "n-7", "b-04", "s-1"] {
            assert!(wrong.parse::<ItemId>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_locale_finds_its_words() {
        let words = |text: &str| Wording { text: Some(text.to_owned()), ..Wording::default() };
        let content = InboxContent {
            application: "a".parse().expect("a name"),
            class: "c".parse().expect("a name"),
            channel: None,
            event: None,
            wording: words("hello"),
            translations: [("de".to_owned(), words("hallo")), ("de-AT".to_owned(), words("servus"))].into(),
        };
        for (locale, text) in [
            (None, "hello"),
            (Some("fr"), "hello"),
            (Some("de"), "hallo"),
            (Some("de-CH"), "hallo"),
            (Some("de-AT"), "servus"),
        ] {
            assert_eq!(content.wording(locale).text.as_deref(), Some(text), "{locale:?}");
        }
        let stored = serde_json::to_string(&content).expect("JSON");
        assert_eq!(serde_json::from_str::<InboxContent>(&stored).expect("it comes back"), content);
    }
}
