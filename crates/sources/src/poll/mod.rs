//! Polls a page with items: JSON, GeoJSON, JSON lines, CSV or XML.
//!
//! Requests are conditional (`ETag`, `Last-Modified`), so an unchanged page costs little. New items are detected by
//! their identity, changed ones by a version value.

mod options; // the options of an operator

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, io::Cursor, sync::Arc};

use bytes::Bytes;
pub use options::PollOptions;
use tocsin_connect::options::read;
use tocsin_model::{definition::secrets::HEADERS, mark::Mark};

use crate::{
    description::{KindDescription, Opened, SourceResource, check_of, not_allowed_of, schema_of},
    items::{Format, Item, Layout, PositionedItem, Text},
    mapping::{Mapping, Pointer},
    page::{PageItem, Policy, Poller},
    seen_items::{hash, typed_key},
    source::{SourceError, SourceSettings},
};

/// Its row in the table of kinds.
pub(crate) static KIND: KindDescription = KindDescription {
    name: "poll",
    summary: "a polled page with items: JSON, GeoJSON, JSON lines, CSV or XML",
    schema: schema_of::<PollOptions>,
    needs: &[SourceResource::CheckedAddresses, SourceResource::ReadableFiles],
    secrets: &[("headers", HEADERS)],
    location: None,
    check: check_of::<PollOptions>,
    not_allowed: not_allowed_of::<PollOptions>,
    open,
};

fn open(setting: SourceSettings, marks: Vec<Mark>) -> Opened {
    let options: PollOptions = read(&setting.options, "")?;
    let looked_at = format!("{:?} {} {:?} {:?}", options.format, options.items, options.key, options.version);
    let policy =
        Policy { updates: options.updates, retention: options.retention, versions_by: hash(&[looked_at.as_bytes()]) };
    let mapping = Mapping::new(&setting.output.fields(), &options.fields);
    let reading = PageReader {
        layout: Layout { required: mapping.names(), ..options.layout() },
        mapping: Arc::new(mapping),
        key: options.key.as_deref().and_then(Pointer::new),
        version: options.version.as_deref().and_then(Pointer::new),
    };
    let read = move |body: &[u8], charset: Option<&str>| reading.items(body, charset);
    let poller = Poller::open(&setting, &options.fetch, &marks, Arc::new(read), policy)?;
    Ok(Box::new(poller))
}

/// The parser of a page.
struct PageReader {
    layout: Layout,
    mapping: Arc<Mapping>,
    key: Option<Pointer>,
    version: Option<Pointer>,
}

impl PageReader {
    fn items(&self, body: &[u8], charset: Option<&str>) -> Result<Vec<PageItem>, SourceError> {
        let text = || -> Text { Box::new(Cursor::new(body.to_vec())) };
        // Servers report errors as HTML pages with a success status.
        let start = body.trim_ascii_start();
        let begins = |with: &[u8]| start.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
        if self.layout.format != Format::Xml && (begins(b"<!doctype html") || begins(b"<html")) {
            return Err(SourceError::of("the page is HTML, but `format` is another"));
        }
        self.layout.examine(text(), charset).map_err(|problem| SourceError::new("the page cannot be read", problem))?;
        let mut keys = BTreeSet::new();
        let mut found: Vec<PageItem> = Vec::new();
        for placed in self.layout.items(text(), charset) {
            let PositionedItem { item, .. } =
                placed.map_err(|problem| SourceError::new("the page cannot be read", problem))?;
            let item = self.item(item);
            // Of duplicates the first is used.
            if keys.insert(item.key.clone()) {
                found.push(item);
            }
        }
        Ok(found)
    }

    fn item(&self, item: Item) -> PageItem {
        let text: Bytes = item.shown().into();
        let whole = hash(&[&text]);
        let found = |pointer: &Option<Pointer>| pointer.as_ref().and_then(|pointer| pointer.value(&item));
        let (key, untyped_key) = match found(&self.key) {
            Some(found) => (typed_key(&found), Some(found.text().to_owned())),
            None => (whole.clone(), None),
        };
        let version = found(&self.version).map_or(whole, |version| hash(&[version.text().as_bytes()]));
        let mapping = self.mapping.clone();
        PageItem {
            key,
            untyped_key,
            second_key: None,
            shared_key: None,
            version,
            text,
            row: Box::new(move |_| mapping.row(&item)),
        }
    }
}
