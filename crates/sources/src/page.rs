//! A page is asked for again and again, and what is new on it is taken: the loop of all kinds that fetch pages.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tocsin_delivery::Clock;
use tocsin_model::{
    event::EventPacker,
    field::{Fields, Row},
    mark::Mark,
    problem::Problem,
    time::Timestamp,
};
use tokio::task::spawn_blocking;

use crate::{
    due::Due,
    fetch::{Fetch, FetchOptions, Fetched, Validators},
    known::{Change, Known, hash},
    source::{OpenSource, PORTION_EVENTS_MAX, Portion, Refusal, Setting, Trouble, stored},
};

/// The part with what the far side said of the page.
const VALIDATORS: &str = "validators";
/// The part with the time of the last poll.
const POLLED: &str = "polled";

/// The part with the page that the known items are of: an [`Origin`].
const ORIGIN: &str = "origin";

/// The page of the known items, and the rule by which their versions are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Origin {
    page: String,
    versions_by: String,
}

/// An item of a page.
pub(crate) struct PageItem {
    /// What it is known by.
    pub key: String,
    /// The key by which it is known if several items of the page have the first one.
    pub second_key: Option<String>,
    /// The first key, if the second one has taken its place.
    pub shared_key: Option<String>,
    /// What differs when it has changed.
    pub version: String,
    /// The item, in case it is no event.
    pub text: Bytes,
    /// Makes it a row.
    pub row: RowMaker,
}

/// Makes a row of an item, told whether it is new or updated.
pub(crate) type RowMaker = Box<dyn FnOnce(Change) -> Result<Row, Vec<Problem>> + Send>;

/// Reads the items of a page, with the charset that its media type names.
pub(crate) type Reader = Arc<dyn Fn(&[u8], Option<&str>) -> Result<Vec<PageItem>, Trouble> + Send + Sync>;

/// How changes are taken.
pub(crate) struct Policy {
    /// Whether an item that has changed is an event as well.
    pub updates: bool,
    /// For how many polls an item that is gone is remembered.
    pub retention: u32,
    /// The rule by which versions are made. Versions of another rule say nothing of a change.
    pub versions_by: String,
}

/// A page that is polled.
pub(crate) struct Poller {
    fetch: Fetch,
    due: Due,
    clock: Arc<dyn Clock>,
    fields: Fields,
    read: Reader,
    policy: Policy,
    known: Known,
    validators: Validators,
    polled: Option<Timestamp>,
    origin: Origin,
    /// The origin of the known items, if it is stored.
    known_origin: Option<Origin>,
    /// What the last poll found and is still to be taken.
    ready: VecDeque<Portion>,
}

impl Poller {
    pub fn open(
        setting: &Setting,
        options: &FetchOptions,
        marks: &[Mark],
        read: Reader,
        policy: Policy,
    ) -> Result<Poller, Vec<Problem>> {
        // A query may hold a key that changes, and the scheme of a page does while the page stays.
        let page = options.url.split(['?', '#']).next().unwrap_or_default();
        let page = page.split_once("://").map_or(page, |(_, page)| page);
        let origin = Origin { page: hash(&[page.as_bytes()]), versions_by: policy.versions_by.clone() };
        Ok(Poller {
            fetch: Fetch::new(options, setting)?,
            known_origin: stored(marks, ORIGIN)?,
            origin,
            due: Due::new(options.every.0, options.schedule.as_deref()),
            clock: setting.context.clock.clone(),
            fields: setting.gives.fields(),
            read,
            policy,
            known: Known::read(marks)?,
            validators: stored(marks, VALIDATORS)?.unwrap_or_default(),
            polled: stored(marks, POLLED)?,
            ready: VecDeque::new(),
        })
    }

    /// Asks once, and makes portions of what is new.
    async fn poll(&mut self) -> Result<(), Trouble> {
        let now = self.clock.now();
        let fetched = self.fetch.fetch(&self.validators).await?;
        self.polled = Some(now);
        let received_at = self.clock.now();
        let polled = Mark::set(POLLED, serde_json::to_vec(&now).expect("a time is JSON"));
        let Fetched::Page { body, charset, validators } = fetched else {
            self.ready.push_back(Portion { marks: vec![polled], ..Portion::default() });
            return Ok(());
        };
        let read = self.read.clone();
        let items = spawn_blocking(move || read(&body, charset.as_deref()))
            .await
            .map_err(|error| Trouble::new("reading broke", error))??;
        let items = self.identified(items);
        let keys = items.iter().flat_map(|item| [Some(&item.key), item.shared_key.as_ref()]);
        let keys: Vec<String> = keys.flatten().cloned().collect();
        let (mut is_read, is_empty) = (false, items.is_empty());
        for items in chunks(items) {
            let portion = self.portion(items, received_at, &mut is_read);
            if !portion.marks.is_empty() {
                self.ready.push_back(portion);
            }
        }
        // Only behind all items: a crash before asks for the whole page again, and knows what was taken.
        let mut last = self.ready.pop_back().unwrap_or_default();
        last.marks.push(polled);
        // A page of which nothing can be read is a failure, and not a page from which all items are gone.
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

    /// Gives each item a key of its own. Of two that are the same the first stays.
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

    /// Judges an item by its page, its version and the rule of both.
    fn judge(&self, item: &PageItem) -> Judged {
        let Some(change) = self.known.judge(&item.key, &item.version) else { return Judged::Known };
        match (&self.known_origin, change) {
            (Some(known), Change::Updated) if known.page != self.origin.page => Judged::Event(Change::New),
            (Some(known), Change::Updated) if known.versions_by != self.origin.versions_by => Judged::Remembered,
            (_, Change::Updated) if !self.policy.updates => Judged::Remembered,
            (_, change) => Judged::Event(change),
        }
    }

    fn portion(&mut self, items: Vec<PageItem>, received_at: Timestamp, is_read: &mut bool) -> Portion {
        let mut packer = EventPacker::new(self.fields.clone());
        let mut portion =
            Portion { since: Some(self.clock.now()), received_at: Some(received_at), ..Portion::default() };
        for item in items {
            let judged = self.judge(&item);
            let PageItem { key, second_key, shared_key, version, text, row } = item;
            if let Judged::Known = judged {
                *is_read |= self.known.is_good(&key);
                continue;
            }
            if let Some(shared) = shared_key.filter(|shared| !self.known.is_shared(shared)) {
                portion.marks.push(self.known.share(&shared));
            }
            let made = match judged {
                Judged::Event(change) => row(change).map(Some),
                _ => Ok(None),
            };
            portion.marks.push(match made.is_ok() {
                true => self.known.remember(&key, &version, second_key.as_deref()),
                false => self.known.remember_refused(&key, &version, second_key.as_deref()),
            });
            match made {
                Ok(row) => {
                    row.iter().for_each(|row| packer.push(row));
                    *is_read = true;
                }
                Err(problems) => portion.refused.push(Refusal::new(&problems, text)),
            }
        }
        portion.events = packer.finish();
        portion
    }
}

/// The outcome for an item.
enum Judged {
    /// Nothing: it is known.
    Known,
    /// It is known, and its version is remembered anew.
    Remembered,
    /// It becomes an event.
    Event(Change),
}

fn chunks(items: Vec<PageItem>) -> Vec<Vec<PageItem>> {
    let mut chunks: Vec<Vec<PageItem>> = Vec::new();
    for item in items {
        match chunks.last_mut() {
            Some(chunk) if chunk.len() < PORTION_EVENTS_MAX => chunk.push(item),
            _ => chunks.push(vec![item]),
        }
    }
    chunks
}

#[async_trait]
impl OpenSource for Poller {
    async fn next(&mut self) -> Result<Portion, Trouble> {
        loop {
            if let Some(portion) = self.ready.pop_front() {
                return Ok(portion);
            }
            self.due.wait(self.polled, &self.clock).await;
            self.poll().await?;
        }
    }

    async fn accepted(&mut self) -> Result<(), Trouble> {
        Ok(())
    }
}
