//! Matches that a rule's query found, outside the index: they get the channels and captured fields that the shard knows,
//! and pass the subscriptions' own filters.

use tocsin_model::{
    field::Row,
    id::{EventBatchId, EventId, SubscriptionId},
    value::Value,
};

use super::{KeySlice, MatchSink, Run, Shard};
use crate::{datum::Trouble, filter::book::Matching, rule::RuleNumber};

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
    /// [`RuleSet::rows`](crate::rule::RuleSet::rows) gives them. Passed over is whoever is not here or not of the rule's
    /// class, and whoever's own filter the event does not meet.
    pub fn tell<'a>(
        &self,
        batch: EventBatchId,
        rule: RuleNumber,
        events: &[Row],
        found: impl IntoIterator<Item = Told<'a>>,
        out: &mut impl MatchSink,
    ) {
        let compiled = self.rules.rule(rule);
        let table = &self.tables[compiled.class];
        let book = compiled.filters.map(|book| &self.books[book]);
        let mut matching = Matching::default();
        let mut known = None;
        for told in found {
            let Some(event) = events.get(told.event_ordinal as usize) else { continue };
            let Some(slot) = table.find(told.subscription) else { continue };
            if let Some((book, filter)) = book.and_then(|book| Some((book, book.of(slot)?))) {
                if known != Some(told.event_ordinal) {
                    known = Some(told.event_ordinal);
                    book.matching(event, &mut matching);
                    if matching.undecided() > 0 {
                        let id = EventId { batch, ordinal: told.event_ordinal };
                        out.subscriptions_failed(rule, id, Trouble::Cost, matching.undecided());
                    }
                }
                if !matching.has(filter) {
                    continue;
                }
            }
            out.run(Run {
                rule,
                batch,
                event_ordinal: told.event_ordinal,
                slots: &[slot],
                keys: KeySlice::default(),
                event,
                given: told.given,
                rules: &self.rules,
                table,
                channels: &self.channels,
            });
        }
    }
}
