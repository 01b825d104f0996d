//! Matches in runs, and their receiver.

use tocsin_model::{
    id::{EventBatchId, EventId, Name, SubscriptionId},
    value::Value,
};

use crate::{
    eval_value::EvalError,
    events::Events,
    index::{columns::KeySlice, table::Table},
    rule::rule_set::{RuleNumber, RuleSet},
};

/// Receiver of matches, in runs.
pub trait MatchSink {
    /// Some subscriptions match an event by a rule. Each subscription is reported once for a rule and event; a rule and
    /// event may have several consecutive runs.
    fn run(&mut self, run: Run<'_>);

    /// A rule could not be evaluated for an event. Other matches are still reported; after [`EvalError::Time`] no
    /// further matches of this rule are reported for the batch.
    fn rule_failed(&mut self, rule: RuleNumber, event: EventId, error: EvalError);

    /// A rule or the filters of its subscriptions could not be evaluated for an event and some of the subscriptions.
    /// The failed ones do not match; the others are reported. `count` is the number of filters or subscriptions.
    fn subscriptions_failed(&mut self, rule: RuleNumber, event: EventId, error: EvalError, count: u32);
}

/// A run of matches: subscriptions that match one event by one rule.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    /// The rule.
    pub rule: RuleNumber,
    /// The event's batch.
    pub batch: EventBatchId,
    /// The event's index in its batch.
    pub event_ordinal: u32,
    /// The subscriptions, by slot.
    pub slots: &'a [u32],
    /// The index keys of the subscriptions, in the same order, if captured fields are copied from them.
    pub(crate) keys: KeySlice<'a>,
    pub(crate) events: &'a Events<'a>,
    /// The event's index in `events`.
    pub(crate) at: usize,
    /// The row of the rule's query, if it has one; then there is one slot.
    pub(crate) given: &'a [Value],
    pub(crate) rules: &'a RuleSet,
    pub(crate) table: &'a Table,
    pub(crate) channels: &'a [Name],
}

impl<'a> Run<'a> {
    /// The event, as a row of its class in the rule set's version.
    pub fn event(&self) -> &'a [Value] {
        self.events.row(self.at)
    }

    /// The subscription of a slot.
    pub fn id(&self, slot: u32) -> SubscriptionId {
        self.table.id(slot)
    }

    /// Appends the ids of all subscriptions, in order. Much faster than one by one.
    #[inline]
    pub fn append_ids(&self, out: &mut Vec<SubscriptionId>) {
        self.table.append_ids(self.slots, out);
    }

    /// The channel number of a slot, see [`Run::channel_name`]. 0 means no channel.
    pub fn channel(&self, slot: u32) -> u16 {
        self.table.channel(slot)
    }

    /// The channel number, if all subscriptions of the class use the same one.
    pub fn sole_channel(&self) -> Option<u16> {
        self.table.sole_channel()
    }

    /// The same run, limited to some of its subscriptions, with their keys.
    pub(crate) fn of<'b>(self, slots: &'b [u32], keys: KeySlice<'b>) -> Run<'b>
    where
        'a: 'b,
    {
        Run { slots, keys, ..self }
    }

    /// The name of a channel by its number; `None` for 0.
    pub fn channel_name(&self, channel: u16) -> Option<&'a Name> {
        self.channels.get(usize::from(channel).checked_sub(1)?)
    }
}
