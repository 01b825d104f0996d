//! The chronicles of an application in memory: applies events, computes columns, and undoes changes until they are
//! committed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use bytes::Bytes;
use tocsin_model::{
    field::{Damaged, Row, pack_row, unpack_row},
    id::Name,
    state::StatePage,
    time::Timestamp,
    value::Value,
};

use crate::{
    chronicle::{
        aggregate_table::{AggregateTable, erase_records},
        entry::Entry,
        tables::{EntryChange, PublishedTable, PublishedTables},
    },
    chronicle_columns,
    chronicle_span::Span,
    compiled_chronicle::CompiledChronicle,
    eval_value::{EvalError, EvalValue},
    evaluate::{EvalContext, Parameters, value},
    expression::Expression,
    rule::rule_set::{EventPlan, RuleSet},
    sql_names::table_name,
};

/// Name prefix of the journal pages of chronicles.
pub const PREFIX: &str = "chronicles.";
/// Most bytes of a key, and of a text value.
pub const BYTES_MAX: usize = 1_024;
/// Entries that each batch checks for expiry.
const SWEPT: usize = 64;
/// Tolerance for a clock that is set back, in microseconds, before an expired entry is removed.
const LATENESS: i64 = 3_600_000_000;

/// The reason why a chronicle skipped an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SkipReason {
    /// An expression of the chronicle has no value.
    Failed,
    /// The event is older than the window.
    Late,
    /// The key or text is longer than [`BYTES_MAX`].
    Long,
}

impl SkipReason {
    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            SkipReason::Failed => "failed",
            SkipReason::Late => "late",
            SkipReason::Long => "long",
        }
    }
}

/// Incidents of a chronicle, for metrics and logs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Incidents {
    /// Number of skipped events, by reason.
    pub not_taken: BTreeMap<SkipReason, u64>,
    /// Number of keys evicted at the key limit.
    pub evicted: u64,
    /// The first error of an expression.
    pub error: Option<EvalError>,
}

/// The aggregates of all chronicles of an application, with undo.
pub struct ChronicleStore {
    pub(super) rules: Arc<RuleSet>,
    /// By event class and chronicle.
    pub(super) tables: BTreeMap<(Name, Name), AggregateTable>,
    /// Pages of chronicles that no longer exist, to be removed.
    dead: Vec<StatePage>,
    incidents: BTreeMap<(Name, Name), Incidents>,
    /// The chronicle tables as published to queries.
    pub(super) published: PublishedTables,
}

impl fmt::Debug for ChronicleStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChronicleStore").field("keys", &self.keys()).finish_non_exhaustive()
    }
}

/// An event as input of a chronicle.
struct EventInput<'a> {
    chronicle: &'a CompiledChronicle,
    key: Vec<u8>,
    at: i64,
    part: i64,
}

impl ChronicleStore {
    /// An empty store.
    pub fn new(rules: Arc<RuleSet>) -> ChronicleStore {
        let of = |(class, plan): (&Name, &EventPlan)| {
            let class = class.clone();
            let table = |chronicle: &CompiledChronicle| {
                (
                    chronicle.name.clone(),
                    if chronicle.tabled { AggregateTable::noting() } else { AggregateTable::default() },
                )
            };
            let tables: Vec<(Name, AggregateTable)> = plan.chronicles.iter().map(table).collect();
            tables.into_iter().map(move |(name, table)| ((class.clone(), name), table))
        };
        let tables = rules.events.iter().flat_map(of).collect();
        ChronicleStore {
            rules,
            tables,
            dead: Vec::new(),
            incidents: BTreeMap::new(),
            published: PublishedTables::default(),
        }
    }

    /// Whether there is any chronicle.
    pub fn has_chronicles(&self) -> bool {
        !self.tables.is_empty()
    }

    /// The number of keys.
    pub fn keys(&self) -> usize {
        self.tables.values().map(AggregateTable::len).sum()
    }

    /// Memory in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.tables.values().map(AggregateTable::memory_bytes).sum()
    }

    pub(super) fn table(&self, class: &Name, chronicle: &Name) -> Option<&AggregateTable> {
        self.tables.get(&(class.clone(), chronicle.clone()))
    }

    /// Replaces all entries by those of the journal: all pages with the prefix [`PREFIX`], by name and number. Returns
    /// the number of damaged pages. Pages of chronicles that no longer exist, or have another definition, are removed
    /// with the next changes.
    pub fn restore(&mut self, pages: impl IntoIterator<Item = StatePage>) -> usize {
        *self = ChronicleStore::new(self.rules.clone());
        let mut damaged = 0;
        let rules = self.rules.clone();
        for page in pages {
            let found = table_of(&rules, &page.name).and_then(|(name, chronicle)| {
                let table = self.tables.get_mut(&name)?;
                Some(table.restore(&page, chronicle.signature))
            });
            match found {
                Some(Ok(true)) => {}
                Some(Err(_)) => damaged += 1,
                Some(Ok(false)) | None => self.dead.push(StatePage { body: Bytes::new(), ..page }),
            }
        }
        self.begin();
        damaged
    }

    /// Starts recording changes for undo.
    pub fn begin(&mut self) {
        self.tables.values_mut().for_each(AggregateTable::mark);
        self.incidents.clear();
    }

    /// Undoes the changes since the last `begin`.
    pub fn undo(&mut self) {
        self.tables.values_mut().for_each(AggregateTable::undo);
        self.incidents.clear();
        self.published.undo();
    }

    /// The changed pages since the last `begin`, to be committed with the matches. Afterwards the changes cannot be
    /// undone.
    pub fn take_changes(&mut self) -> Vec<StatePage> {
        self.published.confirm();
        let mut pages = std::mem::take(&mut self.dead);
        for ((class, name), table) in &mut self.tables {
            let signature = chronicle_of(&self.rules, class, name).map_or(0, |chronicle| chronicle.signature);
            pages.extend(table.take_changes(&page_name(class, name), signature));
            table.mark();
        }
        pages
    }

    /// The incidents since the last call, by event class and chronicle.
    pub fn take_incidents(&mut self) -> BTreeMap<(Name, Name), Incidents> {
        std::mem::take(&mut self.incidents)
    }

    /// Applies the events of a batch in order, and writes the chronicle columns that rules read into their rows, which
    /// come from [`RuleSet::rows`]. Returns the columns packed, to be stored with the batch; empty if rules read none.
    pub fn take(&mut self, class: &Name, rows: &mut [Row], accepted_at: Timestamp) -> Bytes {
        let rules = self.rules.clone();
        let Some(plan) = rules.events.get(class).filter(|plan| !plan.chronicles.is_empty()) else {
            return Bytes::new();
        };
        let first = plan.fields.len();
        for row in rows.iter_mut() {
            for (number, chronicle) in plan.chronicles.iter().enumerate() {
                self.apply_event(class, plan, number, chronicle, row, accepted_at);
            }
        }
        for chronicle in &plan.chronicles {
            self.sweep(class, chronicle, accepted_at);
        }
        chronicle_columns::pack(&plan.columns, rows, first)
    }

    fn apply_event(
        &mut self,
        class: &Name,
        plan: &EventPlan,
        number: usize,
        chronicle: &CompiledChronicle,
        row: &mut Row,
        accepted_at: Timestamp,
    ) {
        let name = (class.clone(), chronicle.name.clone());
        let Some(table) = self.tables.get_mut(&name) else { return };
        let mut key = Vec::new();
        let of_key: Row = chronicle.by.iter().map(|at| canonical(row[*at].clone())).collect();
        pack_row(&chronicle.key, &of_key, &mut key);
        let mut verdict = Ok(());
        if key.len() > BYTES_MAX {
            verdict = Err((SkipReason::Long, None));
            key.clear();
        }
        let at = match own_time(chronicle, row, accepted_at) {
            Ok(at) => at,
            Err(error) => {
                verdict = verdict.and(Err((SkipReason::Failed, Some(error))));
                accepted_at.0
            }
        };
        // Without a time of its own, an event is never older than the newest one.
        let newest = table.get(&key).and_then(Entry::last_at);
        let at = if chronicle.time.is_none() { newest.map_or(at, |newest| newest.max(at)) } else { at };
        let meeting = EventInput { chronicle, part: chronicle.span.part(at), at, key };
        if verdict.is_ok() {
            match is_true(&chronicle.reset, row) {
                Ok(true) if table.get(&meeting.key).is_some() => table.remove(&meeting.key),
                Ok(_) => {}
                Err(error) => verdict = Err((SkipReason::Failed, Some(error))),
            }
        }
        fill(plan, number, &meeting, table, false, row);
        if verdict.is_ok() {
            verdict = match value_of(chronicle, row) {
                Ok(Some(value)) if matches!(&value, Value::Text(text) if text.len() > BYTES_MAX) => {
                    Err((SkipReason::Long, None))
                }
                Ok(Some(value)) => {
                    let EventInput { key, at, part, .. } = &meeting;
                    let is_late =
                        table.get(key).is_some_and(|entry| *part < chronicle.span.first(entry.present(*part)));
                    if is_late {
                        Err((SkipReason::Late, None))
                    } else {
                        table.change(key, |entry| entry.take(&chronicle.span, *at, *part, value));
                        Ok(())
                    }
                }
                Ok(None) => Ok(()),
                Err(error) => Err((SkipReason::Failed, Some(error))),
            };
        }
        let mut evicted = 0;
        while table.len() > chronicle.keys {
            let Some((oldest, _)) = table.oldest() else { break };
            table.remove(&oldest);
            evicted += 1;
        }
        fill(plan, number, &meeting, table, true, row);
        if evicted > 0 || verdict.is_err() {
            let incidents = self.incidents.entry(name).or_default();
            incidents.evicted += evicted;
            if let Err((reason, error)) = verdict {
                *incidents.not_taken.entry(reason).or_default() += 1;
                incidents.error = incidents.error.or(error);
            }
        }
    }

    /// Removes some expired entries. They are equivalent to missing ones.
    fn sweep(&mut self, class: &Name, chronicle: &CompiledChronicle, accepted_at: Timestamp) {
        // Events may have times of their own in the past.
        if chronicle.time.is_some() || matches!(chronicle.span, Span::Always) {
            return;
        }
        let Some(table) = self.tables.get_mut(&(class.clone(), chronicle.name.clone())) else { return };
        let part = chronicle.span.part(accepted_at.0.saturating_sub(LATENESS));
        for _ in 0..SWEPT {
            match table.oldest() {
                Some((key, entry)) if entry.has_expired(&chronicle.span, part) => table.remove(&key),
                _ => break,
            }
        }
    }
}

/// Writes the columns of one chronicle that rules read into the row of an event.
fn fill(plan: &EventPlan, number: usize, meeting: &EventInput<'_>, table: &AggregateTable, after: bool, row: &mut Row) {
    let empty = Entry::default();
    let entry = table.get(&meeting.key).unwrap_or(&empty);
    let span = &meeting.chronicle.span;
    let present = entry.present(meeting.part);
    let first = plan.fields.len();
    for (at, column) in plan.read.iter().enumerate() {
        if column.chronicle == number && column.after == after {
            row[first + at] = entry.get(span, present, column.statistic);
        }
    }
}

/// The time of an event, never later than its acceptance.
fn own_time(chronicle: &CompiledChronicle, row: &[Value], accepted_at: Timestamp) -> Result<i64, EvalError> {
    let Some(time) = &chronicle.time else { return Ok(accepted_at.0) };
    match value(time, EvalContext { event: row, parameters: Parameters::None })? {
        EvalValue::Timestamp(time) => Ok(time.0.min(accepted_at.0)),
        EvalValue::Null => Ok(accepted_at.0),
        _ => Err(EvalError::Type),
    }
}

/// Whether a predicate is true; missing or null is not.
fn is_true(predicate: &Option<Expression>, row: &[Value]) -> Result<bool, EvalError> {
    let Some(predicate) = predicate else { return Ok(false) };
    match value(predicate, EvalContext { event: row, parameters: Parameters::None })? {
        EvalValue::Boolean(value) => Ok(value),
        EvalValue::Null => Ok(false),
        _ => Err(EvalError::Type),
    }
}

/// The value of an event in a chronicle; `None` if the chronicle does not apply to it.
fn value_of(chronicle: &CompiledChronicle, row: &[Value]) -> Result<Option<Value>, EvalError> {
    if chronicle.when.is_some() && !is_true(&chronicle.when, row)? {
        return Ok(None);
    }
    let (Some(of), Some(kind)) = (&chronicle.of, chronicle.kind) else { return Ok(Some(Value::Null)) };
    let found = value(of, EvalContext { event: row, parameters: Parameters::None })?;
    match found {
        EvalValue::Null => Ok(None),
        EvalValue::Number(number) if !number.is_finite() => Err(EvalError::Range),
        found => kind.accept(found.to_value()).map(|value| Some(canonical(value))).map_err(|_| EvalError::Type),
    }
}

/// Normalizes negative zero, which equals zero.
pub(super) fn canonical(value: Value) -> Value {
    match value {
        // The negative zero plus zero is zero.
        Value::Number(number) => Value::Number(number + 0.0),
        value => value,
    }
}

/// The name of the pages of a chronicle.
pub(super) fn page_name(class: &Name, chronicle: &Name) -> String {
    format!("{PREFIX}{class}.{chronicle}")
}

/// The chronicle of a page name.
fn table_of<'a>(rules: &'a RuleSet, page: &str) -> Option<((Name, Name), &'a CompiledChronicle)> {
    let (class, name) = page.strip_prefix(PREFIX)?.split_once('.')?;
    let (class, name): (Name, Name) = (class.parse().ok()?, name.parse().ok()?);
    let chronicle = chronicle_of(rules, &class, &name)?;
    Some(((class, name), chronicle))
}

/// A page of a chronicle without the entries that have an erased value, in their key or elsewhere; `None` if it has none.
/// An empty body removes the page, as that of a chronicle that no longer exists.
///
/// # Errors
/// The page is damaged.
pub fn erase_page(
    rules: &RuleSet,
    page: &StatePage,
    is_erased: impl Fn(&Value) -> bool,
) -> Result<Option<StatePage>, Damaged> {
    let Some((_, chronicle)) = table_of(rules, &page.name) else {
        return Ok(Some(StatePage { body: Bytes::new(), ..page.clone() }));
    };
    let of_key = |key: &[u8]| unpack_row(&chronicle.key, key).is_ok_and(|key| key.iter().any(&is_erased));
    let of_entry = |entry: &Entry| entry.values().any(&is_erased);
    let erased =
        erase_records(&page.body, chronicle.signature, |key, entry| of_key(key) || entry.is_some_and(of_entry));
    Ok(erased?.map(|body| StatePage { body, ..page.clone() }))
}

pub(super) fn chronicle_of<'a>(rules: &'a RuleSet, class: &Name, name: &Name) -> Option<&'a CompiledChronicle> {
    rules.events.get(class)?.chronicles.iter().find(|chronicle| chronicle.name == *name)
}

impl ChronicleStore {
    /// Whether all rows must be published before the tables are valid.
    pub fn needs_full_publish(&self) -> bool {
        self.published.tables.is_none()
    }

    /// Publishes the rows that changed, at the time of a batch whose events have been applied. Does nothing if no query
    /// reads them.
    pub fn publish_tables(&mut self, accepted_at: Timestamp, emit: &mut dyn FnMut(EntryChange)) {
        let rules = self.rules.clone();
        if !rules.has_chronicle_tables() {
            return;
        }
        self.published.is_open = true;
        let tables = self.published.tables.get_or_insert_with(|| {
            emit(EntryChange::Clear);
            BTreeMap::new()
        });
        for ((class, name), table) in &mut self.tables {
            let Some(chronicle) = chronicle_of(&rules, class, name).filter(|chronicle| chronicle.tabled) else {
                continue;
            };
            let part = chronicle.span.part(accepted_at.0);
            let of_table = (class.clone(), name.clone());
            let mut keys = table.take_changed_keys();
            // If time went back, expired parts may count again.
            if tables.get(&of_table).is_none_or(|published| part < published.part) {
                tables.remove(&of_table);
                keys.extend(table.entries.keys().cloned());
            }
            let published = tables.entry(of_table).or_insert_with(|| PublishedTable {
                name: table_name(class, name).into(),
                part,
                expiring: BTreeSet::new(),
            });
            published.emit(chronicle, table, part, keys, emit);
        }
    }
}
