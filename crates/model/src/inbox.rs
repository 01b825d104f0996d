//! What a subscriber finds when it looks: items of its own, and broadcasts that are kept once for all.
//!
//! A **feed** is what one subscriber sees: the items that the flow delivered to it, and the broadcasts whose audience it
//! belongs to, newest first. What an item says is kept once for all who are told the same.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::{
    id::{BroadcastId, EventId, IdError, Name, NotificationId, SubscriberNumber},
    time::Timestamp,
};

/// Most actions of an item.
pub const ACTIONS_MAX: usize = 4;
/// Longest link, in bytes.
pub const LINK_BYTES_MAX: usize = 2_048;
/// Longest label of an action, in characters.
pub const LABEL_CHARACTERS_MAX: usize = 100;

/// What an item says, and of what it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InboxContent {
    /// The application.
    pub application: Name,
    /// The notification class, or what a broadcast says of itself.
    pub class: Name,
    /// The channel through which it came; a broadcast comes through none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<Name>,
    /// The event that it tells of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<EventId>,
    /// Its words.
    #[serde(flatten)]
    pub wording: Wording,
    /// The words for those with another locale, by language tag.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub translations: BTreeMap<String, Wording>,
}

impl InboxContent {
    /// The words for a locale: those of `de-AT`, else those of `de`, else its own.
    pub fn wording(&self, locale: Option<&str>) -> &Wording {
        let exact = locale.and_then(|locale| self.translations.get(locale));
        let language = || locale.and_then(|locale| self.translations.get(locale.split('-').next().unwrap_or_default()));
        exact.or_else(language).unwrap_or(&self.wording)
    }
}

/// The words of an item, and what to do about it.
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
    /// Where it leads: an address of the web, or a path of the application.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Action>,
}

/// Something to do about an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// What its button says.
    pub label: String,
    /// Where it leads: an address of the web, or a path of the application.
    pub link: String,
}

impl Action {
    /// Whether it can be shown.
    pub fn is_fair(&self) -> bool {
        let length = self.label.chars().count();
        (1..=LABEL_CHARACTERS_MAX).contains(&length) && is_link(&self.link)
    }
}

/// Whether a text may become a link: an address of the web, or a path that begins with one `/`. Nothing else, for a page
/// follows it: `javascript:` would run in the name of its reader.
pub fn is_link(text: &str) -> bool {
    let is_web = ["https://", "http://"].iter().any(|scheme| {
        text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)) && text.len() > scheme.len()
    });
    let is_path = text.starts_with('/') && !text.starts_with("//") && !text.starts_with("/\\");
    text.len() <= LINK_BYTES_MAX
        && (is_web || is_path)
        && !text.chars().any(|letter| letter.is_control() || letter == ' ')
}

/// An item on its way into a feed.
#[derive(Debug, Clone, PartialEq)]
pub struct NewItem {
    /// Whose feed.
    pub subscriber: SubscriberNumber,
    /// The notification that it carries. A feed has no two items of the same.
    pub id: NotificationId,
    /// What it says.
    pub content: Arc<InboxContent>,
    /// When it goes by itself.
    pub expires_at: Timestamp,
}

/// The id of an item in a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ItemId {
    /// It came by the flow: `n-7-15`.
    Notification(NotificationId),
    /// It is a broadcast: `b-4`.
    Broadcast(BroadcastId),
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

/// An item as its subscriber sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Its id.
    pub id: ItemId,
    /// Its place among all items and changes; newer ones have higher numbers.
    pub number: u64,
    /// The place of its last change, `number` if there was none.
    pub changed: u64,
    /// What it says.
    pub content: Arc<InboxContent>,
    /// When it came.
    pub created_at: Timestamp,
    /// When it was read, if it is.
    pub read_at: Option<Timestamp>,
    /// When it was archived, if it is.
    pub archived_at: Option<Timestamp>,
    /// When it goes by itself.
    pub expires_at: Timestamp,
}

/// Which items of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Standing {
    /// Those that are not archived.
    #[default]
    Current,
    /// Those of them that were not read.
    Unread,
    /// Those of them that were.
    Read,
    /// Those that are archived.
    Archived,
    /// All of them.
    All,
}

impl Standing {
    /// All of them.
    pub const ALL: [Standing; 5] =
        [Standing::Current, Standing::Unread, Standing::Read, Standing::Archived, Standing::All];

    /// Its one word.
    pub fn word(self) -> &'static str {
        match self {
            Standing::Current => "current",
            Standing::Unread => "unread",
            Standing::Read => "read",
            Standing::Archived => "archived",
            Standing::All => "all",
        }
    }

    /// Whether an item that is read and archived so is one of them.
    pub fn holds(self, is_read: bool, is_archived: bool) -> bool {
        match self {
            Standing::Current => !is_archived,
            Standing::Unread => !is_archived && !is_read,
            Standing::Read => !is_archived && is_read,
            Standing::Archived => is_archived,
            Standing::All => true,
        }
    }
}

/// What a reader does with an item. Doing it again changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// It was read.
    Read,
    /// It was not.
    Unread,
    /// Put aside.
    Archived,
    /// Taken back.
    Unarchived,
    /// Gone for good.
    Deleted,
}

impl Mark {
    /// All of them.
    pub const ALL: [Mark; 5] = [Mark::Read, Mark::Unread, Mark::Archived, Mark::Unarchived, Mark::Deleted];

    /// Its one word, in routes and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Mark::Read => "read",
            Mark::Unread => "unread",
            Mark::Archived => "archive",
            Mark::Unarchived => "unarchive",
            Mark::Deleted => "delete",
        }
    }

    /// When an item was read and archived, after this; `None` if it is gone.
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
    fn only_the_web_and_the_application_can_be_led_to() {
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
