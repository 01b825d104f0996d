//! All entries of an application: events in, columns out; and the way back.

use std::{collections::BTreeMap, fmt, sync::Arc};

use bytes::Bytes;
use tocsin_model::{
    field::{Row, pack_row},
    id::Name,
    state::StatePage,
    time::Timestamp,
    value::Value,
};

use super::{
    columns,
    compile::{CompiledChronicle, Span},
    entry::Entry,
    ledger::Ledger,
    tables::Told,
};
use crate::{
    datum::{Datum, Trouble},
    evaluate::{Parameters, Scene, value},
    expression::Expression,
    rule::{EventPlan, RuleSet},
};

/// What the names of the pages of chronicles begin with.
pub const PREFIX: &str = "chronicles.";
/// Most bytes of a key, and most of a text that is followed.
pub const BYTES_MAX: usize = 1_024;
/// Entries that each batch looks at for what is over.
const SWEPT: usize = 64;
/// How far a clock may be set back, in microseconds, before an entry that was over in the time before is taken as over.
const LATENESS: i64 = 3_600_000_000;

/// Why an event was not taken by a chronicle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NotTaken {
    /// An expression of the chronicle has no value.
    Failed,
    /// It is older than what the chronicle reaches back to.
    Late,
    /// Its key or its text is longer than [`BYTES_MAX`].
    Long,
}

impl NotTaken {
    /// Its name, as metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            NotTaken::Failed => "failed",
            NotTaken::Late => "late",
            NotTaken::Long => "long",
        }
    }
}

/// What happened in a chronicle that somebody should know.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Incidents {
    /// Events that it did not take although it should, by reason.
    pub not_taken: BTreeMap<NotTaken, u64>,
    /// Keys that were forgotten for others.
    pub evicted: u64,
    /// What an expression said the first time that it failed.
    pub trouble: Option<Trouble>,
}

/// The entries of all chronicles of an application.
pub struct ChronicleBook {
    pub(super) rules: Arc<RuleSet>,
    /// By event class and chronicle.
    pub(super) ledgers: BTreeMap<(Name, Name), Ledger>,
    /// Pages of chronicles that are no more.
    dead: Vec<StatePage>,
    incidents: BTreeMap<(Name, Name), Incidents>,
    /// What queries were told of entries.
    pub(super) told: Told,
}

impl fmt::Debug for ChronicleBook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChronicleBook").field("keys", &self.keys()).finish_non_exhaustive()
    }
}

/// Where an event meets a chronicle.
struct Meeting<'a> {
    chronicle: &'a CompiledChronicle,
    key: Vec<u8>,
    at: i64,
    part: i64,
}

impl ChronicleBook {
    /// A book in which nothing stands.
    pub fn new(rules: Arc<RuleSet>) -> ChronicleBook {
        let of = |(class, plan): (&Name, &EventPlan)| {
            let class = class.clone();
            let ledger = |chronicle: &CompiledChronicle| {
                (chronicle.name.clone(), if chronicle.tabled { Ledger::noting() } else { Ledger::default() })
            };
            let ledgers: Vec<(Name, Ledger)> = plan.chronicles.iter().map(ledger).collect();
            ledgers.into_iter().map(move |(name, ledger)| ((class.clone(), name), ledger))
        };
        let ledgers = rules.events.iter().flat_map(of).collect();
        ChronicleBook { rules, ledgers, dead: Vec::new(), incidents: BTreeMap::new(), told: Told::default() }
    }

    /// Whether there is any chronicle.
    pub fn is_kept(&self) -> bool {
        !self.ledgers.is_empty()
    }

    /// How many keys there are.
    pub fn keys(&self) -> usize {
        self.ledgers.values().map(Ledger::len).sum()
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        self.ledgers.values().map(Ledger::memory_bytes).sum()
    }

    pub(super) fn ledger(&self, class: &Name, chronicle: &Name) -> Option<&Ledger> {
        self.ledgers.get(&(class.clone(), chronicle.clone()))
    }

    /// Forgets everything, and takes what the journal remembers: all pages whose names begin with [`PREFIX`], by name and
    /// number. Gives how many of them are damaged; those of chronicles that are no more, or mean something else now, are
    /// removed with the next changes.
    pub fn restore(&mut self, pages: impl IntoIterator<Item = StatePage>) -> usize {
        *self = ChronicleBook::new(self.rules.clone());
        let mut damaged = 0;
        let rules = self.rules.clone();
        for page in pages {
            let found = ledger_of(&rules, &page.name).and_then(|(name, chronicle)| {
                let ledger = self.ledgers.get_mut(&name)?;
                Some(ledger.restore(&page, chronicle.signature))
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

    /// From here on, what changes can be undone.
    pub fn begin(&mut self) {
        self.ledgers.values_mut().for_each(Ledger::mark);
        self.incidents.clear();
    }

    /// Undoes what changed since the last beginning.
    pub fn undo(&mut self) {
        self.ledgers.values_mut().for_each(Ledger::undo);
        self.incidents.clear();
        self.told.undo();
    }

    /// What changed since the last beginning, to be committed with the matches; nothing of it can be undone any more.
    pub fn take_changes(&mut self) -> Vec<StatePage> {
        self.told.confirm();
        let mut pages = std::mem::take(&mut self.dead);
        for ((class, name), ledger) in &mut self.ledgers {
            let signature = chronicle_of(&self.rules, class, name).map_or(0, |chronicle| chronicle.signature);
            pages.extend(ledger.take_changes(&page_name(class, name), signature));
            ledger.mark();
        }
        pages
    }

    /// What happened since this was last asked, by event class and chronicle.
    pub fn take_incidents(&mut self) -> BTreeMap<(Name, Name), Incidents> {
        std::mem::take(&mut self.incidents)
    }

    /// Takes the events of a batch in order, and puts what rules read of chronicles into their rows, which are those that
    /// [`RuleSet::rows`] gives. Gives the same packed, to be kept with the batch; nothing if rules read nothing.
    pub fn take(&mut self, class: &Name, rows: &mut [Row], accepted_at: Timestamp) -> Bytes {
        let rules = self.rules.clone();
        let Some(plan) = rules.events.get(class).filter(|plan| !plan.chronicles.is_empty()) else {
            return Bytes::new();
        };
        let first = plan.fields.len();
        for row in rows.iter_mut() {
            for (number, chronicle) in plan.chronicles.iter().enumerate() {
                self.meet(class, plan, number, chronicle, row, accepted_at);
            }
        }
        for chronicle in &plan.chronicles {
            self.sweep(class, chronicle, accepted_at);
        }
        columns::pack(&plan.columns, rows, first)
    }

    fn meet(
        &mut self,
        class: &Name,
        plan: &EventPlan,
        number: usize,
        chronicle: &CompiledChronicle,
        row: &mut Row,
        accepted_at: Timestamp,
    ) {
        let name = (class.clone(), chronicle.name.clone());
        let Some(ledger) = self.ledgers.get_mut(&name) else { return };
        let mut key = Vec::new();
        let of_key: Row = chronicle.by.iter().map(|at| canonical(row[*at].clone())).collect();
        pack_row(&chronicle.key, &of_key, &mut key);
        let mut verdict = Ok(());
        if key.len() > BYTES_MAX {
            verdict = Err((NotTaken::Long, None));
            key.clear();
        }
        let at = match own_time(chronicle, row, accepted_at) {
            Ok(at) => at,
            Err(trouble) => {
                verdict = verdict.and(Err((NotTaken::Failed, Some(trouble))));
                accepted_at.0
            }
        };
        // Time does not go back for who has none of its own.
        let newest = ledger.get(&key).and_then(Entry::last_at);
        let at = if chronicle.time.is_none() { newest.map_or(at, |newest| newest.max(at)) } else { at };
        let meeting = Meeting { chronicle, part: chronicle.span.part(at), at, key };
        if verdict.is_ok() {
            match is_so(&chronicle.reset, row) {
                Ok(true) if ledger.get(&meeting.key).is_some() => ledger.remove(&meeting.key),
                Ok(_) => {}
                Err(trouble) => verdict = Err((NotTaken::Failed, Some(trouble))),
            }
        }
        fill(plan, number, &meeting, ledger, false, row);
        if verdict.is_ok() {
            verdict = match taken(chronicle, row) {
                Ok(Some(value)) if matches!(&value, Value::Text(text) if text.len() > BYTES_MAX) => {
                    Err((NotTaken::Long, None))
                }
                Ok(Some(value)) => {
                    let Meeting { key, at, part, .. } = &meeting;
                    let is_late =
                        ledger.get(key).is_some_and(|entry| *part < chronicle.span.first(entry.present(*part)));
                    if is_late {
                        Err((NotTaken::Late, None))
                    } else {
                        ledger.change(key, |entry| entry.take(&chronicle.span, *at, *part, value));
                        Ok(())
                    }
                }
                Ok(None) => Ok(()),
                Err(trouble) => Err((NotTaken::Failed, Some(trouble))),
            };
        }
        let mut evicted = 0;
        while ledger.len() > chronicle.keys {
            let Some((oldest, _)) = ledger.oldest() else { break };
            ledger.remove(&oldest);
            evicted += 1;
        }
        fill(plan, number, &meeting, ledger, true, row);
        if evicted > 0 || verdict.is_err() {
            let incidents = self.incidents.entry(name).or_default();
            incidents.evicted += evicted;
            if let Err((reason, trouble)) = verdict {
                *incidents.not_taken.entry(reason).or_default() += 1;
                incidents.trouble = incidents.trouble.or(trouble);
            }
        }
    }

    /// Forgets some entries that are over. Nobody can tell them from those that never were.
    fn sweep(&mut self, class: &Name, chronicle: &CompiledChronicle, accepted_at: Timestamp) {
        // Events may bring a time of their own from long ago.
        if chronicle.time.is_some() || matches!(chronicle.span, Span::Always) {
            return;
        }
        let Some(ledger) = self.ledgers.get_mut(&(class.clone(), chronicle.name.clone())) else { return };
        let part = chronicle.span.part(accepted_at.0.saturating_sub(LATENESS));
        for _ in 0..SWEPT {
            match ledger.oldest() {
                Some((key, entry)) if entry.is_over(&chronicle.span, part) => ledger.remove(&key),
                _ => break,
            }
        }
    }
}

/// Puts what rules read of one chronicle into the row of an event.
fn fill(plan: &EventPlan, number: usize, meeting: &Meeting<'_>, ledger: &Ledger, after: bool, row: &mut Row) {
    let empty = Entry::default();
    let entry = ledger.get(&meeting.key).unwrap_or(&empty);
    let span = &meeting.chronicle.span;
    let present = entry.present(meeting.part);
    let first = plan.fields.len();
    for (at, column) in plan.read.iter().enumerate() {
        if column.chronicle == number && column.after == after {
            row[first + at] = entry.get(span, present, column.statistic);
        }
    }
}

/// The time of an event, which is never later than its acceptance.
fn own_time(chronicle: &CompiledChronicle, row: &[Value], accepted_at: Timestamp) -> Result<i64, Trouble> {
    let Some(time) = &chronicle.time else { return Ok(accepted_at.0) };
    match value(time, Scene { event: row, parameters: Parameters::None })? {
        Datum::Timestamp(time) => Ok(time.0.min(accepted_at.0)),
        Datum::Null => Ok(accepted_at.0),
        _ => Err(Trouble::Type),
    }
}

/// Whether a predicate holds; none or null does not.
fn is_so(predicate: &Option<Expression>, row: &[Value]) -> Result<bool, Trouble> {
    let Some(predicate) = predicate else { return Ok(false) };
    match value(predicate, Scene { event: row, parameters: Parameters::None })? {
        Datum::Boolean(value) => Ok(value),
        Datum::Null => Ok(false),
        _ => Err(Trouble::Type),
    }
}

/// The value by which an event is taken; `None` if it is not for this chronicle.
fn taken(chronicle: &CompiledChronicle, row: &[Value]) -> Result<Option<Value>, Trouble> {
    if chronicle.when.is_some() && !is_so(&chronicle.when, row)? {
        return Ok(None);
    }
    let (Some(of), Some(kind)) = (&chronicle.of, chronicle.kind) else { return Ok(Some(Value::Null)) };
    let found = value(of, Scene { event: row, parameters: Parameters::None })?;
    match found {
        Datum::Null => Ok(None),
        Datum::Number(number) if !number.is_finite() => Err(Trouble::Range),
        found => kind.accept(found.to_value()).map(|value| Some(canonical(value))).map_err(|_| Trouble::Type),
    }
}

/// Zero has two spellings, and is one value.
fn canonical(value: Value) -> Value {
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

/// The chronicle that pages of a name are of.
fn ledger_of<'a>(rules: &'a RuleSet, page: &str) -> Option<((Name, Name), &'a CompiledChronicle)> {
    let (class, name) = page.strip_prefix(PREFIX)?.split_once('.')?;
    let (class, name): (Name, Name) = (class.parse().ok()?, name.parse().ok()?);
    let chronicle = chronicle_of(rules, &class, &name)?;
    Some(((class, name), chronicle))
}

pub(super) fn chronicle_of<'a>(rules: &'a RuleSet, class: &Name, name: &Name) -> Option<&'a CompiledChronicle> {
    rules.events.get(class)?.chronicles.iter().find(|chronicle| chronicle.name == *name)
}
