//! Entries as rows of tables, for queries that join with them: after each batch, what is otherwise than it was told before.
//!
//! A table says what its chronicle says at the time at which the batch was accepted, when it has taken the events of the
//! batch. So rows change with events and, under a window, with time alone; both cost what changes, not what there is.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tocsin_model::{
    field::{Row, unpack_row},
    id::Name,
    time::Timestamp,
};

use super::{
    book::{ChronicleBook, chronicle_of},
    compile::{CompiledChronicle, Span},
    entry::Entry,
    ledger::{Key, Ledger},
};
use crate::sql::table_name;

/// What tables are to be told.
#[derive(Debug, Clone, PartialEq)]
pub enum EntryChange {
    /// Every table is empty. What follows is all that there is.
    Clear,
    /// What a table says of a key: the fields of the key, then what [`ChronicleTable::says`](crate::sql::ChronicleTable)
    /// names. `None`: the key is not there any more.
    Entry {
        /// The table's name.
        table: Arc<str>,
        /// The key, packed.
        key: Arc<[u8]>,
        /// The row.
        row: Option<Row>,
    },
}

/// What was told up to now.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// By event class and chronicle. None: what tables hold is unknown.
    tables: Option<BTreeMap<(Name, Name), ToldTable>>,
    /// Whether something was told since the last commit.
    is_open: bool,
}

#[derive(Debug)]
struct ToldTable {
    name: Arc<str>,
    /// The part that was the present one.
    part: i64,
    /// The oldest part that counts for a key. Where a key has a newer one as well, the older is of no meaning.
    expiring: BTreeSet<(i64, Key)>,
}

impl Told {
    /// What was told may be of events that are not there any more.
    pub fn undo(&mut self) {
        if std::mem::take(&mut self.is_open) {
            self.tables = None;
        }
    }

    pub fn confirm(&mut self) {
        self.is_open = false;
    }
}

impl ChronicleBook {
    /// Whether tables must be told everything before they are true.
    pub fn is_untold(&self) -> bool {
        self.told.tables.is_none()
    }

    /// Tells what tables say at the time of a batch whose events have been taken, as far as that is not what they were
    /// told before. Nothing, where no query reads them.
    pub fn tell_tables(&mut self, accepted_at: Timestamp, tell: &mut dyn FnMut(EntryChange)) {
        let rules = self.rules.clone();
        if !rules.has_chronicle_tables() {
            return;
        }
        self.told.is_open = true;
        let tables = self.told.tables.get_or_insert_with(|| {
            tell(EntryChange::Clear);
            BTreeMap::new()
        });
        for ((class, name), ledger) in &mut self.ledgers {
            let Some(chronicle) = chronicle_of(&rules, class, name).filter(|chronicle| chronicle.tabled) else {
                continue;
            };
            let part = chronicle.span.part(accepted_at.0);
            let of_table = (class.clone(), name.clone());
            let mut keys = ledger.take_noted();
            // Where time went back, what was over may count again.
            if tables.get(&of_table).is_none_or(|told| part < told.part) {
                tables.remove(&of_table);
                keys.extend(ledger.entries.keys().cloned());
            }
            let told = tables.entry(of_table).or_insert_with(|| ToldTable {
                name: table_name(class, name).into(),
                part,
                expiring: BTreeSet::new(),
            });
            told.tell(chronicle, ledger, part, keys, tell);
        }
    }
}

impl ToldTable {
    fn tell(
        &mut self,
        chronicle: &CompiledChronicle,
        ledger: &Ledger,
        part: i64,
        mut keys: BTreeSet<Key>,
        tell: &mut dyn FnMut(EntryChange),
    ) {
        let first = chronicle.span.first(part);
        while self.expiring.first().is_some_and(|(oldest, _)| *oldest < first) {
            keys.extend(self.expiring.pop_first().map(|(_, key)| key));
        }
        for key in keys {
            let entry = ledger.get(&key);
            let row = entry.and_then(|entry| row(chronicle, &key, entry, part));
            if let (Some(entry), Some(_), false) = (entry, &row, matches!(chronicle.span, Span::Always)) {
                let oldest = entry.oldest(&chronicle.span, entry.present(part));
                self.expiring.extend(oldest.map(|oldest| (oldest, key.clone())));
            }
            tell(EntryChange::Entry { table: self.name.clone(), key, row });
        }
        self.part = part;
    }
}

/// What a chronicle says of a key with a part as the present one; `None` if nothing.
fn row(chronicle: &CompiledChronicle, key: &[u8], entry: &Entry, part: i64) -> Option<Row> {
    let present = entry.present(part);
    if entry.is_over(&chronicle.span, present) {
        return None;
    }
    let mut row: Row = unpack_row(&chronicle.key, key).ok()?;
    row.extend(chronicle.given().map(|statistic| entry.get(&chronicle.span, present, statistic)));
    Some(row)
}
