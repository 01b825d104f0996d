//! Matches found by a rule's query, outside the index. The shard adds channels and captured fields, and applies the
//! rule's audience and the subscriptions' own filters.

use tocsin_model::{
    id::{EventBatchId, EventId, Name, SubscriptionId},
    value::Value,
};

use crate::{
    eval_value::{EvalError, EvalValue},
    events::Events,
    filter::filter_table::{FilterTable, MatchingFilters},
    index::{chunks::KeySlice, table::Table},
    matches::{MatchSink, Run},
    rule::rule_set::{RuleNumber, RuleSet},
    subscriber::Memberships,
    subscription_index::SubscriptionIndex,
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

/// Reports matches one by one.
pub(super) struct ExternalMatchEmitter<'s> {
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

impl<'s> ExternalMatchEmitter<'s> {
    pub fn new(
        index: &'s SubscriptionIndex,
        rule: RuleNumber,
        batch: EventBatchId,
        events: &'s Events<'s>,
    ) -> ExternalMatchEmitter<'s> {
        let rules = &*index.rules;
        let compiled = rules.rule(rule);
        ExternalMatchEmitter {
            rule,
            batch,
            events,
            rules,
            table: &index.tables[compiled.class],
            audience: compiled.audience,
            memberships_at: rules.classes[compiled.class].memberships_at(),
            filter_table: compiled.filters.map(|filter_table| &index.filter_tables[filter_table]),
            channels: &index.channels,
            matching: MatchingFilters::default(),
            known: None,
        }
    }

    fn memberships(&self, slot: u32) -> Memberships {
        match self.table.parameter(self.memberships_at, slot) {
            EvalValue::Integer(bits) => Memberships(bits.cast_unsigned()),
            _ => Memberships::default(),
        }
    }

    pub fn give(&mut self, query_match: ExternalMatch<'_>, out: &mut impl MatchSink) {
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
