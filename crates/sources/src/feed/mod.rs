//! Polls an RSS, Atom or JSON Feed: new items, and changed ones.
//!
//! An item is identified by its `guid` or `id`. A removed item is remembered for some polls, so that it is not new when
//! it returns. An identity shared by several items of a feed is not unique: these items are identified by link, title
//! and date as well.

mod entry; // RSS, Atom and JSON Feed in a common form
mod options; // the options of an operator
mod reader; // reads a feed once

#[cfg(test)]
mod tests;

use std::sync::Arc;

use entry::{Entry, FeedContext};
use jiff::tz::TimeZone;
pub use options::FeedOptions;
pub use reader::FeedReader;
use serde_json::Value;
use tocsin_connect::options::read;
use tocsin_model::{
    definition::secrets::HEADERS,
    mark::Mark,
    problem::{Code, Problem},
};
use url::Url;

use crate::{
    description::{KindDescription, Opened, SourceResource, check_of, not_allowed_of, schema_of},
    items::Item,
    mapping::Mapping,
    page::{PageItem, Policy, Poller},
    seen_items::hash,
    source::{SourceError, SourceSettings},
};

/// The entries of a feed as debug texts, for fuzz targets.
pub(crate) fn debug_entries(body: &[u8]) -> Result<Vec<String>, String> {
    let context = FeedContext { url: Url::parse("https://feeds.example/news/feed.xml").ok(), zone: None };
    let entries = entry::entries(body, None, &context).map_err(|problem| problem.to_string())?;
    Ok(entries.iter().map(|entry| format!("{entry:?}")).collect())
}

/// Its row in the table of kinds.
pub(crate) static KIND: KindDescription = KindDescription {
    name: "feed",
    summary: "new and changed items of an RSS or Atom feed",
    schema: schema_of::<FeedOptions>,
    needs: &[SourceResource::CheckedAddresses, SourceResource::ReadableFiles],
    secrets: &[("headers", HEADERS)],
    location: None,
    check: check_of::<FeedOptions>,
    not_allowed: not_allowed_of::<FeedOptions>,
    open,
};

fn open(setting: SourceSettings, marks: Vec<Mark>) -> Opened {
    let options: FeedOptions = read(&setting.options, "")?;
    let policy = Policy {
        updates: options.updates,
        retention: options.retention,
        // The members that determine a version are part of the version rule.
        versions_by: hash(&options.version.iter().map(String::as_bytes).collect::<Vec<_>>()),
    };
    let fields = setting.output.fields();
    let mapping = Arc::new(Mapping::new(&fields, &Mapping::or_names(&fields, &options.fields)));
    let version = options.version.clone();
    let context = FeedContext {
        url: Url::parse(&options.fetch.url).ok(),
        zone: options.time_zone.as_deref().and_then(|zone| TimeZone::get(zone).ok()),
    };
    let source = (setting.application.clone(), setting.name.clone());
    let read = move |body: &[u8], charset: Option<&str>| -> Result<Vec<PageItem>, SourceError> {
        let entries = entry::entries(body, charset, &context);
        let entries = entries.map_err(|problem| SourceError::new("the feed cannot be read", problem))?;
        let uncertain = entries.iter().flatten().flat_map(|entry| &entry.uncertain);
        let count = uncertain.clone().count();
        if let Some(first) = uncertain.into_iter().next() {
            let (application, name) = &source;
            tracing::warn!(%application, source = %name, count, first, "dates without a certain time zone are left out");
            metrics::counter!("tocsin_source_filtered_total", "reason" => "date").increment(count as u64);
        }
        Ok(entries.into_iter().map(|entry| item(entry, &version, &mapping)).collect())
    };
    let poller = Poller::open(&setting, &options.fetch, &marks, Arc::new(read), policy)?;
    Ok(Box::new(poller))
}

fn item(entry: Result<Entry, Problem>, version: &[String], mapping: &Arc<Mapping>) -> PageItem {
    let entry = match entry {
        Ok(entry) => entry,
        Err(problem) => return wrong(problem),
    };
    let Entry { mut members, written, uncertain } = entry;
    let Some(key) = members.get("id").and_then(Value::as_str).map(str::to_owned) else {
        let text = serde_json::to_vec(&members).expect("it is JSON");
        let problem =
            Problem::new(Code::Required, "id", "is missing, and so are link and title: the item has no identity");
        return PageItem { text: text.into(), ..wrong(problem) };
    };
    let member =
        |name: &str| members.get(name).or_else(|| written.get(name)).map(ToString::to_string).unwrap_or_default();
    let looked_at: Vec<String> = version.iter().map(|name| member(name)).collect();
    let version = hash(&looked_at.iter().map(String::as_bytes).collect::<Vec<_>>());
    let more = ["id", "link", "title", "published"].map(member);
    let second_key = format!("#{}", hash(&more.iter().map(String::as_bytes).collect::<Vec<_>>()));
    let text = serde_json::to_vec(&members).expect("it is JSON").into();
    let mapping = mapping.clone();
    let row = move |change: crate::seen_items::Change| {
        members.insert("change".to_owned(), change.word().into());
        let row = mapping.row(&Item::Json(serde_json::to_vec(&members).expect("it is JSON")));
        // For a missing date that a field requires, the reason is added.
        row.map_err(|mut problems| {
            problems.extend(
                uncertain
                    .into_iter()
                    .map(|reason| Problem::new(Code::InvalidFormat, "", reason).param("format", "timestamp")),
            );
            problems
        })
    };
    PageItem {
        key,
        untyped_key: None,
        second_key: Some(second_key),
        shared_key: None,
        version,
        text,
        row: Box::new(row),
    }
}

/// An invalid item. It is identified by its error, so that it is rejected once.
fn wrong(problem: Problem) -> PageItem {
    let reason = problem.to_string();
    let key = format!("#{}", hash(&[b"wrong", reason.as_bytes()]));
    let row = move |_: crate::seen_items::Change| Err(vec![problem]);
    PageItem {
        key,
        untyped_key: None,
        second_key: None,
        shared_key: None,
        version: String::new(),
        text: reason.into(),
        row: Box::new(row),
    }
}
