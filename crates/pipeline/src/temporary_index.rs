//! A temporary index of some subscriptions, for rules that are evaluated outside of the match index: scheduled runs and
//! broadcasts.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use tocsin_matching::{
    cut::{CutBatch, NotificationCutter, RuleFailure},
    eval_value::EvalError,
    join::join,
    rule::{RuleNumber, RuleSet},
    shard::{MatchOptions, MatchSink, Run, Shard, Subject},
    subscriber::SubscriberView,
};
use tocsin_model::{
    event::EventBatch,
    field::{Fields, Row},
    id::{EventBatchId, EventId, Name},
    problem::Problem,
    time::Timestamp,
};
use tocsin_store::records::IndexedSubscription;

/// Temporary index of some subscriptions, with their matches.
pub(crate) struct TemporaryIndex {
    shard: Shard,
    cutter: NotificationCutter,
    /// Whether the subscriptions' own filters apply: they are over events.
    takes_filters: bool,
    /// Number of matches.
    pub emitted: usize,
    out_of_time: bool,
}

impl TemporaryIndex {
    /// An empty index of these rules.
    pub fn new(rules: Arc<RuleSet>, takes_filters: bool) -> Self {
        let cutter = NotificationCutter::new();
        TemporaryIndex { shard: Shard::new(rules), cutter, takes_filters, emitted: 0, out_of_time: false }
    }

    /// The rules.
    pub fn rules(&self) -> &Arc<RuleSet> {
        self.shard.rules()
    }

    /// Adds a subscription.
    ///
    /// # Errors
    /// It cannot be matched: its filter or its parameters do not fit the rules.
    pub fn put(&mut self, subscription: &IndexedSubscription, subscriber: SubscriberView) -> Result<(), Problem> {
        let takes_filters = self.takes_filters;
        let subject = Subject {
            id: subscription.id,
            subscriber: subscription.subscriber,
            class: &subscription.class,
            values: &subscription.values,
            channel: subscription.channel.as_ref(),
            filter: subscription.terms.filter.as_ref().filter(|_| takes_filters),
        };
        self.shard.put_of(subject, subscriber)
    }

    /// Cuts the matches since the last call into notification batches. Returns them and the failures.
    pub fn finish(&mut self) -> (Vec<CutBatch>, Vec<RuleFailure>) {
        let rules = self.shard.rules().clone();
        let (cut, failures) = self.cutter.finish(&rules);
        (join(&rules, vec![cut]), failures)
    }

    /// Matches one event of a batch by rules without state.
    ///
    /// # Errors
    /// A rule panicked or exceeded its timeout.
    pub fn match_event(&mut self, batch: EventBatchId, ordinal: u32, class: &Name, row: &Row) -> Result<(), String> {
        self.watched(|shard, sink, watch| {
            // Without state, the time is irrelevant.
            let batch = (batch, Timestamp(0));
            shard.match_rows(batch, class, std::slice::from_ref(row), watch, &mut At { ordinal, sink });
            Ok(())
        })
    }

    /// Matches an event batch.
    ///
    /// # Errors
    /// As [`TemporaryIndex::match_event`].
    pub fn match_batch(&mut self, batch: &EventBatch, fields: &Fields) -> Result<(), String> {
        self.watched(|shard, sink, watch| {
            // A batch with damaged events was set aside and logged when it was matched.
            let rows = match shard.rules().rows(batch, fields) {
                Ok(rows) => rows,
                Err(damaged) => {
                    tracing::error!(batch = %batch.id, %damaged, "an event batch is left out of a run");
                    return Ok(());
                }
            };
            shard.match_rows((batch.id, batch.accepted_at), &batch.class, &rows, watch, sink);
            Ok(())
        })
    }

    fn watched(
        &mut self,
        work: impl FnOnce(&mut Shard, &mut Counting<'_>, MatchOptions<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let started = Instant::now();
        let clock = move || -> Duration { started.elapsed() };
        let mut sink = Counting { cutter: &mut self.cutter, emitted: 0, out_of_time: false };
        let watch = MatchOptions { clock: Some(&clock), ..MatchOptions::default() };
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut self.shard, &mut sink, watch)));
        self.emitted += sink.emitted;
        self.out_of_time |= sink.out_of_time;
        match done {
            Err(_) => Err("matching it made the matcher panic".to_owned()),
            Ok(_) if self.out_of_time => Err("the rule took longer for an event batch than its timeout".to_owned()),
            Ok(done) => done,
        }
    }
}

/// A sink that counts matches and forwards them to the cutter.
struct Counting<'a> {
    cutter: &'a mut NotificationCutter,
    emitted: usize,
    out_of_time: bool,
}

impl MatchSink for Counting<'_> {
    fn run(&mut self, run: Run<'_>) {
        self.emitted += run.slots.len();
        self.cutter.run(run);
    }

    fn rule_failed(&mut self, rule: RuleNumber, event: EventId, error: EvalError) {
        self.out_of_time |= error == EvalError::Time;
        self.cutter.rule_failed(rule, event, error);
    }

    fn subscriptions_failed(&mut self, rule: RuleNumber, event: EventId, error: EvalError, count: u32) {
        self.cutter.subscriptions_failed(rule, event, error, count);
    }
}

/// A sink that replaces the ordinal of matches by that of their event in the batch.
struct At<'a, S> {
    ordinal: u32,
    sink: &'a mut S,
}

impl<S: MatchSink> MatchSink for At<'_, S> {
    fn run(&mut self, mut run: Run<'_>) {
        run.event_ordinal = self.ordinal;
        self.sink.run(run);
    }

    fn rule_failed(&mut self, rule: RuleNumber, event: EventId, error: EvalError) {
        self.sink.rule_failed(rule, EventId { ordinal: self.ordinal, ..event }, error);
    }

    fn subscriptions_failed(&mut self, rule: RuleNumber, event: EventId, error: EvalError, count: u32) {
        self.sink.subscriptions_failed(rule, EventId { ordinal: self.ordinal, ..event }, error, count);
    }
}
