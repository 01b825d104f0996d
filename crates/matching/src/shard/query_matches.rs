//! Matches found by a rule's query, outside the index. The shard adds channels and captured fields, and applies the
//! rule's audience and the subscriptions' own filters.

use tocsin_model::{
    field::Row,
    id::{EventBatchId, EventId, Name, SubscriptionId},
    time::Timestamp,
    value::Value,
};

use super::{KeySlice, MatchSink, Run, Shard};
use crate::{
    eval_value::{EvalError, EvalValue},
    events::Events,
    filter::filter_table::{FilterTable, MatchingFilters},
    index::table::Table,
    rule::{Memberships, RuleNumber, RuleSet},
    state::state_table::StateTable,
};

/// A match found by a rule's query.
#[derive(Debug, Clone, Copy)]
pub struct ExternalMatch<'a> {
    /// The event's index in its batch.
    pub event_ordinal: u32,
    /// The subscription that matches.
    pub subscription: SubscriptionId,
    /// The notification fields that the query provides, in the order of its columns.
    pub given: &'a [Value],
}

impl Shard {
    /// Reports the matches of one rule to the sink. `found` is in the order of events; `events` are the rows of the
    /// batch, as [`RuleSet::rows`] returns them. Skipped are:
    /// - subscriptions that are not in this shard, or of another class,
    /// - subscribers outside the rule's audience,
    /// - subscriptions whose own filter does not match the event,
    /// - matches that the rule's state suppresses.
    pub fn emit_external_matches<'a>(
        &mut self,
        (batch, accepted_at): (EventBatchId, Timestamp),
        rule: RuleNumber,
        events: &[Row],
        found: impl IntoIterator<Item = ExternalMatch<'a>>,
        out: &mut impl MatchSink,
    ) {
        let compiled = self.rules.rule(rule);
        let mut emitter = ExternalMatchEmitter {
            rule,
            batch,
            events: &Events::of_rows(events),
            rules: &self.rules,
            table: &self.tables[compiled.class],
            audience: compiled.audience,
            memberships_at: self.rules.classes[compiled.class].memberships_at(),
            filter_table: compiled.filters.map(|filter_table| &self.filter_tables[filter_table]),
            channels: &self.channels,
            matching: MatchingFilters::default(),
            known: None,
        };
        let mut found = found.into_iter().peekable();
        let Some(state) = &compiled.state else { return found.for_each(|query_match| emitter.give(query_match, out)) };
        for (ordinal, event) in (0..).zip(events) {
            let of_event = std::iter::from_fn(|| found.next_if(|query_match| query_match.event_ordinal <= ordinal));
            let id = EventId { batch, ordinal };
            let state_event = match StateTable::state_event(state, event, accepted_at) {
                Ok(Some(state_event)) => state_event,
                without => {
                    of_event.for_each(drop);
                    without.err().into_iter().for_each(|error| out.rule_failed(rule, id, error));
                    continue;
                }
            };
            let rearmed = self.states.rearmed(rule, state, state_event, event);
            let mut suppressing_sink = self.states.suppressing_sink(rule, state, state_event, out);
            of_event.for_each(|query_match| emitter.give(query_match, &mut suppressing_sink));
            match rearmed {
                Ok(rearmed) => self.states.arm(rule, state, state_event, &rearmed),
                Err(error) => out.rule_failed(rule, id, error),
            }
        }
    }
}

/// Reports matches one by one.
struct ExternalMatchEmitter<'s> {
    rule: RuleNumber,
    batch: EventBatchId,
    events: &'s Events<'s>,
    rules: &'s RuleSet,
    table: &'s Table,
    audience: Option<usize>,
    memberships_at: usize,
    filter_table: Option<&'s FilterTable>,
    channels: &'s [Name],
    /// The filters that match the event of index `known`.
    matching: MatchingFilters,
    known: Option<u32>,
}

impl ExternalMatchEmitter<'_> {
    fn memberships(&self, slot: u32) -> Memberships {
        match self.table.parameter(self.memberships_at, slot) {
            EvalValue::Integer(bits) => Memberships(bits.cast_unsigned()),
            _ => Memberships::default(),
        }
    }

    fn give(&mut self, query_match: ExternalMatch<'_>, out: &mut impl MatchSink) {
        let at = query_match.event_ordinal as usize;
        if at >= self.events.len() {
            return;
        }
        let Some(slot) = self.table.find(query_match.subscription) else { return };
        if self.audience.is_some() && !self.memberships(slot).includes(self.audience) {
            return;
        }
        if let Some((filter_table, filter)) =
            self.filter_table.and_then(|filter_table| Some((filter_table, filter_table.of(slot)?)))
        {
            if self.known != Some(query_match.event_ordinal) {
                self.known = Some(query_match.event_ordinal);
                filter_table.matching(self.events.row(at), &mut self.matching);
                if self.matching.undecided() > 0 {
                    let id = EventId { batch: self.batch, ordinal: query_match.event_ordinal };
                    out.subscriptions_failed(self.rule, id, EvalError::Cost, self.matching.undecided());
                }
            }
            if !self.matching.has(filter) {
                return;
            }
        }
        out.run(Run {
            rule: self.rule,
            batch: self.batch,
            event_ordinal: query_match.event_ordinal,
            slots: &[slot],
            keys: KeySlice::default(),
            events: self.events,
            at,
            given: query_match.given,
            rules: self.rules,
            table: self.table,
            channels: self.channels,
        });
    }
}
