//! A page is asked for again and again, and what is new on it is taken: the loop of all kinds that fetch pages.

use std::{collections::VecDeque, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
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
    known::{Change, Known},
    source::{OpenSource, PORTION_EVENTS_MAX, Portion, Refusal, Setting, Trouble},
};

/// The part with what the far side said of the page.
const VALIDATORS: &str = "validators";
/// The part with the time of the last poll.
const POLLED: &str = "polled";

/// An item of a page.
pub(crate) struct PageItem {
    /// What it is known by.
    pub key: String,
    /// What differs when it has changed.
    pub version: String,
    /// The item, in case it is no event.
    pub text: Bytes,
    /// Makes it a row.
    pub row: RowMaker,
}

/// Makes a row of an item, told whether it is new or updated.
pub(crate) type RowMaker = Box<dyn FnOnce(Change) -> Result<Row, Vec<Problem>> + Send>;

/// Reads the items of a page.
pub(crate) type Reader = Arc<dyn Fn(&[u8]) -> Result<Vec<PageItem>, Trouble> + Send + Sync>;

/// How changes are taken.
pub(crate) struct Policy {
    /// Whether an item that has changed is an event as well.
    pub updates: bool,
    /// For how many polls an item that is gone is remembered.
    pub retention: u32,
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
        let value = |part: &str| marks.iter().find(|mark| &*mark.part == part)?.value.clone();
        Ok(Poller {
            fetch: Fetch::new(options, &setting.context)?,
            due: Due::new(options.every.0, options.schedule.as_deref()),
            clock: setting.context.clock.clone(),
            fields: setting.gives.fields(),
            read,
            policy,
            known: Known::read(marks),
            validators: value(VALIDATORS).and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default(),
            polled: value(POLLED).and_then(|text| serde_json::from_slice(&text).ok()),
            ready: VecDeque::new(),
        })
    }

    /// Asks once, and makes portions of what is new.
    async fn poll(&mut self) -> Result<(), Trouble> {
        let now = self.clock.now();
        let fetched = self.fetch.fetch(&self.validators).await?;
        self.polled = Some(now);
        let polled = Mark::set(POLLED, serde_json::to_vec(&now).expect("a time is JSON"));
        let Fetched::Page { body, validators } = fetched else {
            self.ready.push_back(Portion { marks: vec![polled], ..Portion::default() });
            return Ok(());
        };
        let read = self.read.clone();
        let items =
            spawn_blocking(move || read(&body)).await.map_err(|error| Trouble::new("reading broke", error))??;
        let keys: Vec<String> = items.iter().map(|item| item.key.clone()).collect();
        for items in chunks(items) {
            let portion = self.portion(items);
            if !portion.marks.is_empty() {
                self.ready.push_back(portion);
            }
        }
        // Only behind all items: a crash before asks for the whole page again, and knows what was taken.
        let mut last = self.ready.pop_back().unwrap_or_default();
        last.marks.extend(self.known.end_poll(keys.iter().map(String::as_str), self.policy.retention));
        last.marks.push(Mark::set(VALIDATORS, serde_json::to_vec(&validators).expect("it is JSON")));
        last.marks.push(polled);
        self.validators = validators;
        self.ready.push_back(last);
        Ok(())
    }

    fn portion(&mut self, items: Vec<PageItem>) -> Portion {
        let mut packer = EventPacker::new(self.fields.clone());
        let mut portion = Portion { since: Some(self.clock.now()), ..Portion::default() };
        for PageItem { key, version, text, row } in items {
            let Some(change) = self.known.judge(&key, &version) else { continue };
            portion.marks.push(self.known.remember(&key, &version));
            if change == Change::Updated && !self.policy.updates {
                continue;
            }
            match row(change) {
                Ok(row) => packer.push(&row),
                Err(problems) => portion.refused.push(Refusal::new(&problems, text)),
            }
        }
        portion.events = packer.finish();
        portion
    }
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
