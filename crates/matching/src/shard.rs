//! A shard: one partition of the subscribers, with its index. One owner, no locks: a batch sees exactly the changes
//! that were applied before it.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    time::Duration,
};

use tocsin_model::{
    event::EventBatch,
    field::{Damaged, FieldType, Fields, Row},
    filter::Filter,
    id::{EventBatchId, EventId, Name, SubscriberNumber, SubscriptionId},
    state::StatePage,
    time::Timestamp,
    value::Value,
};

use crate::{
    eval_value::EvalError,
    events::Events,
    filter::filter_table::FilterTable,
    index::{Hasher, chunks::KeySlice, groups::Groups, key_table::KeyTable, table::Table},
    index_stats::{FilterStats, IndexStats},
    residual::Deadline,
    rule::{RuleNumber, RuleSet},
    rule_evaluation::{MatchScratch, RuleEvaluation, WINDOW},
    state::{Suppression, restored::RestoredStates, state_table::StateTable},
};

mod change; // adds and removes subscriptions
mod rows; // parameters as rows
mod query_matches; // matches found by the query of a rule

pub use query_matches::ExternalMatch;
pub(crate) use rows::Layout;

use change::Sweep;

/// A subscription as the index needs it.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The id of the subscription.
    pub id: SubscriptionId,
    /// The subscriber: notifications for one digest stay in one notification batch.
    pub subscriber: SubscriberNumber,
    /// The class of the subscription.
    pub class: &'a Name,
    /// Parameters, a JSON object as `Subscription::values` holds it.
    pub values: &'a str,
    /// The channel that delivers to it now, if there is a usable one.
    pub channel: Option<&'a Name>,
    /// Own filter, if its class accepts one: it matches only if both the rule and the filter match.
    pub filter: Option<&'a Filter>,
}

/// Options of a match: excluded rules, clock, repetition.
#[derive(Clone, Copy, Default)]
pub struct MatchOptions<'a> {
    /// Rules that are excluded.
    pub excluded_rules: &'a [RuleNumber],
    /// A monotonic clock. With it, a rule that exceeds its `timeout` for the batch fails with [`EvalError::Time`];
    /// without it, there is no time limit.
    pub clock: Option<&'a dyn Fn() -> Duration>,
    /// Whether the batch was matched before, so that its re-arming has been applied. Without it, re-arming is applied
    /// for excluded rules too.
    pub again: bool,
}

impl fmt::Debug for MatchOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MatchOptions")
            .field("excluded_rules", &self.excluded_rules)
            .field("timed", &self.clock.is_some())
            .finish()
    }
}

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

/// A partition of the subscriptions, and the index over them.
pub struct Shard {
    rules: Arc<RuleSet>,
    tables: Vec<Table>,
    sweeps: Vec<Option<Sweep>>,
    /// One for each branch of each enabled rule.
    pub(crate) indexes: Vec<Groups>,
    /// The keys of branches with the same event key, by [`Branch::asks`](crate::rule::Branch::asks).
    pub(crate) keys: Vec<KeyTable>,
    /// One for each filter plan of the rule set.
    pub(crate) filter_tables: Vec<FilterTable>,
    states: StateTable,
    channels: Vec<Name>,
    scratch: MatchScratch,
    /// The rule that is being matched.
    running_rule: Option<RuleNumber>,
    times: Vec<(RuleNumber, Duration)>,
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("subscriptions", &self.len()).finish_non_exhaustive()
    }
}
impl Shard {
    /// An empty shard of these rules.
    pub fn new(rules: Arc<RuleSet>) -> Shard {
        let hasher = Hasher::default();
        let tables = rules.classes.iter().map(|class| {
            let kinds = class.fields.iter().map(|field| field.kind).chain(rules.subscriber.kinds());
            let kinds: Vec<FieldType> = kinds.chain([FieldType::Integer]).collect();
            Table::new(&kinds, &class.used_columns, class.keeps_subscribers, hasher.clone())
        });
        let enabled = rules.rules.iter().filter(|rule| rule.enabled);
        let indexes = enabled.flat_map(|rule| &rule.branches).map(|branch| Groups::new(branch.arrangement()));
        Shard {
            tables: tables.collect(),
            sweeps: vec![None; rules.classes.len()],
            indexes: indexes.collect(),
            filter_tables: rules.filters.iter().map(|_| FilterTable::new()).collect(),
            states: StateTable::new(&rules),
            keys: (0..=rules.asks).map(|_| KeyTable::new(hasher.clone())).collect(),
            channels: Vec::new(),
            scratch: MatchScratch::default(),
            running_rule: None,
            times: Vec::new(),
            rules,
        }
    }

    /// The rules of the shard.
    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// Reports every match of a batch to the sink, as [`Shard::match_events`] does. `event_fields` are the fields with
    /// which the batch was packed; see [`RuleSet::events`].
    ///
    /// # Errors
    /// The batch is damaged; nothing was reported.
    pub fn match_batch(
        &mut self,
        batch: &EventBatch,
        event_fields: &Fields,
        out: &mut impl MatchSink,
    ) -> Result<(), Damaged> {
        let events = self.rules.events(batch, event_fields)?;
        self.match_events((batch.id, batch.accepted_at), &batch.class, &events, MatchOptions::default(), out);
        Ok(())
    }

    /// [`Shard::match_events`] for events that are rows of their class.
    pub fn match_rows(
        &mut self,
        batch: (EventBatchId, Timestamp),
        class: &Name,
        rows: &[Row],
        watch: MatchOptions<'_>,
        out: &mut impl MatchSink,
    ) {
        self.match_events(batch, class, &Events::of_rows(rows), watch, out);
    }

    /// Reports every match of a batch's events to the sink, in windows of at most 64 events. Within a window, rules are
    /// evaluated by name, and each rule event by event. So each rule reports its matches in the order of the events.
    /// Deterministic except for the order of subscriptions within a rule and event. Suppression state uses the
    /// acceptance time of the batch.
    pub fn match_events(
        &mut self,
        (batch, accepted_at): (EventBatchId, Timestamp),
        class: &Name,
        events: &Events<'_>,
        watch: MatchOptions<'_>,
        out: &mut impl MatchSink,
    ) {
        self.times.clear();
        let rules = Arc::clone(&self.rules);
        let Some(plan) = rules.events.get(class).filter(|plan| !plan.rules.is_empty()) else { return };
        // The remaining time of each rule for the batch; `None` for excluded rules.
        let allowed = |rule: &RuleNumber| (!watch.excluded_rules.contains(rule)).then(|| rules.rule(*rule).timeout);
        let mut left: Vec<Option<Duration>> = plan.rules.iter().map(allowed).collect();
        // Filters and state are evaluated event by event.
        let is_narrow = |rule: &RuleNumber| rules.rule(*rule).filters.is_some() || rules.rule(*rule).state.is_some();
        let width = if plan.rules.iter().any(is_narrow) { 1 } else { WINDOW };
        let mut scratch = std::mem::take(&mut self.scratch);
        for first in (0..events.len()).step_by(width) {
            let count = width.min(events.len() - first);
            scratch.begin(self.keys.len(), self.filter_tables.len(), count);
            for (number, left) in plan.rules.iter().zip(&mut left) {
                let rule = rules.rule(*number);
                // Events re-arm a rule with a query when its query result is processed.
                let state = rule.state.as_ref().filter(|_| !rule.queried);
                let Some(time) = *left else {
                    if let (Some(state), false) = (state, watch.again) {
                        let rows = (first..first + count).map(|at| events.row(at));
                        rows.for_each(|event| self.states.only_rearm(*number, state, event, accepted_at));
                    }
                    continue;
                };
                self.running_rule = Some(*number);
                let states = state.map(|_| std::mem::take(&mut self.states));
                let deadline = watch.clock.map(|clock| Deadline { clock, at: clock() + time });
                let occasion = RuleEvaluation {
                    shard: self,
                    rules: &rules,
                    number: *number,
                    rule,
                    table: &self.tables[rule.class],
                    batch,
                    first,
                    count,
                    events,
                    channels: &self.channels,
                    deadline,
                };
                let answered = match state.zip(states) {
                    None => occasion.answer(&mut scratch, out),
                    Some((state, mut states)) => {
                        let moment = (accepted_at, watch.again);
                        let answer = || occasion.evaluate_stateful(state, moment, &mut states, &mut scratch, out);
                        let answered = catch_unwind(AssertUnwindSafe(answer));
                        // State survives a panic, so that it can be undone.
                        self.states = states;
                        answered.unwrap_or_else(|panic| resume_unwind(panic))
                    }
                };
                match answered {
                    Ok(()) => *left = Some(deadline.map_or(time, Deadline::left)),
                    Err(event) => {
                        *left = None;
                        out.rule_failed(*number, event, EvalError::Time);
                    }
                }
            }
        }
        self.running_rule = None;
        self.scratch = scratch;
        if watch.clock.is_some() {
            let took = |(rule, left): (&RuleNumber, Option<Duration>)| {
                let timeout = rules.rule(*rule).timeout;
                (*rule, left.map_or(timeout, |left| timeout.saturating_sub(left)))
            };
            let fired = plan.rules.iter().zip(left).filter(|(rule, _)| !watch.excluded_rules.contains(rule));
            self.times.extend(fired.map(took));
        }
    }

    /// The time that each rule took for the last batch, if there was a clock.
    pub fn rule_times(&self) -> &[(RuleNumber, Duration)] {
        &self.times
    }

    /// The rule that was being matched when the last match panicked, if it did.
    pub fn failing_rule(&self) -> Option<RuleNumber> {
        self.running_rule
    }

    /// Sets which of `parts` partitions this shard is, so that no two shards write the same pages. The default is the
    /// first of one.
    pub fn set_part(&mut self, part: u16, parts: u16) {
        self.states.set_part(part, parts);
    }

    /// Starts an undo layer for suppression state. Layers are stacked.
    pub fn begin_states(&mut self) {
        self.states.begin();
    }

    /// Confirms the oldest undo layer: its changes are stored durably.
    pub fn confirm_states(&mut self) {
        self.states.confirm();
    }

    /// Undoes the changes of the newest layer.
    pub fn undo_states(&mut self) {
        self.states.undo(&self.rules, &self.tables);
    }

    /// The changed state pages of the newest layer, to be committed with its matches.
    pub fn take_states(&mut self) -> Vec<StatePage> {
        self.states.take_changes(&self.rules)
    }

    /// All suppression state, as pages.
    pub fn states(&self) -> Vec<StatePage> {
        self.states.pages(&self.rules)
    }

    /// The number of state entries.
    pub fn state_count(&self) -> usize {
        self.states.len()
    }

    /// Clears all suppression state in memory; the journal is not changed.
    pub fn forget_states(&mut self) {
        self.states = self.states.empty(&self.rules);
    }

    /// Takes the restored state of its subscriptions.
    pub fn restore_states(&mut self, remembered: &mut RestoredStates) {
        self.states.restore(&self.rules, &self.tables, remembered);
    }

    /// Marks the outdated pages that this shard writes, so that the next commit corrects them.
    pub fn take_over_states(&mut self, pages: &[StatePage]) {
        self.states.take_over(pages);
    }

    /// The number of suppressed matches since the last call, by rule and reason.
    pub fn take_suppressed(&mut self) -> Vec<(RuleNumber, Suppression, u64)> {
        self.states.take_suppressed()
    }

    /// The number of subscriptions.
    pub fn len(&self) -> usize {
        self.tables.iter().map(Table::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Statistics of the index. Cheap: nothing is counted anew.
    pub fn index_stats(&self) -> IndexStats {
        let enabled = self.rules.rules.iter().filter(|rule| rule.enabled);
        let class_of_each = enabled.flat_map(|rule| rule.branches.iter().map(|_| rule.class));
        let together =
            |(class, groups): (usize, &Groups)| self.tables[class].len() as f64 / groups.count().max(1) as f64;
        let filters = |(number, filter_table): (usize, &FilterTable)| FilterStats {
            distinct: filter_table.distinct() as u64,
            unindexed: filter_table.scanned() as u64,
            groups: filter_table.groups() as u64,
            counts: self.scratch.filter_counts(number),
        };
        IndexStats {
            branches: class_of_each.zip(&self.indexes).map(together).collect(),
            filters: self.filter_tables.iter().enumerate().map(filters).collect(),
        }
    }

    /// The number of distinct filters; a filter counts once for each event class.
    pub fn distinct_filters(&self) -> usize {
        self.filter_tables.iter().map(FilterTable::distinct).sum()
    }

    /// The number of distinct filters that are candidates for every event.
    pub fn scanned_filters(&self) -> usize {
        self.filter_tables.iter().map(FilterTable::scanned).sum()
    }

    /// Memory in bytes, as far as it grows with the subscriptions.
    pub fn memory_bytes(&self) -> usize {
        self.tables.iter().map(Table::memory_bytes).sum::<usize>()
            + self.indexes.iter().map(Groups::memory_bytes).sum::<usize>()
            + self.filter_tables.iter().map(FilterTable::memory_bytes).sum::<usize>()
            + self.states.memory_bytes()
            + self.keys.iter().map(KeyTable::memory_bytes).sum::<usize>()
    }
}
