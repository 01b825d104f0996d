//! Chronicle entries for display.

use serde_json::{Map, Value as Json};
use tocsin_model::{
    chronicle::Statistic,
    field::{Row, pack_row, unpack_row},
    id::Name,
    problem::{Code, Problem},
    time::Timestamp,
    value::Value,
};

use super::{
    entry::Entry,
    store::{ChronicleStore, canonical, chronicle_of, page_name},
};
use crate::{compiled_chronicle::CompiledChronicle, rule::rule_set::RuleSet};

/// A chronicle, for display.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ChronicleExplanation {
    /// The event class.
    pub class: Name,
    /// The name of the chronicle.
    pub name: Name,
    /// The definition, as text.
    pub keeps: String,
    /// The fields of its key.
    pub key: Vec<Name>,
    /// The names of its statistics.
    pub gives: Vec<&'static str>,
    /// Most keys.
    pub keys_max: usize,
}

/// The values of a key.
#[derive(Debug, Clone, PartialEq)]
pub struct ChronicleEntry {
    /// The key, by field.
    pub key: Map<String, Json>,
    /// The values, by statistic.
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
            gives: chronicle.readable_statistics().map(Statistic::name).collect(),
            keys_max: chronicle.keys,
        };
        self.events.iter().flat_map(|(class, plan)| plan.chronicles.iter().map(move |one| of((class, one)))).collect()
    }

    /// The name of the pages that store a chronicle, if there is one.
    pub fn chronicle_pages(&self, class: &Name, chronicle: &Name) -> Option<String> {
        chronicle_of(self, class, chronicle).map(|_| page_name(class, chronicle))
    }

    /// A key of a chronicle, from values by field.
    ///
    /// # Errors
    /// Problems of the values; an unknown chronicle.
    pub fn chronicle_key(
        &self,
        class: &Name,
        chronicle: &Name,
        values: impl IntoIterator<Item = (String, Value)>,
    ) -> Result<Vec<u8>, Vec<Problem>> {
        let Some(found) = chronicle_of(self, class, chronicle) else {
            return Err(vec![
                Problem::new(Code::UnknownReference, "", format!("there is no chronicle `{chronicle}` of `{class}`"))
                    .param("value", chronicle.to_string())
                    .param("kind", "chronicle"),
            ]);
        };
        let row: Row = found.key.row(values)?.into_iter().map(canonical).collect();
        let mut key = Vec::new();
        pack_row(&found.key, &row, &mut key);
        Ok(key)
    }
}

impl ChronicleStore {
    /// The values of a key at a time, if it has any.
    pub fn entry(
        &self,
        rules: &RuleSet,
        class: &Name,
        name: &Name,
        key: &[u8],
        at: Timestamp,
    ) -> Option<ChronicleEntry> {
        let chronicle = chronicle_of(rules, class, name)?;
        shown(chronicle, key, self.table(class, name)?.get(key)?, at)
    }

    /// The values of up to `limit` keys at a time, in the order of packed keys, starting after `after`; each with its
    /// packed key.
    pub fn entries(
        &self,
        rules: &RuleSet,
        class: &Name,
        name: &Name,
        after: Option<&[u8]>,
        limit: usize,
        at: Timestamp,
    ) -> Vec<(Vec<u8>, ChronicleEntry)> {
        let (Some(chronicle), Some(table)) = (chronicle_of(rules, class, name), self.table(class, name)) else {
            return Vec::new();
        };
        let later = table.entries.iter().filter(|(key, _)| after.is_none_or(|after| &key[..] > after));
        let mut found: Vec<_> =
            later.filter_map(|(key, held)| Some((key.to_vec(), shown(chronicle, key, &held.entry, at)?))).collect();
        found.sort_unstable_by(|left, right| left.0.cmp(&right.0));
        found.truncate(limit);
        found
    }

    /// The number of keys of a chronicle.
    pub fn keys_of(&self, class: &Name, name: &Name) -> usize {
        self.table(class, name).map_or(0, super::aggregate_table::AggregateTable::len)
    }
}

fn shown(chronicle: &CompiledChronicle, key: &[u8], entry: &Entry, at: Timestamp) -> Option<ChronicleEntry> {
    let present = entry.present(chronicle.span.part(at.0));
    if entry.has_expired(&chronicle.span, present) {
        return None;
    }
    let row: Row = unpack_row(&chronicle.key, key).ok()?;
    let key = chronicle.key.iter().zip(row).map(|(field, value)| (field.name.to_string(), value.into())).collect();
    let value = |statistic: Statistic| {
        let value = entry.get(&chronicle.span, present, statistic);
        (statistic.name().to_owned(), value.into())
    };
    Some(ChronicleEntry { key, values: chronicle.readable_statistics().map(value).collect() })
}
