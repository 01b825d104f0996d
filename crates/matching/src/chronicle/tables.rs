//! Chronicle entries as rows of SQL tables, for joins in queries: publishes the changed rows after each batch.
//!
//! A table shows the statistics at the acceptance time of the batch, after its events. So rows change with events and,
//! under a window, with time alone. The cost of both grows with the changes only.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tocsin_model::{
    field::{Row, unpack_row},
    id::Name,
};

use crate::{
    chronicle::{
        aggregate_table::{AggregateTable, Key},
        entry::Entry,
    },
    chronicle_span::Span,
    compiled_chronicle::CompiledChronicle,
};

/// A change to publish to the tables.
#[derive(Debug, Clone, PartialEq)]
pub enum EntryChange {
    /// All tables are cleared. All rows follow.
    Clear,
    /// A row: the fields of the key, then the statistics of [`ChronicleTable::says`](crate::sql::ChronicleTable).
    /// `None`: the key is removed.
    Entry {
        /// The table's name.
        table: Arc<str>,
        /// The key, packed.
        key: Arc<[u8]>,
        /// The row.
        row: Option<Row>,
    },
}

/// The tables as published so far.
#[derive(Debug, Default)]
pub(super) struct PublishedTables {
    /// By event class and chronicle. `None`: the content of the tables is unknown.
    pub(crate) tables: Option<BTreeMap<(Name, Name), PublishedTable>>,
    /// Whether something was published since the last commit.
    pub(crate) is_open: bool,
}

#[derive(Debug)]
pub(crate) struct PublishedTable {
    pub(super) name: Arc<str>,
    /// The current part at the last publication.
    pub(crate) part: i64,
    /// The oldest part in the window of each key. For a key with a newer one as well, the older is obsolete.
    pub(super) expiring: BTreeSet<(i64, Key)>,
}

impl PublishedTables {
    /// Published rows may contain events that were undone.
    pub fn undo(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.tables = None;
        }
    }

    pub fn confirm(&mut self) {
        self.is_open = false;
    }
}

impl PublishedTable {
    pub(crate) fn emit(
        &mut self,
        chronicle: &CompiledChronicle,
        table: &AggregateTable,
        part: i64,
        mut keys: BTreeSet<Key>,
        emit: &mut dyn FnMut(EntryChange),
    ) {
        let first = chronicle.span.first(part);
        while self.expiring.first().is_some_and(|(oldest, _)| *oldest < first) {
            keys.extend(self.expiring.pop_first().map(|(_, key)| key));
        }
        for key in keys {
            let entry = table.get(&key);
            let row = entry.and_then(|entry| row(chronicle, &key, entry, part));
            if let (Some(entry), Some(_), false) = (entry, &row, matches!(chronicle.span, Span::Always)) {
                let oldest = entry.oldest(&chronicle.span, entry.present(part));
                self.expiring.extend(oldest.map(|oldest| (oldest, key.clone())));
            }
            emit(EntryChange::Entry { table: self.name.clone(), key, row });
        }
        self.part = part;
    }
}

/// The row of a key, with `part` as the current part; `None` if it is empty.
fn row(chronicle: &CompiledChronicle, key: &[u8], entry: &Entry, part: i64) -> Option<Row> {
    let present = entry.present(part);
    if entry.has_expired(&chronicle.span, present) {
        return None;
    }
    let mut row: Row = unpack_row(&chronicle.key, key).ok()?;
    row.extend(chronicle.readable_statistics().map(|statistic| entry.get(&chronicle.span, present, statistic)));
    Some(row)
}
