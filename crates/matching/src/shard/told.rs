//! Matches that a rule's query found, outside the index: they get the channels and captured fields that the shard knows,
//! and pass the rule's audience and the subscriptions' own filters.

use tocsin_model::{
    field::Row,
    id::{EventBatchId, EventId, Name, SubscriptionId},
    time::Timestamp,
    value::Value,
};

use super::{KeySlice, MatchSink, Run, Shard};
use crate::{
    datum::{Datum, Trouble},
    events::Events,
    filter::book::{FilterBook, Matching},
    index::table::Table,
    rule::{Memberships, RuleNumber, RuleSet},
    state::book::StateBook,
};

/// A match that a rule's query found.
#[derive(Debug, Clone, Copy)]
pub struct Told<'a> {
    /// The event's place in its batch.
    pub event_ordinal: u32,
    /// Whom to tell.
    pub subscription: SubscriptionId,
    /// The fields of the notification that the query gave, in the order of its columns.
    pub given: &'a [Value],
}

impl Shard {
    /// Gives the matches of one rule to the sink, which come in the order of their events; `events` are the batch's, as
    /// [`RuleSet::rows`] gives them. Passed over is whoever is not here or not of the rule's class, whoever does
    /// not belong to its audience, whoever's own filter the event does not meet, and whoever the rule remembers to have told.
    pub fn tell<'a>(
        &mut self,
        (batch, accepted_at): (EventBatchId, Timestamp),
        rule: RuleNumber,
        events: &[Row],
        found: impl IntoIterator<Item = Told<'a>>,
        out: &mut impl MatchSink,
    ) {
        let compiled = self.rules.rule(rule);
        let mut teller = Teller {
            rule,
            batch,
            events: &Events::of_rows(events),
            rules: &self.rules,
            table: &self.tables[compiled.class],
            audience: compiled.audience,
            memberships_at: self.rules.classes[compiled.class].memberships_at(),
            book: compiled.filters.map(|book| &self.books[book]),
            channels: &self.channels,
            matching: Matching::default(),
            known: None,
        };
        let mut found = found.into_iter().peekable();
        let Some(state) = &compiled.state else { return found.for_each(|told| teller.give(told, out)) };
        for (ordinal, event) in (0..).zip(events) {
            let of_event = std::iter::from_fn(|| found.next_if(|told| told.event_ordinal <= ordinal));
            let id = EventId { batch, ordinal };
            let moment = match StateBook::moment(state, event, accepted_at) {
                Ok(Some(moment)) => moment,
                without => {
                    of_event.for_each(drop);
                    without.err().into_iter().for_each(|trouble| out.rule_failed(rule, id, trouble));
                    continue;
                }
            };
            let rearmed = self.states.rearmed(rule, state, moment, event);
            let mut gate = self.states.gate(rule, state, moment, out);
            of_event.for_each(|told| teller.give(told, &mut gate));
            match rearmed {
                Ok(rearmed) => self.states.arm(rule, state, moment, &rearmed),
                Err(trouble) => out.rule_failed(rule, id, trouble),
            }
        }
    }
}

/// Gives matches one by one.
struct Teller<'s> {
    rule: RuleNumber,
    batch: EventBatchId,
    events: &'s Events<'s>,
    rules: &'s RuleSet,
    table: &'s Table,
    audience: Option<usize>,
    memberships_at: usize,
    book: Option<&'s FilterBook>,
    channels: &'s [Name],
    /// Which filters match the event of this place in the batch.
    matching: Matching,
    known: Option<u32>,
}

impl Teller<'_> {
    fn memberships(&self, slot: u32) -> Memberships {
        match self.table.parameter(self.memberships_at, slot) {
            Datum::Integer(bits) => Memberships(bits.cast_unsigned()),
            _ => Memberships::default(),
        }
    }

    fn give(&mut self, told: Told<'_>, out: &mut impl MatchSink) {
        let at = told.event_ordinal as usize;
        if at >= self.events.len() {
            return;
        }
        let Some(slot) = self.table.find(told.subscription) else { return };
        if self.audience.is_some() && !self.memberships(slot).meet(self.audience) {
            return;
        }
        if let Some((book, filter)) = self.book.and_then(|book| Some((book, book.of(slot)?))) {
            if self.known != Some(told.event_ordinal) {
                self.known = Some(told.event_ordinal);
                book.matching(self.events.row(at), &mut self.matching);
                if self.matching.undecided() > 0 {
                    let id = EventId { batch: self.batch, ordinal: told.event_ordinal };
                    out.subscriptions_failed(self.rule, id, Trouble::Cost, self.matching.undecided());
                }
            }
            if !self.matching.has(filter) {
                return;
            }
        }
        out.run(Run {
            rule: self.rule,
            batch: self.batch,
            event_ordinal: told.event_ordinal,
            slots: &[slot],
            keys: KeySlice::default(),
            events: self.events,
            at,
            given: told.given,
            rules: self.rules,
            table: self.table,
            channels: self.channels,
        });
    }
}
