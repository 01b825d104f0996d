//! Inbox items, actions on them, and broadcasts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tocsin_model::{
    id::{EventId, Name},
    inbox::{Action, Item, ItemId, Mark, Wording},
    time::Timestamp,
};
use tocsin_service::inbox_broadcasts::Draft;
use tocsin_store::inbox::Broadcast;
use utoipa::ToSchema;

/// Content of an item.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = InboxWording)]
pub(crate) struct WordingBody {
    /// One line.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    /// Plain text.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// HTML.
    #[serde(skip_serializing_if = "Option::is_none")]
    html: Option<String>,
    /// Fields for programs.
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    data: serde_json::Map<String, serde_json::Value>,
    /// Link target: a URL, or a path of the application.
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<String>,
    /// Actions; up to 4.
    actions: Vec<ActionBody>,
}

/// Something to do about an item.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = InboxAction)]
pub(crate) struct ActionBody {
    /// Button text; up to 100 characters.
    label: String,
    /// Link target.
    link: String,
}

impl From<&Wording> for WordingBody {
    fn from(said: &Wording) -> Self {
        let action = |Action { label, link }: &Action| ActionBody { label: label.clone(), link: link.clone() };
        WordingBody {
            subject: said.subject.clone(),
            text: said.text.clone(),
            html: said.html.clone(),
            data: said.data.clone(),
            link: said.link.clone(),
            actions: said.actions.iter().map(action).collect(),
        }
    }
}

impl From<WordingBody> for Wording {
    fn from(body: WordingBody) -> Self {
        let WordingBody { subject, text, html, data, link, actions } = body;
        let actions = actions.into_iter().map(|ActionBody { label, link }| Action { label, link }).collect();
        Wording { subject, text, html, data, link, actions }
    }
}

/// An item of a feed.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = InboxItem)]
pub(crate) struct ItemBody {
    /// Its id: that of its notification (`n-7-15`), or of a broadcast (`b-4`).
    #[schema(value_type = String)]
    id: ItemId,
    /// The application.
    #[schema(value_type = String)]
    application: Name,
    /// The notification class.
    #[schema(value_type = String)]
    class: Name,
    /// The channel through which it came; broadcasts come through none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    channel: Option<Name>,
    /// The event of the item.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    event: Option<EventId>,
    #[serde(flatten)]
    said: WordingBody,
    /// When it came.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// When it was read; null if it was not.
    #[schema(value_type = Option<String>, format = DateTime)]
    read_at: Option<Timestamp>,
    /// When it was archived; null if it was not.
    #[schema(value_type = Option<String>, format = DateTime)]
    archived_at: Option<Timestamp>,
    /// Time of automatic deletion; default 30 days from now where it can be set.
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
}

impl ItemBody {
    /// The item in a reader's language.
    pub(crate) fn new(item: &Item, locale: Option<&str>) -> ItemBody {
        let content = &item.content;
        ItemBody {
            id: item.id,
            application: content.application.clone(),
            class: content.class.clone(),
            channel: content.channel.clone(),
            event: content.event,
            said: content.wording(locale).into(),
            created_at: item.created_at,
            read_at: item.read_at,
            archived_at: item.archived_at,
            expires_at: item.expires_at,
        }
    }
}

/// Number of unread items.
#[derive(Serialize, ToSchema)]
#[schema(as = InboxUnread)]
pub(crate) struct UnreadBody {
    /// Neither read nor archived.
    pub(crate) unread: u64,
}

/// An action on items.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = InboxMark)]
pub(crate) struct MarkBody {
    /// `read`, `unread`, `archive`, `unarchive` or `delete`.
    pub(crate) mark: String,
    /// Item ids; up to 1,000. Unknown ids are ignored.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    pub(crate) ids: Option<Vec<ItemId>>,
    /// In place of `ids`: all that the following choose.
    #[serde(default)]
    pub(crate) all: bool,
    /// Items in this state: `current` (not archived; the default), `unread`, `read`, `archived` or `all`.
    #[serde(default)]
    pub(crate) state: Option<String>,
    /// Items of this application.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub(crate) application: Option<Name>,
    /// Items of this notification class.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub(crate) class: Option<Name>,
    /// Through this channel.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub(crate) channel: Option<Name>,
    /// The newest item that the reader has seen; later items are unchanged.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub(crate) newest: Option<ItemId>,
}

/// Result of the action.
#[derive(Serialize, ToSchema)]
#[schema(as = InboxMarked)]
pub(crate) struct MarkedBody {
    /// Number of items that exist, for `ids`; number of changed items, for `all`.
    pub(crate) marked: u64,
    /// Number of unread items afterwards.
    pub(crate) unread: u64,
}

/// Reads the word of a mark.
pub(crate) fn mark_of(word: &str) -> Option<Mark> {
    Mark::ALL.into_iter().find(|mark| mark.word() == word)
}

/// Permissions of an inbox token.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = NewInboxToken)]
pub(crate) struct NewTokenBody {
    /// Lifetime in seconds; default 3,600, at most 30 days.
    pub(crate) expires_in: Option<u64>,
    /// Whether its holder can only look, and mark nothing.
    pub(crate) read_only: bool,
}

/// An inbox token.
#[derive(Serialize, ToSchema)]
#[schema(as = InboxToken)]
pub(crate) struct TokenBody {
    /// Shown as `Authorization: Bearer`, or as `?token=`.
    pub(crate) token: String,
    /// When it is over.
    #[schema(value_type = String, format = DateTime)]
    pub(crate) expires_at: Timestamp,
}

/// Request to store a broadcast.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = NewInboxBroadcast)]
pub(crate) struct NewInboxBroadcastBody {
    /// Class, for filters; default `broadcast`.
    class: Option<String>,
    /// The segment whose members receive it; default: all subscribers.
    audience: Option<String>,
    /// One line.
    subject: Option<String>,
    /// Plain text.
    text: Option<String>,
    /// HTML.
    html: Option<String>,
    /// Fields for programs.
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    data: serde_json::Map<String, serde_json::Value>,
    /// Link target: a URL, or a path of the application.
    link: Option<String>,
    /// Actions; up to 4.
    actions: Vec<ActionBody>,
    /// Translations by language tag: `de`, `pt-BR`.
    translations: BTreeMap<String, WordingBody>,
    /// Time of automatic deletion; default 30 days from now where it can be set.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
}

impl From<NewInboxBroadcastBody> for Draft {
    fn from(body: NewInboxBroadcastBody) -> Self {
        let NewInboxBroadcastBody {
            class,
            audience,
            subject,
            text,
            html,
            data,
            link,
            actions,
            translations,
            expires_at,
        } = body;
        let said = WordingBody { subject, text, html, data, link, actions };
        let translations = translations.into_iter().map(|(locale, said)| (locale, said.into())).collect();
        Draft { class, audience, wording: said.into(), translations, expires_at }
    }
}

/// A broadcast.
#[derive(Serialize, ToSchema)]
#[schema(as = InboxBroadcast)]
pub(crate) struct InboxBroadcastBody {
    /// Id of the item in feeds.
    id: String,
    /// Its name.
    name: String,
    /// Class.
    class: String,
    /// The segment whose members receive it; absent: all subscribers.
    #[serde(skip_serializing_if = "Option::is_none")]
    audience: Option<String>,
    #[serde(flatten)]
    said: WordingBody,
    /// Translations by language tag.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    translations: BTreeMap<String, WordingBody>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Time of automatic deletion; default 30 days from now where it can be set.
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
    /// Number of readers.
    readers: u64,
}

impl From<Broadcast> for InboxBroadcastBody {
    fn from(broadcast: Broadcast) -> Self {
        let Broadcast { id, name, audience, content, created_at, expires_at, readers } = broadcast;
        let translated = content.translations.iter();
        InboxBroadcastBody {
            id: id.to_string(),
            name: name.to_string(),
            class: content.class.to_string(),
            audience: audience.map(|name| name.to_string()),
            said: (&content.wording).into(),
            translations: translated.map(|(locale, said)| (locale.clone(), said.into())).collect(),
            created_at,
            expires_at,
            readers,
        }
    }
}
