//! A feed in RSS or Atom: its new items, and those that have changed.
//!
//! An item is known by its `guid` or `id`. One that has gone from the feed is still known for some polls, so that it is not
//! new when it comes back.

mod entry; // RSS and Atom as one
mod options; // what an operator may set

use std::sync::Arc;

pub use options::FeedOptions;
use serde_json::{Map, Value};
use tocsin_delivery::options::read;
use tocsin_model::{mark::Mark, problem::Problem};

use crate::{
    items::Item,
    known::hash,
    mapping::Mapping,
    page::{PageItem, Policy, Poller},
    source::{OpenSource, Setting, Trouble},
};

pub(crate) fn open(setting: Setting, marks: Vec<Mark>) -> Result<Box<dyn OpenSource>, Vec<Problem>> {
    let options: FeedOptions = read(&setting.options, "")?;
    let policy = Policy { updates: options.updates, retention: options.retention };
    let fields = setting.gives.fields();
    let mapping = Arc::new(Mapping::new(&fields, &Mapping::or_names(&fields, &options.fields)));
    let version = options.version.clone();
    let read = move |body: &[u8]| -> Result<Vec<PageItem>, Trouble> {
        let entries = entry::entries(body).map_err(|problem| Trouble::new("the feed cannot be read", problem))?;
        Ok(entries.into_iter().filter_map(|entry| item(entry, &version, &mapping)).collect())
    };
    let poller = Poller::open(&setting, &options.fetch, &marks, Arc::new(read), policy)?;
    Ok(Box::new(poller))
}

/// An item with nothing to know it by is passed over.
fn item(entry: Map<String, Value>, version: &[String], mapping: &Arc<Mapping>) -> Option<PageItem> {
    let key = entry.get("id")?.as_str()?.to_owned();
    let looked_at: Vec<String> =
        version.iter().map(|member| entry.get(member).map(ToString::to_string).unwrap_or_default()).collect();
    let version = hash(&looked_at.iter().map(String::as_bytes).collect::<Vec<_>>());
    let text = serde_json::to_vec(&entry).expect("it is JSON").into();
    let mapping = mapping.clone();
    let row = move |change: crate::known::Change| {
        let mut entry = entry;
        entry.insert("change".to_owned(), change.word().into());
        mapping.row(&Item::Json(serde_json::to_vec(&entry).expect("it is JSON")))
    };
    Some(PageItem { key, version, text, row: Box::new(row) })
}
