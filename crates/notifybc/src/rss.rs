//! Notifications from feeds: the configuration of a service, new items, and the history of items.
//!
//! The history is a value: the items of the last poll, and those that were absent for fewer polls than the retention.

use serde_json::{Value, json};

use crate::record::{Collection, Document, date_text, parse_date, text, truthy, with_defaults};

/// Most items of a history.
pub const ITEMS_MAX: usize = 10_000;
/// The member of an item in the history with the number of polls in which it was absent.
const ABSENT: &str = "_absentPolls";

/// The feed of a service, from its dynamic configuration `notification`.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedConfiguration {
    /// The service.
    pub service: String,
    /// Address of the feed.
    pub url: String,
    /// Times of the polls.
    pub time_spec: String,
    /// The field by which items are recognised.
    pub key_field: String,
    /// Polls for which an absent item stays in the history.
    pub retention: u64,
    /// Whether a changed item counts as new.
    pub includes_updated: bool,
    /// Fields whose change counts.
    pub fields: Vec<String>,
    /// Base URL of links in the notifications.
    pub http_host: Option<String>,
    /// Message templates by channel.
    pub templates: Document,
}

impl FeedConfiguration {
    /// The feed of a configuration record. `None`: the record configures none.
    pub fn parse(record: &Document) -> Option<FeedConfiguration> {
        if text(record, "name") != Some("notification") {
            return None;
        }
        let value = record.get("value")?.as_object()?;
        let rss = value.get("rss")?.as_object()?;
        let fields = match rss.get("fieldsToCheckForUpdate") {
            Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => vec!["pubDate".to_owned()],
        };
        let retention = match rss.get("outdatedItemRetentionGenerations") {
            Some(Value::Number(number)) => number.as_f64().unwrap_or(1.0).max(0.0) as u64,
            Some(Value::String(text)) => text.parse().unwrap_or(1),
            _ => 1,
        };
        Some(FeedConfiguration {
            service: text(record, "serviceName").unwrap_or_default().to_owned(),
            url: text(rss, "url")?.to_owned(),
            time_spec: text(rss, "timeSpec")?.to_owned(),
            key_field: text(rss, "itemKeyField").unwrap_or("guid").to_owned(),
            retention,
            includes_updated: rss.get("includeUpdatedItems").is_some_and(truthy),
            fields,
            http_host: text(value, "httpHost").map(str::to_owned),
            templates: value.get("messageTemplates").and_then(Value::as_object).cloned().unwrap_or_default(),
        })
    }

    /// The new items of a poll and the next history. `history` is `None` or empty at the first poll.
    pub fn poll(&self, history: &[Document], items: Vec<Document>) -> Poll {
        let key = |item: &Document| item.get(&self.key_field).cloned().unwrap_or(Value::Null).to_string();
        let known: std::collections::HashMap<String, &Document> =
            history.iter().map(|item| (key(item), item)).collect();
        let new = items.iter().filter(|item| match known.get(&key(item)) {
            None => true,
            Some(former) => self.includes_updated && self.is_updated(former, item),
        });
        let new: Vec<Document> = new.cloned().collect();
        let present: std::collections::HashSet<String> = items.iter().map(key).collect();
        let absent = history.iter().filter(|item| !present.contains(&key(item))).filter_map(|item| {
            let polls = item.get(ABSENT).and_then(Value::as_u64).unwrap_or(0) + 1;
            let mut item = item.clone();
            item.insert(ABSENT.to_owned(), json!(polls));
            (polls < self.retention).then_some(item)
        });
        let absent: Vec<Document> = absent.collect();
        let mut history = items;
        history.extend(absent);
        history.truncate(ITEMS_MAX);
        Poll { new, history }
    }

    /// Whether one of the fields, present in both, differs.
    fn is_updated(&self, former: &Document, item: &Document) -> bool {
        self.fields.iter().any(|field| {
            let both = former.get(field).zip(item.get(field));
            both.is_some_and(|(former, item)| truthy(former) && truthy(item) && former != item)
        })
    }

    /// The notifications of an item: an asynchronous broadcast for each template.
    pub fn notifications(&self, item: &Document) -> Vec<Document> {
        let notification = |(channel, message): (&String, &Value)| {
            let mut notification = Document::from_iter([
                ("serviceName".to_owned(), json!(self.service)),
                ("channel".to_owned(), json!(channel)),
                ("isBroadcast".to_owned(), json!(true)),
                ("message".to_owned(), message.clone()),
                ("data".to_owned(), Value::Object(item.clone())),
                ("asyncBroadcastPushNotification".to_owned(), json!(true)),
            ]);
            if let Some(http_host) = &self.http_host {
                notification.insert("httpHost".to_owned(), json!(http_host));
            }
            with_defaults(Collection::Notification, notification)
        };
        self.templates.iter().filter(|(_, message)| message.is_object()).map(notification).collect()
    }
}

/// An item in the names of NotifyBC, from an item of a feed in those of sources: `id` is `guid`, `published` is
/// `pubDate`, `updated` is `date`. `description` is the whole content, `summary` the excerpt; each stands in for the
/// other, and so do the dates.
pub fn item(entry: &Document) -> Document {
    let get = |name: &str| entry.get(name).filter(|value| truthy(value)).cloned();
    let date = |name: &str| {
        let time = text(entry, name).and_then(parse_date)?;
        Some(Value::from(date_text(time)))
    };
    let members = [
        ("title", get("title")),
        ("description", get("content").or_else(|| get("summary"))),
        ("summary", get("summary").or_else(|| get("content"))),
        ("link", get("link")),
        ("guid", get("id").or_else(|| get("link"))),
        ("author", get("author")),
        ("pubDate", date("published").or_else(|| date("updated"))),
        ("date", date("updated").or_else(|| date("published"))),
        ("categories", get("categories")),
    ];
    members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// The result of a poll.
#[derive(Debug, Clone, PartialEq)]
pub struct Poll {
    /// Items to send, in the order of the feed.
    pub new: Vec<Document>,
    /// The history for the next poll.
    pub history: Vec<Document>,
}

/// The base URL that a configuration record gets on POST and PUT: that of the request, if the record has a feed and no
/// base URL, and none is configured.
pub fn with_http_host(mut body: Document, configured: Option<&str>, request: &str) -> Document {
    if text(&body, "name") == Some("notification")
        && configured.is_none()
        && let Some(Value::Object(value)) = body.get_mut("value")
        && value.get("rss").is_some_and(truthy)
        && !value.get("httpHost").is_some_and(truthy)
    {
        value.insert("httpHost".to_owned(), json!(request));
    }
    body
}

#[cfg(test)]
mod tests;
