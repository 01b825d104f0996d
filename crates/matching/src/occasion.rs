//! A rule meets some consecutive events: what it asks the index for each of them, and what is left of the answers.
//!
//! Events come in windows, so that what a rule reads of the index for one event does not wait for what it reads for the
//! event before, and what several rules ask the events is asked once.

use std::hint::black_box;

use tocsin_model::{
    id::{EventBatchId, EventId, Name},
    time::Timestamp,
    value::Value,
};

use crate::{
    datum::{Datum, Trouble, write_key},
    evaluate::{Parameters, Scene, holds, value},
    events::Events,
    expression::{Expression, Kind},
    filter::{book::Matching, index::Counts},
    index::{
        chunks::{KeySlice, Query, Search, Stretch},
        groups::Groups,
        key::{Bound, Measure},
        numbers::KeyNumber,
        table::{Bits, Table},
    },
    residual::Until,
    rule::{Branch, CompiledRule, Ordered, Range, RuleNumber, RuleSet},
    shard::{MatchSink, Run, Shard},
    state::{book::StateBook, compile::CompiledState},
};

/// Most events of a window.
pub(crate) const WINDOW: usize = 64;

/// Memory that is used again and again.
#[derive(Default)]
pub(crate) struct Desk {
    pub key: Vec<u8>,
    /// What the events of the window answered, by [`Branch::asks`].
    answers: Vec<Vec<Answer>>,
    probes: Vec<Probe>,
    slots: Vec<u32>,
    union: Vec<u32>,
    seen: Bits,
    /// For each book, whether `matching` is of the event at hand, and what it found there.
    matched: Vec<(bool, Matching)>,
}

/// Where an event looks for those whom it concerns.
#[derive(Debug, Clone, Copy)]
struct Probe {
    /// The event's place in the window.
    at: u32,
    group: u32,
    query: Query,
}

/// An event's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    NotAsked,
    /// It has none, or one that no subscription has: nothing can match.
    Nobody,
    /// It took too many steps.
    Costly,
    Key(KeyNumber),
}

impl Desk {
    /// Makes room for a window of so many events. Filters are matched event by event, so that where there are books,
    /// the window is of one.
    pub fn begin(&mut self, questions: usize, books: usize, events: usize) {
        self.answers.resize_with(questions, Vec::new);
        for answers in &mut self.answers {
            answers.clear();
            answers.resize(events, Answer::NotAsked);
        }
        self.matched.resize_with(books, Default::default);
        self.matched.iter_mut().for_each(|(is_known, _)| *is_known = false);
    }
}

impl Desk {
    /// What was done with the filters of a book so far.
    pub fn filter_counts(&self, book: usize) -> Counts {
        self.matched.get(book).map(|(_, matching)| matching.counts()).unwrap_or_default()
    }
}

/// One rule meets the events of a window.
pub(crate) struct Occasion<'a> {
    pub shard: &'a Shard,
    pub rules: &'a RuleSet,
    pub number: RuleNumber,
    pub rule: &'a CompiledRule,
    pub table: &'a Table,
    pub batch: EventBatchId,
    /// The place in the batch of the window's first event, and how many there are.
    pub first: usize,
    pub count: usize,
    /// Those of the whole batch.
    pub events: &'a Events<'a>,
    pub channels: &'a [Name],
    /// When the rule's time for the batch is over, by this clock.
    pub until: Option<Until<'a>>,
}

impl<'a> Occasion<'a> {
    /// Answers for a rule that remembers: what an event re-arms waited before it, and is not told of it. `again`: the
    /// events have re-armed what they re-arm.
    ///
    /// # Errors
    /// As [`Occasion::answer`].
    pub fn answer_once(
        &self,
        state: &CompiledState,
        (accepted_at, again): (Timestamp, bool),
        states: &mut StateBook,
        desk: &mut Desk,
        out: &mut impl MatchSink,
    ) -> Result<(), EventId> {
        for at in 0..self.count {
            let event = self.event(at);
            let moment = match StateBook::moment(state, event, accepted_at) {
                Ok(Some(moment)) => moment,
                without => {
                    without.err().into_iter().for_each(|trouble| out.rule_failed(self.number, self.id(at), trouble));
                    continue;
                }
            };
            let rearmed = match again {
                true => Ok(Vec::new()),
                false => states.rearmed(self.number, state, moment, event),
            };
            self.answer_one(at, desk, &mut states.gate(self.number, state, moment, out));
            match rearmed {
                Ok(rearmed) => states.arm(self.number, state, moment, &rearmed),
                Err(trouble) => out.rule_failed(self.number, self.id(at), trouble),
            }
            if self.is_late() {
                return Err(self.id(at));
            }
        }
        Ok(())
    }

    /// Answers every event of the window, in order.
    ///
    /// # Errors
    /// The event at which the rule's time was over; the others after it were not answered.
    pub fn answer(&self, desk: &mut Desk, out: &mut impl MatchSink) -> Result<(), EventId> {
        match self.rule.branches.as_slice() {
            [only] if only.residual.is_empty() && self.rule.filters.is_none() => {
                self.answer_straight(only, desk, out);
                if self.is_late() {
                    self.count.checked_sub(1).map_or(Ok(()), |last| Err(self.id(last)))
                } else {
                    Ok(())
                }
            }
            _ => {
                for at in 0..self.count {
                    self.answer_one(at, desk, out);
                    if self.is_late() {
                        return Err(self.id(at));
                    }
                }
                Ok(())
            }
        }
    }

    fn is_late(&self) -> bool {
        self.until.is_some_and(Until::is_over)
    }

    fn id(&self, at: usize) -> EventId {
        EventId { batch: self.batch, ordinal: (self.first + at) as u32 }
    }

    /// An event of the window as a row. Who can do without asks `events`, so that no rows are made.
    fn event(&self, at: usize) -> &'a [Value] {
        self.events.row(self.first + at)
    }

    fn scene(&self, at: usize) -> Scene<'a> {
        Scene { event: self.event(at), parameters: Parameters::None }
    }

    /// Whatever the index finds matches: it is handed over as it lies there.
    fn answer_straight(&self, branch: &'a Branch, desk: &mut Desk, out: &mut impl MatchSink) {
        let index = &self.shard.indexes[self.rule.first_branch];
        let mut probes = std::mem::take(&mut desk.probes);
        probes.clear();
        self.probe_all(branch, index, &mut probes, desk, out);
        // Step by step for all of them: see `Search`.
        black_box(probes.iter().fold(false, |sum, probe| sum ^ index.group(probe.group).touch()));
        let mut searches = [(0, Search::default()); WINDOW];
        let mut found = 0;
        for (number, probe) in probes.iter().enumerate() {
            let search = index.group(probe.group).search(probe.query);
            searches[found] = (number, search.unwrap_or_default());
            // No branch here: whether an event meets anybody cannot be foreseen.
            found += usize::from(search.is_some());
        }
        let searches = searches[..found].iter().map(|(number, search)| {
            let probe = &probes[*number];
            (index.group(probe.group), *search, probe)
        });
        black_box(searches.clone().fold(0, |sum, (group, search, _)| sum ^ group.touch_at(search)));
        for (group, search, probe) in searches {
            group.answer_at(search, probe.query, &mut |found| self.give_living(probe.at as usize, found, out));
        }
        desk.probes = probes;
    }

    /// Where each event of the window is to look.
    fn probe_all(
        &self,
        branch: &'a Branch,
        index: &Groups,
        probes: &mut Vec<Probe>,
        desk: &mut Desk,
        out: &mut impl MatchSink,
    ) {
        let Desk { answers, key, .. } = desk;
        let answers = &mut answers[branch.asks];
        // By far the most usual.
        if let Range::One(only) = &branch.range
            && let (Kind::Event(field), Measure::Integer) = (&only.event.kind, only.measure)
            // A number may lie between two integers.
            && only.event.kind_of_value == crate::expression::Type::Integer
            && branch.event_guards.is_empty()
        {
            for (at, answer) in answers.iter_mut().enumerate() {
                let Some(value) = self.events.integer(self.first + at, *field) else { continue };
                if *answer == Answer::NotAsked {
                    *answer = self.ask(branch, at, key);
                }
                let group = match *answer {
                    Answer::Key(number) => index.place(number),
                    Answer::Costly => {
                        out.rule_failed(self.number, self.id(at), Trouble::Cost);
                        None
                    }
                    Answer::Nobody | Answer::NotAsked => None,
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
            match self.probe(branch, index, at, desk) {
                Ok(Some((group, query))) => probes.push(Probe { at: at as u32, group, query }),
                Ok(None) => {}
                Err(trouble) => out.rule_failed(self.number, self.id(at), trouble),
            }
        }
    }

    fn answer_one(&self, at: usize, desk: &mut Desk, out: &mut impl MatchSink) {
        let single = self.rule.branches.len() == 1;
        desk.union.clear();
        for (branch, number) in self.rule.branches.iter().zip(self.rule.first_branch..) {
            match self.answer_branch(branch, &self.shard.indexes[number], single, at, desk, out) {
                // Whoever counts the time says so, once.
                Ok(()) | Err(Trouble::Time) => {}
                Err(trouble) => out.rule_failed(self.number, self.id(at), trouble),
            }
        }
        if !single {
            for slot in &desk.union {
                desk.seen.clear(*slot);
            }
            self.give(at, &desk.union, KeySlice::default(), out);
        }
    }

    fn answer_branch(
        &self,
        branch: &'a Branch,
        index: &Groups,
        single: bool,
        at: usize,
        desk: &mut Desk,
        out: &mut impl MatchSink,
    ) -> Result<(), Trouble> {
        if let (Some(book), false) = (self.rule.filters, branch.is_indexed()) {
            if self.concerns(branch, at)? {
                self.answer_by_filter(branch, index, book, single, at, desk, out)?;
            }
            return Ok(());
        }
        let Some((group, query)) = self.probe(branch, index, at, desk)? else { return Ok(()) };
        let slots = &mut desk.slots;
        slots.clear();
        index.group(group).answer(query, &mut |found| self.take_living(found, slots));
        if let (Some(book), false) = (self.rule.filters, slots.is_empty()) {
            let matching = self.matching(book, at, &mut desk.matched, out);
            let book = &self.shard.books[book];
            desk.slots.retain(|slot| book.of(*slot).is_none_or(|filter| matching.has(filter)));
        }
        self.check(branch, single, at, desk, out)
    }

    /// Answers a branch that no index answers, from the subscriptions' own filters.
    #[allow(clippy::too_many_arguments)]
    fn answer_by_filter(
        &self,
        branch: &Branch,
        index: &Groups,
        book: usize,
        single: bool,
        at: usize,
        desk: &mut Desk,
        out: &mut impl MatchSink,
    ) -> Result<(), Trouble> {
        let Desk { slots, matched, .. } = desk;
        slots.clear();
        let matching = self.matching(book, at, matched, out);
        let whole = branch.residual.is_empty() && single;
        let keys = &self.shard.keys[branch.asks];
        let mut take = |key: &[u8]| {
            let Some(group) = keys.find(key).and_then(|number| index.find(number)) else { return };
            group.answer(Query::All, &mut |found| {
                if whole { self.give_living(at, found, out) } else { self.take_living(found, slots) }
            });
        };
        take(&[]);
        matching.numbers.iter().for_each(|number| take(&number.to_le_bytes()));
        if whole { Ok(()) } else { self.check(branch, single, at, desk, out) }
    }

    /// Which filters of a book match the event; found once for all rules.
    fn matching<'b>(
        &self,
        book: usize,
        at: usize,
        matched: &'b mut [(bool, Matching)],
        out: &mut impl MatchSink,
    ) -> &'b Matching {
        let (is_known, matching) = &mut matched[book];
        if !*is_known {
            *is_known = true;
            self.shard.books[book].matching(self.event(at), matching);
            if matching.undecided() > 0 {
                out.subscriptions_failed(self.number, self.id(at), Trouble::Cost, matching.undecided());
            }
        }
        matching
    }

    /// Checks the residual for the candidates in `desk.slots`, and gives or collects those that are left.
    fn check(
        &self,
        branch: &Branch,
        single: bool,
        at: usize,
        desk: &mut Desk,
        out: &mut impl MatchSink,
    ) -> Result<(), Trouble> {
        let Desk { slots, union, seen, .. } = desk;
        for check in &branch.residual {
            if slots.is_empty() {
                return Ok(());
            }
            let stopped = check.retain(slots, self.scene(at), self.table, self.until)?;
            if stopped > 0 {
                out.subscriptions_failed(self.number, self.id(at), Trouble::Cost, stopped);
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
    fn concerns(&self, branch: &Branch, at: usize) -> Result<bool, Trouble> {
        for guard in &branch.event_guards {
            if !holds(guard, self.scene(at))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Where to look for an event's candidates, if there can be any.
    #[inline]
    fn probe(
        &self,
        branch: &'a Branch,
        index: &Groups,
        at: usize,
        desk: &mut Desk,
    ) -> Result<Option<(u32, Query)>, Trouble> {
        if !self.concerns(branch, at)? {
            return Ok(None);
        }
        let Some(query) = self.query(branch, at)? else { return Ok(None) };
        let mut answer = desk.answers[branch.asks][at];
        if answer == Answer::NotAsked {
            answer = self.ask(branch, at, &mut desk.key);
            desk.answers[branch.asks][at] = answer;
        }
        match answer {
            Answer::Key(number) => Ok(index.place(number).map(|group| (group, query))),
            Answer::Costly => Err(Trouble::Cost),
            Answer::Nobody | Answer::NotAsked => Ok(None),
        }
    }

    /// The value of an expression over an event of the window.
    #[inline]
    fn value(&self, expression: &'a Expression, at: usize) -> Result<Datum<'a>, Trouble> {
        match expression.kind {
            Kind::Event(field) => Ok(self.events.datum(self.first + at, field)),
            _ => value(expression, self.scene(at)),
        }
    }

    /// What to ask of a group; `None` where the event's value has no order, so that nothing can match.
    #[inline]
    fn query(&self, branch: &'a Branch, at: usize) -> Result<Option<Query>, Trouble> {
        let of_event = |ordered: &'a Ordered| match self.value(&ordered.event, at) {
            Ok(datum) => Ok(Some(datum)),
            Err(Trouble::Cost) => Err(Trouble::Cost),
            Err(_) => Ok(None),
        };
        Ok(match &branch.range {
            Range::None => Some(Query::All),
            Range::One(only) => {
                of_event(only)?.and_then(|datum| only.measure.bound(only.operator, &datum)).map(Query::Keys)
            }
            Range::Two(ends) => of_event(&ends[0])?.and_then(|datum| {
                let low = ends[0].measure.bound(ends[0].operator, &datum)?;
                let high = ends[1].measure.bound(ends[1].operator, &datum)?;
                match (low, high) {
                    (Bound::UpTo(low), Bound::From(high)) => Some(Query::Around(low, high)),
                    _ => None,
                }
            }),
        })
    }

    /// Looks the event's key up.
    fn ask(&self, branch: &Branch, at: usize, key: &mut Vec<u8>) -> Answer {
        key.clear();
        for part in &branch.keys {
            let written = match part.event.kind {
                Kind::Event(field) => self.events.write_key(self.first + at, field, key),
                _ => self.value(&part.event, at).and_then(|datum| write_key(&datum, key)),
            };
            match written {
                Ok(()) => {}
                Err(Trouble::Cost) => return Answer::Costly,
                Err(_) => return Answer::Nobody,
            }
        }
        self.shard.keys[branch.asks].find(key).map_or(Answer::Nobody, Answer::Key)
    }

    fn take_living(&self, found: Stretch<'_>, slots: &mut Vec<u32>) {
        if self.table.has_dead() {
            slots.extend(found.slots.iter().copied().filter(|slot| !self.table.is_dead(*slot)));
        } else {
            slots.extend_from_slice(found.slots);
        }
    }

    /// Gives what the index found, without copying it; in parts around removed subscriptions, which are few.
    #[inline]
    fn give_living(&self, at: usize, found: Stretch<'_>, out: &mut impl MatchSink) {
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
