//! Number of open messages per exchange, as committed.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tocsin_model::id::Name;

use crate::sqlite::writer::AfterCommit;

/// Number of open messages per exchange, as committed.
#[derive(Default)]
pub(super) struct OpenCounts(pub(super) Mutex<HashMap<String, i64>>);

impl OpenCounts {
    pub(super) fn change(&self, exchange: &str, change: i64) {
        let mut open = self.0.lock();
        match open.get_mut(exchange) {
            Some(count) => *count += change,
            None => drop(open.insert(exchange.to_owned(), change)),
        }
    }

    /// Updates the count of one exchange after the commit.
    pub(super) fn change_after(self: &Arc<Self>, after: &mut AfterCommit, exchange: &Name, change: i64) {
        if change != 0 {
            let (open, exchange) = (self.clone(), exchange.clone());
            after.run(move || open.change(exchange.as_str(), change));
        }
    }
}

/// Changes of the open counts by one commit.
#[derive(Default)]
pub(super) struct OpenChanges(HashMap<String, i64>);

impl OpenChanges {
    pub(super) fn add(&mut self, exchange: &str, change: i64) {
        if change != 0 {
            *self.0.entry(exchange.to_owned()).or_default() += change;
        }
    }

    /// Applies the changes after the commit.
    pub(super) fn count_after(self, after: &mut AfterCommit, open: &Arc<OpenCounts>) {
        if !self.0.is_empty() {
            let open = open.clone();
            after.run(move || self.0.into_iter().for_each(|(exchange, change)| open.change(&exchange, change)));
        }
    }
}
