//! Counts and reasons of an import.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tocsin_notifybc::{dump::IMPORT_ORDER, record::Collection};
use tocsin_service::notifybc::import::{ImportRecord, Imported};

use crate::{
    failure::Outcome,
    terminal::{Terminal, printable, thousands},
};

/// Records that are named for each reason.
const EXAMPLES_MAX: usize = 5;

/// Result of an import.
#[derive(Debug, Default)]
pub(super) struct Report {
    collections: BTreeMap<Collection, Counts>,
    /// Parts of an installation that its interface does not show.
    pub notes: Vec<String>,
}

/// Counts of one collection.
#[derive(Debug, Default)]
struct Counts {
    read: u64,
    stored: u64,
    replaced: u64,
    present: u64,
    refused: BTreeMap<String, Examples>,
    remarks: BTreeMap<String, Examples>,
}

#[derive(Debug, Default)]
struct Examples {
    count: u64,
    first: Vec<String>,
}

impl Examples {
    fn add(&mut self, id: &str) {
        self.count += 1;
        if self.first.len() < EXAMPLES_MAX {
            self.first.push(id.to_owned());
        }
    }

    fn to_json(&self, reason: &str) -> Value {
        json!({"reason": reason, "count": self.count, "examples": self.first})
    }

    fn line(&self, collection: Collection, reason: &str) -> String {
        let more = if self.count > self.first.len() as u64 { ", …" } else { "" };
        let examples = printable(&self.first.join("; ")).into_owned();
        format!("{} {}: {} ({examples}{more})", thousands(self.count), collection.name(), printable(reason))
    }
}

impl Counts {
    fn refused(&self) -> u64 {
        self.refused.values().map(|examples| examples.count).sum()
    }
}

impl Report {
    /// A record was read.
    pub fn read(&mut self, collection: Collection, record: &ImportRecord) {
        let counts = self.collections.entry(collection).or_default();
        counts.read += 1;
        if let Some(remark) = record.remark {
            counts.remarks.entry(remark.to_owned()).or_default().add(record.id());
        }
    }

    /// A document cannot be imported.
    pub fn refuse(&mut self, collection: Collection, id: &str, reason: String) {
        let counts = self.collections.entry(collection).or_default();
        counts.read += 1;
        counts.refused.entry(reason).or_default().add(id);
    }

    /// A record was stored, or not.
    pub fn store(&mut self, collection: Collection, id: &str, result: Imported) {
        let counts = self.collections.entry(collection).or_default();
        match result {
            Imported::Stored => counts.stored += 1,
            Imported::Replaced => counts.replaced += 1,
            Imported::Present => counts.present += 1,
            Imported::Refused(reason) => counts.refused.entry(reason).or_default().add(id),
        }
    }

    /// Number of records that were not imported.
    pub fn refused(&self) -> u64 {
        self.collections.values().map(Counts::refused).sum()
    }

    fn in_order(&self) -> impl Iterator<Item = (Collection, &Counts)> {
        IMPORT_ORDER.into_iter().filter_map(|collection| Some((collection, self.collections.get(&collection)?)))
    }

    /// Prints the counts and reasons.
    ///
    /// # Errors
    /// The output is closed.
    pub fn show(&self, terminal: &Terminal, is_dry_run: bool) -> Outcome {
        let row = |(collection, counts): (Collection, &Counts)| {
            let mut row = vec![collection.name().to_owned(), thousands(counts.read)];
            row.extend(match is_dry_run {
                true => vec![thousands(counts.read - counts.refused())],
                false => [counts.stored, counts.replaced, counts.present].map(thousands).to_vec(),
            });
            row.push(thousands(counts.refused()));
            row
        };
        let rows: Vec<Vec<String>> = self.in_order().map(row).collect();
        let heads: &[&str] = match is_dry_run {
            true => &["collection", "read", "importable", "not importable"],
            false => &["collection", "read", "imported", "replaced", "present", "not imported"],
        };
        terminal.table(heads, &rows)?;
        for (collection, counts) in self.in_order() {
            for (reason, examples) in counts.refused.iter().chain(&counts.remarks) {
                terminal.line(examples.line(collection, reason))?;
            }
        }
        self.notes.iter().try_for_each(|note| terminal.line(note))?;
        Ok(())
    }

    /// The same as JSON.
    pub fn to_json(&self, is_dry_run: bool) -> Value {
        let list = |reasons: &BTreeMap<String, Examples>| -> Value {
            reasons.iter().map(|(reason, examples)| examples.to_json(reason)).collect()
        };
        let collections: serde_json::Map<String, Value> = self
            .in_order()
            .map(|(collection, counts)| {
                let counts = json!({
                    "read": counts.read, "imported": counts.stored, "replaced": counts.replaced,
                    "present": counts.present, "not_imported": list(&counts.refused), "remarks": list(&counts.remarks),
                });
                (collection.name().to_owned(), counts)
            })
            .collect();
        json!({"dry_run": is_dry_run, "collections": collections, "notes": self.notes})
    }
}
