//! Entries of chronicles for people: which there are, and what each says at a time.

use serde_json::{Map, Value as Json};
use tocsin_model::{
    chronicle::Statistic,
    field::{Row, pack_row, unpack_row},
    id::Name,
    problem::Problem,
    time::Timestamp,
    value::Value,
};

use super::{
    book::{ChronicleBook, chronicle_of, page_name},
    compile::CompiledChronicle,
    entry::Entry,
};
use crate::rule::RuleSet;

/// A chronicle for people.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ChronicleExplanation {
    /// The event class.
    pub class: Name,
    /// Its name.
    pub name: Name,
    /// What it keeps, in words.
    pub keeps: String,
    /// The fields of its key.
    pub key: Vec<Name>,
    /// What it gives.
    pub gives: Vec<&'static str>,
    /// Most keys.
    pub keys_max: usize,
}

/// What a chronicle says of a key.
#[derive(Debug, Clone, PartialEq)]
pub struct ChronicleEntry {
    /// The key, by field.
    pub key: Map<String, Json>,
    /// What it says, by statistic.
    pub values: Map<String, Json>,
}

impl RuleSet {
    /// The chronicles of the application, by event class and name.
    pub fn chronicles(&self) -> Vec<ChronicleExplanation> {
        let of = |(class, chronicle): (&Name, &CompiledChronicle)| ChronicleExplanation {
            class: class.clone(),
            name: chronicle.name.clone(),
            keeps: chronicle.explained.clone(),
            key: chronicle.key.iter().map(|field| field.name.clone()).collect(),
            gives: chronicle.given().map(Statistic::name).collect(),
            keys_max: chronicle.keys,
        };
        self.events.iter().flat_map(|(class, plan)| plan.chronicles.iter().map(move |one| of((class, one)))).collect()
    }

    /// The name of the pages that hold a chronicle, if there is such a one.
    pub fn chronicle_pages(&self, class: &Name, chronicle: &Name) -> Option<String> {
        chronicle_of(self, class, chronicle).map(|_| page_name(class, chronicle))
    }

    /// A key of a chronicle, from values by field.
    ///
    /// # Errors
    /// What is wrong with the values; there is no such chronicle.
    pub fn chronicle_key(
        &self,
        class: &Name,
        chronicle: &Name,
        values: impl IntoIterator<Item = (String, Value)>,
    ) -> Result<Vec<u8>, Vec<Problem>> {
        let Some(found) = chronicle_of(self, class, chronicle) else {
            return Err(vec![Problem::at("", format!("there is no chronicle `{chronicle}` of `{class}`"))]);
        };
        let row = found.key.row(values)?;
        let mut key = Vec::new();
        pack_row(&found.key, &row, &mut key);
        Ok(key)
    }
}

impl ChronicleBook {
    /// What a chronicle says of a key at a time, if it has anything.
    pub fn entry(
        &self,
        rules: &RuleSet,
        class: &Name,
        name: &Name,
        key: &[u8],
        at: Timestamp,
    ) -> Option<ChronicleEntry> {
        let chronicle = chronicle_of(rules, class, name)?;
        shown(chronicle, key, self.ledger(class, name)?.get(key)?, at)
    }

    /// What a chronicle says of its keys at a time: those after a key, at most so many, in the order of packed keys, each
    /// with its packed key.
    pub fn entries(
        &self,
        rules: &RuleSet,
        class: &Name,
        name: &Name,
        after: Option<&[u8]>,
        limit: usize,
        at: Timestamp,
    ) -> Vec<(Vec<u8>, ChronicleEntry)> {
        let (Some(chronicle), Some(ledger)) = (chronicle_of(rules, class, name), self.ledger(class, name)) else {
            return Vec::new();
        };
        let later = ledger.entries.iter().filter(|(key, _)| after.is_none_or(|after| &key[..] > after));
        let mut found: Vec<_> =
            later.filter_map(|(key, held)| Some((key.to_vec(), shown(chronicle, key, &held.entry, at)?))).collect();
        found.sort_unstable_by(|left, right| left.0.cmp(&right.0));
        found.truncate(limit);
        found
    }

    /// How many keys a chronicle has.
    pub fn keys_of(&self, class: &Name, name: &Name) -> usize {
        self.ledger(class, name).map_or(0, super::ledger::Ledger::len)
    }
}

fn shown(chronicle: &CompiledChronicle, key: &[u8], entry: &Entry, at: Timestamp) -> Option<ChronicleEntry> {
    let present = entry.present(chronicle.span.part(at.0));
    if entry.is_over(&chronicle.span, present) {
        return None;
    }
    let row: Row = unpack_row(&chronicle.key, key).ok()?;
    let key = chronicle.key.iter().zip(row).map(|(field, value)| (field.name.to_string(), value.into())).collect();
    let value = |statistic: Statistic| {
        let value = entry.get(&chronicle.span, present, statistic);
        (statistic.name().to_owned(), value.into())
    };
    Some(ChronicleEntry { key, values: chronicle.given().map(value).collect() })
}
