//! The polling loop of kinds that fetch pages: fetches a page repeatedly and takes new and changed items.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tocsin_connect::Clock;
use tocsin_model::{
    event::EventPacker,
    field::{Fields, Row},
    mark::Mark,
    problem::Problem,
    time::Timestamp,
};
use tokio::task::spawn_blocking;

use crate::{
    due::PollSchedule,
    fetch::{Fetch, FetchOptions, Fetched, Validators},
    seen_items::{Change, SeenItems, hash},
    source::{BATCH_EVENTS_MAX, OpenSource, RejectedItem, SourceBatch, SourceError, SourceSettings, stored},
};

/// The part of the marks with the HTTP validators of the page.
const VALIDATORS: &str = "validators";
/// The part with the time of the last poll.
const POLLED: &str = "polled";

/// The part with the page of the seen items: an [`Origin`].
const ORIGIN: &str = "origin";

/// The page of the seen items, and the rule by which their versions are computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Origin {
    page: String,
    versions_by: String,
}

/// An item of a page.
pub(crate) struct PageItem {
    /// The identity of the item.
    pub key: String,
    /// The key without its type, by which older versions stored the item.
    pub untyped_key: Option<String>,
    /// Identity if several items of the page have the first key.
    pub second_key: Option<String>,
    /// The first key, if the second one has replaced it.
    pub shared_key: Option<String>,
    /// The version, which differs after a change.
    pub version: String,
    /// The source text, in case it is rejected.
    pub text: Bytes,
    /// Converts it to a row.
    pub row: RowMaker,
}

/// Converts an item to a row, for a new or updated item.
pub(crate) type RowMaker = Box<dyn FnOnce(Change) -> Result<Row, Vec<Problem>> + Send>;

/// Parses the items of a page, with the charset of its media type.
pub(crate) type Reader = Arc<dyn Fn(&[u8], Option<&str>) -> Result<Vec<PageItem>, SourceError> + Send + Sync>;

/// The handling of changes.
pub(crate) struct Policy {
    /// Whether a changed item is an event as well.
    pub updates: bool,
    /// The number of polls for which a removed item is remembered.
    pub retention: u32,
    /// The rule by which versions are computed. Versions of different rules are not comparable.
    pub versions_by: String,
}

/// A polled page.
pub(crate) struct Poller {
    fetch: Fetch,
    due: PollSchedule,
    clock: Arc<dyn Clock>,
    fields: Fields,
    read: Reader,
    policy: Policy,
    known: SeenItems,
    validators: Validators,
    polled: Option<Timestamp>,
    origin: Origin,
    /// The origin of the seen items, if it is stored.
    known_origin: Option<Origin>,
    /// Batches of the last poll that are still to be taken.
    ready: VecDeque<SourceBatch>,
}

impl Poller {
    pub fn open(
        setting: &SourceSettings,
        options: &FetchOptions,
        marks: &[Mark],
        read: Reader,
        policy: Policy,
    ) -> Result<Poller, Vec<Problem>> {
        // A query string may contain a rotating key, and the scheme of a page may change while the page stays.
        let page = options.url.split(['?', '#']).next().unwrap_or_default();
        let page = page.split_once("://").map_or(page, |(_, page)| page);
        let origin = Origin { page: hash(&[page.as_bytes()]), versions_by: policy.versions_by.clone() };
        Ok(Poller {
            fetch: Fetch::new(options, setting)?,
            known_origin: stored(marks, ORIGIN)?,
            origin,
            due: PollSchedule::new(options.every.0, options.schedule.as_deref()),
            clock: setting.context.clock.clone(),
            fields: setting.output.fields(),
            read,
            policy,
            known: SeenItems::read(marks)?,
            validators: stored(marks, VALIDATORS)?.unwrap_or_default(),
            polled: stored(marks, POLLED)?,
            ready: VecDeque::new(),
        })
    }

    /// Polls once, and builds batches of new and changed items.
    async fn poll(&mut self) -> Result<(), SourceError> {
        let now = self.clock.now();
        let fetched = self.fetch.fetch(&self.validators).await?;
        self.polled = Some(now);
        let received_at = self.clock.now();
        let polled = Mark::set(POLLED, serde_json::to_vec(&now).expect("a time is JSON"));
        let Fetched::Page { body, charset, validators } = fetched else {
            self.ready.push_back(SourceBatch { marks: vec![polled], ..SourceBatch::default() });
            return Ok(());
        };
        let read = self.read.clone();
        let items = spawn_blocking(move || read(&body, charset.as_deref()))
            .await
            .map_err(|error| SourceError::new("reading broke", error))??;
        let items = self.identified(items);
        let keys = items.iter().flat_map(|item| [Some(&item.key), item.shared_key.as_ref()]);
        let keys: Vec<String> = keys.flatten().cloned().collect();
        let adopted = self.adopt(&items);
        if !adopted.is_empty() {
            self.ready.push_back(SourceBatch { marks: adopted, ..SourceBatch::default() });
        }
        let (mut is_read, is_empty) = (false, items.is_empty());
        for items in chunks(items) {
            let batch = self.batch(items, received_at, &mut is_read);
            if !batch.marks.is_empty() {
                self.ready.push_back(batch);
            }
        }
        // Only after all items: after a crash before that, the whole page is fetched again, and the seen items are
        // known.
        let mut last = self.ready.pop_back().unwrap_or_default();
        last.marks.push(polled);
        // A page without readable items is an error, not a page from which all items are gone.
        if is_read || is_empty {
            last.marks.extend(self.known.end_poll(keys.iter().map(String::as_str), self.policy.retention));
            last.marks.push(Mark::set(VALIDATORS, serde_json::to_vec(&validators).expect("it is JSON")));
            self.validators = validators;
        }
        if self.known_origin.as_ref() != Some(&self.origin) {
            last.marks.push(Mark::set(ORIGIN, serde_json::to_vec(&self.origin).expect("it is JSON")));
            self.known_origin = Some(self.origin.clone());
        }
        self.ready.push_back(last);
        Ok(())
    }

    /// Assigns the seen items of older versions, whose keys have no type, to the items of a page. An item that is as it
    /// was stored takes precedence over one that has changed.
    fn adopt(&mut self, items: &[PageItem]) -> Vec<Mark> {
        if !self.known.has_untyped() {
            return Vec::new();
        }
        let mut marks = Vec::new();
        for is_unchanged in [true, false] {
            for item in items {
                let untyped = item.untyped_key.as_deref().unwrap_or(&item.key);
                if !is_unchanged || self.known.is_untyped_version(untyped, &item.version) {
                    marks.extend(self.known.adopt(&item.key, untyped));
                }
            }
        }
        marks
    }

    /// Gives each item a unique key. Of duplicates the first is kept.
    fn identified(&self, items: Vec<PageItem>) -> Vec<PageItem> {
        let mut counts: HashMap<String, usize> = HashMap::new();
        for item in &items {
            *counts.entry(item.key.clone()).or_default() += 1;
        }
        let mut keys = HashSet::new();
        let mut identified = Vec::with_capacity(items.len());
        for mut item in items {
            let is_shared = counts.get(&item.key).is_some_and(|count| *count > 1) || self.known.is_shared(&item.key);
            if let Some(second) = item.second_key.clone().filter(|_| is_shared)
                && !self.known.is_own(&item.key, &second)
            {
                item.shared_key = Some(std::mem::replace(&mut item.key, second));
            }
            if keys.insert(item.key.clone()) {
                identified.push(item);
            }
        }
        identified
    }

    /// Decides on an item by its page, its version and the rule of both.
    fn outcome_of(&self, item: &PageItem) -> ItemOutcome {
        let Some(change) = self.known.change_of(&item.key, &item.version) else { return ItemOutcome::Seen };
        match (&self.known_origin, change) {
            (Some(known), Change::Updated) if known.page != self.origin.page => ItemOutcome::Event(Change::New),
            (Some(known), Change::Updated) if known.versions_by != self.origin.versions_by => ItemOutcome::Remembered,
            (_, Change::Updated) if !self.policy.updates => ItemOutcome::Remembered,
            (_, change) => ItemOutcome::Event(change),
        }
    }

    fn batch(&mut self, items: Vec<PageItem>, received_at: Timestamp, is_read: &mut bool) -> SourceBatch {
        let mut packer = EventPacker::new(self.fields.clone());
        let mut batch =
            SourceBatch { since: Some(self.clock.now()), received_at: Some(received_at), ..SourceBatch::default() };
        for item in items {
            let outcome = self.outcome_of(&item);
            let PageItem { key, untyped_key: _, second_key, shared_key, version, text, row } = item;
            if let ItemOutcome::Seen = outcome {
                *is_read |= self.known.was_accepted(&key);
                continue;
            }
            if let Some(shared) = shared_key.filter(|shared| !self.known.is_shared(shared)) {
                batch.marks.push(self.known.share(&shared));
            }
            let made = match outcome {
                ItemOutcome::Event(change) => row(change).map(Some),
                _ => Ok(None),
            };
            batch.marks.push(match made.is_ok() {
                true => self.known.remember(&key, &version, second_key.as_deref()),
                false => self.known.remember_refused(&key, &version, second_key.as_deref()),
            });
            match made {
                Ok(row) => {
                    row.iter().for_each(|row| packer.push(row));
                    *is_read = true;
                }
                Err(problems) => batch.refused.push(RejectedItem::new(&problems, text)),
            }
        }
        batch.events = packer.finish();
        batch
    }
}

/// The decision on an item.
enum ItemOutcome {
    /// Known.
    Seen,
    /// Known, but its version is stored again.
    Remembered,
    /// New or changed; becomes an event.
    Event(Change),
}

fn chunks(items: Vec<PageItem>) -> Vec<Vec<PageItem>> {
    let mut chunks: Vec<Vec<PageItem>> = Vec::new();
    for item in items {
        match chunks.last_mut() {
            Some(chunk) if chunk.len() < BATCH_EVENTS_MAX => chunk.push(item),
            _ => chunks.push(vec![item]),
        }
    }
    chunks
}

#[async_trait]
impl OpenSource for Poller {
    async fn next(&mut self) -> Result<SourceBatch, SourceError> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(batch);
            }
            self.due.wait(self.polled, &self.clock).await;
            self.poll().await?;
        }
    }

    async fn accepted(&mut self) -> Result<(), SourceError> {
        Ok(())
    }
}
