//! Compares the notifications of two versions of a rule.

use std::collections::HashMap;

use tocsin_matching::{
    eval_value::EvalError,
    rule::RuleNumber,
    shard::{MatchOptions, MatchSink, Run, Shard},
};
use tocsin_model::{
    field::Row,
    id::{EventBatchId, EventId, Name, SubscriptionId},
    time::Timestamp,
};

use super::jobs::EXAMPLES_MAX;

/// Numbers of notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Made by the tested version only.
    pub gained: u64,
    /// Made by the baseline only.
    pub lost: u64,
    /// Made by both.
    pub kept: u64,
}

impl Counts {
    /// Adds others.
    pub(super) fn add(&mut self, other: Counts) {
        self.gained += other.gained;
        self.lost += other.lost;
        self.kept += other.kept;
    }

    /// Number of differences.
    pub(super) fn changes(&self) -> u64 {
        self.gained + self.lost
    }
}

/// The indexes of both versions, and what they found.
pub(super) struct Comparison {
    pub tested: Shard,
    pub baseline: Shard,
    /// By subscription.
    pub subscriptions: HashMap<SubscriptionId, Counts>,
    pub gained: Vec<(EventId, SubscriptionId)>,
    pub lost: Vec<(EventId, SubscriptionId)>,
    /// Errors of evaluations: text and number.
    pub failures: HashMap<String, u64>,
}

impl Comparison {
    pub fn new(tested: Shard, baseline: Shard) -> Comparison {
        Comparison {
            tested,
            baseline,
            subscriptions: HashMap::new(),
            gained: Vec::new(),
            lost: Vec::new(),
            failures: HashMap::new(),
        }
    }

    /// Evaluates both versions for a batch of events.
    pub fn evaluate(
        &mut self,
        batch: (EventBatchId, Timestamp),
        class: &Name,
        tested_rows: &[Row],
        baseline_rows: &[Row],
    ) -> Counts {
        let tested = matches(&mut self.tested, batch, class, tested_rows, &mut self.failures);
        let baseline = matches(&mut self.baseline, batch, class, baseline_rows, &mut self.failures);
        let mut sum = Counts::default();
        for (ordinal, (tested, baseline)) in (0u32..).zip(tested.into_iter().zip(baseline)) {
            let event = EventId { batch: batch.0, ordinal };
            let (mut at, mut other) = (0, 0);
            while at < tested.len() || other < baseline.len() {
                let (one, two) = (tested.get(at), baseline.get(other));
                let (id, counts) = match (one, two) {
                    (Some(one), Some(two)) if one == two => {
                        (at, other) = (at + 1, other + 1);
                        (*one, Counts { kept: 1, ..Counts::default() })
                    }
                    (Some(one), two) if two.is_none_or(|two| one < two) => {
                        at += 1;
                        if self.gained.len() < EXAMPLES_MAX {
                            self.gained.push((event, *one));
                        }
                        (*one, Counts { gained: 1, ..Counts::default() })
                    }
                    (_, Some(two)) => {
                        other += 1;
                        if self.lost.len() < EXAMPLES_MAX {
                            self.lost.push((event, *two));
                        }
                        (*two, Counts { lost: 1, ..Counts::default() })
                    }
                    (_, None) => break,
                };
                self.subscriptions.entry(id).or_default().add(counts);
                sum.add(counts);
            }
        }
        sum
    }
}

/// The notified subscriptions of each event, ascending.
fn matches(
    shard: &mut Shard,
    batch: (EventBatchId, Timestamp),
    class: &Name,
    rows: &[Row],
    failures: &mut HashMap<String, u64>,
) -> Vec<Vec<SubscriptionId>> {
    let mut found = Notified { events: vec![Vec::new(); rows.len()], failures };
    shard.begin_states();
    shard.match_rows(batch, class, rows, MatchOptions::default(), &mut found);
    // The state continues with the next batch and is never stored.
    drop(shard.take_states());
    shard.confirm_states();
    let mut events = found.events;
    for ids in &mut events {
        ids.sort_unstable();
        ids.dedup();
    }
    events
}

/// Collects the notified subscriptions.
struct Notified<'a> {
    events: Vec<Vec<SubscriptionId>>,
    failures: &'a mut HashMap<String, u64>,
}

impl Notified<'_> {
    fn fail(&mut self, error: &EvalError, count: u64) {
        *self.failures.entry(error.to_string()).or_default() += count;
    }
}

impl MatchSink for Notified<'_> {
    fn run(&mut self, run: Run<'_>) {
        let Some(event) = self.events.get_mut(run.event_ordinal as usize) else { return };
        event.extend(run.slots.iter().map(|slot| run.id(*slot)));
    }

    fn rule_failed(&mut self, _: RuleNumber, _: EventId, error: EvalError) {
        self.fail(&error, 1);
    }

    fn subscriptions_failed(&mut self, _: RuleNumber, _: EventId, error: EvalError, count: u32) {
        self.fail(&error, u64::from(count));
    }
}
