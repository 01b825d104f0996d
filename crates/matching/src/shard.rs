//! A shard: one partition of the subscribers, with its index. One owner, no locks: a batch sees exactly the changes
//! that were applied before it.

mod external_matches; // matches found by the query of a rule

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    time::Duration,
};

use tocsin_model::{
    event::EventBatch,
    field::{Damaged, Fields, Row},
    id::{EventBatchId, EventId, Name, SubscriptionId},
    problem::{Code, Problem},
    state::StatePage,
    time::Timestamp,
};

use crate::{
    eval_value::EvalError,
    events::Events,
    filter::filter_table::FilterTable,
    index::groups::Groups,
    index_stats::{FilterStats, IndexStats},
    residual::Deadline,
    rows::stored_row,
    rule::rule_set::{CompiledState, RuleNumber, RuleSet},
    rule_evaluation::{MatchScratch, RuleEvaluation, WINDOW},
    shard::external_matches::ExternalMatchEmitter,
    state::{
        restored::RestoredStates,
        state_table::{StateTable, Suppression},
    },
    subscriber::{Memberships, SubscriberView},
    subscription_index::SubscriptionIndex,
};

pub use crate::{
    matches::{MatchSink, Run},
    subject::Subject,
};
pub use external_matches::ExternalMatch;

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

/// A partition of the subscriptions, with its index and its suppression state.
pub struct Shard {
    index: SubscriptionIndex,
    states: StateTable,
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
        Shard {
            states: StateTable::new(&rules),
            index: SubscriptionIndex::new(rules),
            scratch: MatchScratch::default(),
            running_rule: None,
            times: Vec::new(),
        }
    }

    /// The rules of the shard.
    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.index.rules
    }

    /// Adds a subscription of a subscriber without columns, or replaces the one with the same id. About a microsecond
    /// for each rule of its class.
    ///
    /// # Errors
    /// The class is unknown, the parameters are not a JSON object, the filter cannot be compiled for every event class
    /// of the class's rules, or the shard is full (2^32 subscriptions of a class, 65,535 channels). The previous
    /// subscription of this id, if there was one, is then removed.
    pub fn put(&mut self, subject: Subject<'_>) -> Result<(), Problem> {
        self.put_of(subject, SubscriberView::default())
    }

    /// Adds a subscription with the values of its subscriber; only rules whose audience includes it apply.
    ///
    /// # Errors
    /// As [`Shard::put`].
    pub fn put_of(&mut self, subject: Subject<'_>, subscriber: SubscriberView) -> Result<(), Problem> {
        let class = self.index.rules.classes.iter().find(|class| class.name == *subject.class);
        let row = class.map(|class| stored_row(&class.fields, subject.values)).transpose();
        let result = match row.map(Option::unwrap_or_default) {
            Ok(row) => self.put_row(
                subject,
                self.index.rules.full_row(subject.class, row, subscriber.columns),
                subscriber.memberships,
            ),
            Err(_) => Err(Problem::new(Code::DamagedData, "", "the stored parameters are not a JSON object")),
        };
        if result.is_err() {
            self.remove(subject.id);
        }
        result
    }

    fn put_row(&mut self, subject: Subject<'_>, row: Row, memberships: Memberships) -> Result<(), Problem> {
        // Suppression state is kept.
        let (class, row) = self.index.put(subject, row, memberships)?;
        self.states.refresh(&self.index.rules, class, subject.id, &row);
        Ok(())
    }

    /// Removes a subscription, if it is present, and its suppression state.
    pub fn remove(&mut self, id: SubscriptionId) {
        for class in 0..self.index.tables.len() {
            self.states.remove(&self.index.rules, class, id);
        }
        self.index.remove(id);
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
        let events = self.index.rules.events(batch, event_fields)?;
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
        let rules = Arc::clone(&self.index.rules);
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
            scratch.begin(self.index.keys.len(), self.index.filter_tables.len(), count);
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
                    index: &self.index,
                    rules: &rules,
                    number: *number,
                    rule,
                    table: &self.index.tables[rule.class],
                    batch,
                    first,
                    count,
                    events,
                    channels: &self.index.channels,
                    deadline,
                };
                let answered = match state.zip(states) {
                    None => occasion.answer(&mut scratch, out),
                    Some((state, mut states)) => {
                        let moment = (accepted_at, watch.again);
                        let answer = || evaluate_stateful(&occasion, state, moment, &mut states, &mut scratch, out);
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
        let compiled = self.index.rules.rule(rule);
        let events_of_batch = Events::of_rows(events);
        let mut emitter = ExternalMatchEmitter::new(&self.index, rule, batch, &events_of_batch);
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
        self.states.undo(&self.index.rules, &self.index.tables);
    }

    /// The changed state pages of the newest layer, to be committed with its matches.
    pub fn take_states(&mut self) -> Vec<StatePage> {
        self.states.take_changes(&self.index.rules)
    }

    /// All suppression state, as pages.
    pub fn states(&self) -> Vec<StatePage> {
        self.states.pages(&self.index.rules)
    }

    /// The number of state entries.
    pub fn state_count(&self) -> usize {
        self.states.len()
    }

    /// Clears all suppression state in memory; the journal is not changed.
    pub fn forget_states(&mut self) {
        self.states = self.states.empty(&self.index.rules);
    }

    /// Takes the restored state of its subscriptions.
    pub fn restore_states(&mut self, remembered: &mut RestoredStates) {
        self.states.restore(&self.index.rules, &self.index.tables, remembered);
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
        self.index.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Statistics of the index. Cheap: nothing is counted anew.
    pub fn index_stats(&self) -> IndexStats {
        let enabled = self.index.rules.rules.iter().filter(|rule| rule.enabled);
        let class_of_each = enabled.flat_map(|rule| rule.branches.iter().map(|_| rule.class));
        let together =
            |(class, groups): (usize, &Groups)| self.index.tables[class].len() as f64 / groups.count().max(1) as f64;
        let filters = |(number, filter_table): (usize, &FilterTable)| FilterStats {
            distinct: filter_table.distinct() as u64,
            unindexed: filter_table.scanned() as u64,
            groups: filter_table.groups() as u64,
            counts: self.scratch.filter_counts(number),
        };
        IndexStats {
            branches: class_of_each.zip(&self.index.groups).map(together).collect(),
            filters: self.index.filter_tables.iter().enumerate().map(filters).collect(),
        }
    }

    /// The number of distinct filters; a filter counts once for each event class.
    pub fn distinct_filters(&self) -> usize {
        self.index.filter_tables.iter().map(FilterTable::distinct).sum()
    }

    /// The number of distinct filters that are candidates for every event.
    pub fn scanned_filters(&self) -> usize {
        self.index.filter_tables.iter().map(FilterTable::scanned).sum()
    }

    /// Memory in bytes, as far as it grows with the subscriptions.
    pub fn memory_bytes(&self) -> usize {
        self.index.memory_bytes() + self.states.memory_bytes()
    }
}

/// Evaluates a rule with state. An event re-arms only subscriptions that were disarmed before it, and does not
/// match them. `again`: the re-arming of these events has been applied before.
///
/// # Errors
/// The event at which the deadline passed; the events after it were not evaluated.
fn evaluate_stateful(
    evaluation: &RuleEvaluation<'_>,
    state: &CompiledState,
    (accepted_at, again): (Timestamp, bool),
    states: &mut StateTable,
    scratch: &mut MatchScratch,
    out: &mut impl MatchSink,
) -> Result<(), EventId> {
    for at in 0..evaluation.count {
        let event = evaluation.event(at);
        let state_event = match StateTable::state_event(state, event, accepted_at) {
            Ok(Some(state_event)) => state_event,
            without => {
                without
                    .err()
                    .into_iter()
                    .for_each(|error| out.rule_failed(evaluation.number, evaluation.id(at), error));
                continue;
            }
        };
        let rearmed = match again {
            true => Ok(Vec::new()),
            false => states.rearmed(evaluation.number, state, state_event, event),
        };
        evaluation.evaluate_event(
            at,
            scratch,
            &mut states.suppressing_sink(evaluation.number, state, state_event, out),
        );
        match rearmed {
            Ok(rearmed) => states.arm(evaluation.number, state, state_event, &rearmed),
            Err(error) => out.rule_failed(evaluation.number, evaluation.id(at), error),
        }
        if evaluation.is_late() {
            return Err(evaluation.id(at));
        }
    }
    Ok(())
}
