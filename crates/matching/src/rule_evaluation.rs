//! Evaluates one rule over a window of consecutive events: index lookup, then residual checks.
//!
//! Events are processed in windows. So the memory accesses of one event overlap with those of the next, and a key that
//! several rules share is looked up once.

use std::hint::black_box;

use tocsin_model::{
    field::Row,
    id::{EventBatchId, EventId, Name},
    value::Value,
};

use crate::{
    eval_value::{EvalError, EvalValue, write_key},
    evaluate::{EvalContext, Parameters, holds, value},
    events::Events,
    expression::{Expression, Kind},
    filter::{filter_table::MatchingFilters, index::Counts},
    index::{
        chunks::{EntrySlice, KeySlice, Query, Search},
        groups::Groups,
        key::{Bound, Measure},
        key_table::KeyNumber,
        table::{Bits, Table},
    },
    matches::{MatchSink, Run},
    residual::Deadline,
    rule::{
        branches::{Branch, Ordered, Range},
        rule_set::{CompiledRule, RuleNumber, RuleSet},
    },
    subscription_index::SubscriptionIndex,
};

/// Most events in a window.
pub(crate) const WINDOW: usize = 64;

/// Reusable buffers of a shard's matcher.
#[derive(Default)]
pub(crate) struct MatchScratch {
    key: Vec<u8>,
    /// The keys of the window's events, by [`Branch::asks`].
    answers: Vec<Vec<EventKey>>,
    probes: Vec<Probe>,
    slots: Vec<u32>,
    union: Vec<u32>,
    seen: Bits,
    /// For each filter table, whether `matching` holds the result for the current event, and that result.
    matched: Vec<(bool, MatchingFilters)>,
}

/// One lookup of an event in a group.
#[derive(Debug, Clone, Copy)]
struct Probe {
    /// The event's index in the window.
    at: u32,
    group: u32,
    query: Query,
}

/// The key of an event in a key table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventKey {
    NotLookedUp,
    /// The event has no key, or one that no subscription has: there is no match.
    NoMatch,
    /// The key expression exceeded the step limit.
    OverLimit,
    Key(KeyNumber),
}

impl MatchScratch {
    /// Prepares the buffers for a window. Filters are matched event by event, so with filter tables a window has one
    /// event.
    pub fn begin(&mut self, questions: usize, filter_tables: usize, events: usize) {
        self.answers.resize_with(questions, Vec::new);
        for answers in &mut self.answers {
            answers.clear();
            answers.resize(events, EventKey::NotLookedUp);
        }
        self.matched.resize_with(filter_tables, Default::default);
        self.matched.iter_mut().for_each(|(is_known, _)| *is_known = false);
    }
}

impl MatchScratch {
    /// The work done so far on the filters of a table.
    pub fn filter_counts(&self, filter_table: usize) -> Counts {
        self.matched.get(filter_table).map(|(_, matching)| matching.counts()).unwrap_or_default()
    }
}

/// The evaluation of one rule over the events of a window.
pub(crate) struct RuleEvaluation<'a> {
    pub index: &'a SubscriptionIndex,
    pub rules: &'a RuleSet,
    pub number: RuleNumber,
    pub rule: &'a CompiledRule,
    pub table: &'a Table,
    pub batch: EventBatchId,
    /// The index in the batch of the window's first event, and the number of events.
    pub first: usize,
    pub count: usize,
    /// All events of the batch.
    pub events: &'a Events<'a>,
    pub channels: &'a [Name],
    /// The deadline of the rule for this batch, with its clock.
    pub deadline: Option<Deadline<'a>>,
}

impl<'a> RuleEvaluation<'a> {
    /// Evaluates the rule for every event of the window, in order.
    ///
    /// # Errors
    /// The event at which the deadline passed; the events after it were not evaluated.
    pub fn answer(&self, scratch: &mut MatchScratch, out: &mut impl MatchSink) -> Result<(), EventId> {
        match self.rule.branches.as_slice() {
            [only] if only.residual.is_empty() && self.rule.filters.is_none() => {
                self.evaluate_unfiltered(only, scratch, out);
                if self.is_late() {
                    self.count.checked_sub(1).map_or(Ok(()), |last| Err(self.id(last)))
                } else {
                    Ok(())
                }
            }
            _ => {
                for at in 0..self.count {
                    self.evaluate_event(at, scratch, out);
                    if self.is_late() {
                        return Err(self.id(at));
                    }
                }
                Ok(())
            }
        }
    }

    /// Whether the deadline has passed.
    pub fn is_late(&self) -> bool {
        self.deadline.is_some_and(Deadline::is_past)
    }

    /// The id of an event of the window.
    pub fn id(&self, at: usize) -> EventId {
        EventId { batch: self.batch, ordinal: (self.first + at) as u32 }
    }

    /// An event of the window as a row. Callers that can work on cells use `events`, which avoids building rows.
    pub fn event(&self, at: usize) -> &'a [Value] {
        self.events.row(self.first + at)
    }

    fn context(&self, at: usize) -> EvalContext<'a> {
        EvalContext { event: self.event(at), parameters: Parameters::None }
    }

    /// Without a residual, all entries found by the index match and are passed on without a copy.
    fn evaluate_unfiltered(&self, branch: &'a Branch, scratch: &mut MatchScratch, out: &mut impl MatchSink) {
        let index = &self.index.groups[self.rule.first_branch];
        let mut probes = std::mem::take(&mut scratch.probes);
        probes.clear();
        self.probe_all(branch, index, &mut probes, scratch, out);
        // One prefetch step for all probes: see `Search`.
        black_box(probes.iter().fold(false, |sum, probe| sum ^ index.group(probe.group).touch()));
        let mut searches = [(0, Search::default()); WINDOW];
        let mut found = 0;
        for (number, probe) in probes.iter().enumerate() {
            let search = index.group(probe.group).search(probe.query);
            searches[found] = (number, search.unwrap_or_default());
            // Without a branch: whether an event finds an entry is unpredictable.
            found += usize::from(search.is_some());
        }
        let searches = searches[..found].iter().map(|(number, search)| {
            let probe = &probes[*number];
            (index.group(probe.group), *search, probe)
        });
        black_box(searches.clone().fold(0, |sum, (group, search, _)| sum ^ group.touch_at(search)));
        for (group, search, probe) in searches {
            group.answer_at(search, probe.query, &mut |found| self.emit_live(probe.at as usize, found, out));
        }
        scratch.probes = probes;
    }

    /// Collects the lookups of all events of the window.
    fn probe_all(
        &self,
        branch: &'a Branch,
        index: &Groups,
        probes: &mut Vec<Probe>,
        scratch: &mut MatchScratch,
        out: &mut impl MatchSink,
    ) {
        let MatchScratch { answers, key, .. } = scratch;
        let answers = &mut answers[branch.asks];
        // The most common case.
        if let Range::One(only) = &branch.range
            && let (Kind::Event(field), Measure::Integer) = (&only.event.kind, only.measure)
            // A number may lie between two integers.
            && only.event.kind_of_value == crate::expression::Type::Integer
            && branch.event_guards.is_empty()
        {
            for (at, answer) in answers.iter_mut().enumerate() {
                let Some(value) = self.events.integer(self.first + at, *field) else { continue };
                if *answer == EventKey::NotLookedUp {
                    *answer = self.evaluate_branch_key(branch, at, key);
                }
                let group = match *answer {
                    EventKey::Key(number) => index.place(number),
                    EventKey::OverLimit => {
                        out.rule_failed(self.number, self.id(at), EvalError::Cost);
                        None
                    }
                    EventKey::NoMatch | EventKey::NotLookedUp => None,
                };
                if let Some(group) = group
                    && let Some(bound) = Measure::bound_at(only.operator, value)
                {
                    probes.push(Probe { at: at as u32, group, query: Query::Keys(bound) });
                }
            }
            return;
        }
        for at in 0..self.count {
            match self.probe(branch, index, at, scratch) {
                Ok(Some((group, query))) => probes.push(Probe { at: at as u32, group, query }),
                Ok(None) => {}
                Err(error) => out.rule_failed(self.number, self.id(at), error),
            }
        }
    }

    /// Evaluates the rule for one event of the window.
    pub fn evaluate_event(&self, at: usize, scratch: &mut MatchScratch, out: &mut impl MatchSink) {
        let single = self.rule.branches.len() == 1;
        scratch.union.clear();
        for (branch, number) in self.rule.branches.iter().zip(self.rule.first_branch..) {
            match self.evaluate_branch(branch, &self.index.groups[number], single, at, scratch, out) {
                // The caller that measures the time reports this once.
                Ok(()) | Err(EvalError::Time) => {}
                Err(error) => out.rule_failed(self.number, self.id(at), error),
            }
        }
        if !single {
            for slot in &scratch.union {
                scratch.seen.clear(*slot);
            }
            self.give(at, &scratch.union, KeySlice::default(), out);
        }
    }

    fn evaluate_branch(
        &self,
        branch: &'a Branch,
        index: &Groups,
        single: bool,
        at: usize,
        scratch: &mut MatchScratch,
        out: &mut impl MatchSink,
    ) -> Result<(), EvalError> {
        if let (Some(filter_table), false) = (self.rule.filters, branch.is_indexed()) {
            if self.passes_guards(branch, at)? {
                self.evaluate_by_filter(branch, index, filter_table, single, at, scratch, out)?;
            }
            return Ok(());
        }
        let Some((group, query)) = self.probe(branch, index, at, scratch)? else { return Ok(()) };
        let slots = &mut scratch.slots;
        slots.clear();
        index.group(group).answer(query, &mut |found| self.append_live_slots(found, slots));
        if let (Some(filter_table), false) = (self.rule.filters, slots.is_empty()) {
            let matching = self.matching(filter_table, at, &mut scratch.matched, out);
            let filter_table = &self.index.filter_tables[filter_table];
            scratch.slots.retain(|slot| filter_table.of(*slot).is_none_or(|filter| matching.has(filter)));
        }
        self.check(branch, single, at, scratch, out)
    }

    /// Evaluates a branch without an index, from the subscriptions' own filters.
    #[allow(clippy::too_many_arguments)]
    fn evaluate_by_filter(
        &self,
        branch: &Branch,
        index: &Groups,
        filter_table: usize,
        single: bool,
        at: usize,
        scratch: &mut MatchScratch,
        out: &mut impl MatchSink,
    ) -> Result<(), EvalError> {
        let MatchScratch { slots, matched, .. } = scratch;
        slots.clear();
        let matching = self.matching(filter_table, at, matched, out);
        let whole = branch.residual.is_empty() && single;
        let keys = &self.index.keys[branch.asks];
        let mut take = |key: &[u8]| {
            let Some(group) = keys.find(key).and_then(|number| index.find(number)) else { return };
            group.answer(Query::All, &mut |found| {
                if whole { self.emit_live(at, found, out) } else { self.append_live_slots(found, slots) }
            });
        };
        take(&[]);
        matching.numbers.iter().for_each(|number| take(&number.to_le_bytes()));
        if whole { Ok(()) } else { self.check(branch, single, at, scratch, out) }
    }

    /// The filters of a table that match the event; computed once for all rules.
    fn matching<'b>(
        &self,
        filter_table: usize,
        at: usize,
        matched: &'b mut [(bool, MatchingFilters)],
        out: &mut impl MatchSink,
    ) -> &'b MatchingFilters {
        let (is_known, matching) = &mut matched[filter_table];
        if !*is_known {
            *is_known = true;
            self.index.filter_tables[filter_table].matching(self.event(at), matching);
            if matching.undecided() > 0 {
                out.subscriptions_failed(self.number, self.id(at), EvalError::Cost, matching.undecided());
            }
        }
        matching
    }

    /// Checks the residual for the candidates in `scratch.slots`, and emits or collects those that pass.
    fn check(
        &self,
        branch: &Branch,
        single: bool,
        at: usize,
        scratch: &mut MatchScratch,
        out: &mut impl MatchSink,
    ) -> Result<(), EvalError> {
        let MatchScratch { slots, union, seen, .. } = scratch;
        for check in &branch.residual {
            if slots.is_empty() {
                return Ok(());
            }
            let stopped = check.retain(slots, self.context(at), self.table, self.deadline)?;
            if stopped > 0 {
                out.subscriptions_failed(self.number, self.id(at), EvalError::Cost, stopped);
            }
        }
        if single {
            self.give(at, slots, KeySlice::default(), out);
        } else {
            union.extend(slots.iter().copied().filter(|slot| seen.set(*slot)));
        }
        Ok(())
    }

    /// Whether the event passes the branch's guards.
    #[inline]
    fn passes_guards(&self, branch: &Branch, at: usize) -> Result<bool, EvalError> {
        for guard in &branch.event_guards {
            if !holds(guard, self.context(at))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The lookup for an event's candidates, if there can be any.
    #[inline]
    fn probe(
        &self,
        branch: &'a Branch,
        index: &Groups,
        at: usize,
        scratch: &mut MatchScratch,
    ) -> Result<Option<(u32, Query)>, EvalError> {
        if !self.passes_guards(branch, at)? {
            return Ok(None);
        }
        let Some(query) = self.query(branch, at)? else { return Ok(None) };
        let mut answer = scratch.answers[branch.asks][at];
        if answer == EventKey::NotLookedUp {
            answer = self.evaluate_branch_key(branch, at, &mut scratch.key);
            scratch.answers[branch.asks][at] = answer;
        }
        match answer {
            EventKey::Key(number) => Ok(index.place(number).map(|group| (group, query))),
            EventKey::OverLimit => Err(EvalError::Cost),
            EventKey::NoMatch | EventKey::NotLookedUp => Ok(None),
        }
    }

    /// The value of an expression over an event of the window.
    #[inline]
    fn value(&self, expression: &'a Expression, at: usize) -> Result<EvalValue<'a>, EvalError> {
        match expression.kind {
            Kind::Event(field) => Ok(self.events.eval_value(self.first + at, field)),
            _ => value(expression, self.context(at)),
        }
    }

    /// The query for a group; `None` if the event's value has no order, so that there is no match.
    #[inline]
    fn query(&self, branch: &'a Branch, at: usize) -> Result<Option<Query>, EvalError> {
        let of_event = |ordered: &'a Ordered| match self.value(&ordered.event, at) {
            Ok(eval_value) => Ok(Some(eval_value)),
            Err(EvalError::Cost) => Err(EvalError::Cost),
            Err(_) => Ok(None),
        };
        Ok(match &branch.range {
            Range::None => Some(Query::All),
            Range::One(only) => {
                of_event(only)?.and_then(|eval_value| only.measure.bound(only.operator, &eval_value)).map(Query::Keys)
            }
            Range::Two(ends) => of_event(&ends[0])?.and_then(|eval_value| {
                let low = ends[0].measure.bound(ends[0].operator, &eval_value)?;
                let high = ends[1].measure.bound(ends[1].operator, &eval_value)?;
                match (low, high) {
                    (Bound::UpTo(low), Bound::From(high)) => Some(Query::Around(low, high)),
                    _ => None,
                }
            }),
        })
    }

    /// Looks up the event's key.
    fn evaluate_branch_key(&self, branch: &Branch, at: usize, key: &mut Vec<u8>) -> EventKey {
        key.clear();
        for part in &branch.keys {
            let written = match part.event.kind {
                Kind::Event(field) => self.events.write_key(self.first + at, field, key),
                _ => self.value(&part.event, at).and_then(|eval_value| write_key(&eval_value, key)),
            };
            match written {
                Ok(()) => {}
                Err(EvalError::Cost) => return EventKey::OverLimit,
                Err(_) => return EventKey::NoMatch,
            }
        }
        self.index.keys[branch.asks].find(key).map_or(EventKey::NoMatch, EventKey::Key)
    }

    fn append_live_slots(&self, found: EntrySlice<'_>, slots: &mut Vec<u32>) {
        if self.table.has_dead() {
            slots.extend(found.slots.iter().copied().filter(|slot| !self.table.is_dead(*slot)));
        } else {
            slots.extend_from_slice(found.slots);
        }
    }

    /// Emits what the index found, without a copy; in parts around removed subscriptions, which are few.
    #[inline]
    fn emit_live(&self, at: usize, found: EntrySlice<'_>, out: &mut impl MatchSink) {
        if !self.table.has_dead() {
            return self.give(at, found.slots, found.keys, out);
        }
        let mut from = 0;
        for (place, slot) in found.slots.iter().enumerate() {
            if self.table.is_dead(*slot) {
                self.give(at, &found.slots[from..place], found.keys.slice(from, place), out);
                from = place + 1;
            }
        }
        self.give(at, &found.slots[from..], found.keys.slice(from, found.slots.len()), out);
    }

    #[inline]
    fn give(&self, at: usize, slots: &[u32], keys: KeySlice<'_>, out: &mut impl MatchSink) {
        if !slots.is_empty() {
            out.run(Run {
                rule: self.number,
                batch: self.batch,
                event_ordinal: (self.first + at) as u32,
                slots,
                keys,
                events: self.events,
                at: self.first + at,
                given: &[],
                rules: self.rules,
                table: self.table,
                channels: self.channels,
            });
        }
    }
}

/// Reports the matches of one event by the rules of an index. They have no state and no time limit.
pub(crate) fn match_event(
    index: &SubscriptionIndex,
    class: &Name,
    event: &Row,
    scratch: &mut MatchScratch,
    out: &mut impl MatchSink,
) {
    let rules = &index.rules;
    let Some(plan) = rules.events.get(class).filter(|plan| !plan.rules.is_empty()) else { return };
    let events = Events::of_rows(std::slice::from_ref(event));
    scratch.begin(index.keys.len(), index.filter_tables.len(), 1);
    for number in &plan.rules {
        let rule = rules.rule(*number);
        let evaluation = RuleEvaluation {
            index,
            rules,
            number: *number,
            rule,
            table: &index.tables[rule.class],
            batch: EventBatchId(0),
            first: 0,
            count: 1,
            events: &events,
            channels: &index.channels,
            deadline: None,
        };
        // Without a deadline, no event is late.
        let _ = evaluation.answer(scratch, out);
    }
}
