//! Log of slow rule firings, with their durations and execution plans. The newest are kept in memory.

use std::{collections::VecDeque, time::Duration};

use parking_lot::Mutex;
use tocsin_matching::rule::{RuleExplanation, RuleNumber};
use tocsin_model::{
    event::EventBatch,
    id::{EventBatchId, Name},
    time::Timestamp,
};

use crate::{compile::Compiled, shards::IndexReport};

/// Maximum number of firings kept; the oldest is dropped.
pub const SLOW_FIRINGS_MAX: usize = 500;

/// A slow firing of a rule for an event batch.
#[derive(Debug, Clone, PartialEq)]
pub struct SlowFiring {
    /// Its application.
    pub application: Name,
    /// The version by which it was matched.
    pub version: u32,
    /// The rule.
    pub rule: Name,
    /// The event batch.
    pub batch: EventBatchId,
    /// Number of its events.
    pub events: u32,
    /// Time of the firing.
    pub at: Timestamp,
    /// Duration; for a rule of the index, on the slowest shard.
    pub took: Duration,
    /// Timeout of the rule.
    pub timeout: Duration,
    /// Execution plan of the rule: the steps of its query as the store explains them, or the index branches with
    /// their sizes, and warnings.
    pub plan: Vec<String>,
}

/// Newest slow firings of all applications.
#[derive(Debug, Default)]
pub(crate) struct SlowFirings(Mutex<VecDeque<SlowFiring>>);

impl SlowFirings {
    /// Adds a firing.
    pub fn add(&self, firing: SlowFiring) {
        metrics::counter!("tocsin_match_slow_firings_total").increment(1);
        tracing::warn!(
            application = %firing.application,
            rule = %firing.rule,
            batch = %firing.batch,
            events = firing.events,
            seconds = firing.took.as_secs_f64(),
            "a rule fired slowly"
        );
        let mut newest = self.0.lock();
        newest.truncate(SLOW_FIRINGS_MAX - 1);
        newest.push_front(firing);
    }

    /// Returns the newest firings that meet a condition, newest first.
    pub fn newest(&self, limit: usize, requested: impl Fn(&SlowFiring) -> bool) -> Vec<SlowFiring> {
        self.0.lock().iter().filter(|firing| requested(firing)).take(limit).cloned().collect()
    }
}

impl SlowFiring {
    pub(crate) fn new(
        compiled: &Compiled,
        report: &IndexReport,
        (batch, rule): (&EventBatch, RuleNumber),
        took: Duration,
        now: Timestamp,
    ) -> SlowFiring {
        let name = compiled.rules.name(rule);
        let mut explanations = compiled.explain();
        report.figures.explain(&compiled.rules, &mut explanations);
        let explanation = explanations.into_iter().find(|explanation| explanation.rule == *name);
        SlowFiring {
            application: compiled.application.name.clone(),
            version: compiled.version,
            rule: name.clone(),
            batch: batch.id,
            events: batch.events.count(),
            at: now,
            took,
            timeout: compiled.application.rules.get(name).map(|rule| rule.timeout).unwrap_or_default(),
            plan: explanation.as_ref().map(plan).unwrap_or_default(),
        }
    }
}

/// Execution plan of a rule, one line per branch.
fn plan(explanation: &RuleExplanation) -> Vec<String> {
    let branches = explanation.branches.iter().map(|branch| match branch.candidates {
        Some(count) => format!("{branch}; about {count} subscriptions are candidates for an event"),
        None => branch.to_string(),
    });
    let filters = explanation.filters.as_ref().map(|filters| {
        format!("{} distinct filters, {} of them looked at for every event", filters.distinct, filters.unindexed)
    });
    let warnings = explanation.warnings.iter().map(|warning| format!("warning: {warning}"));
    branches.chain(filters).chain(explanation.query.iter().cloned()).chain(warnings).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept() {
        let name = |text: &str| text.parse::<Name>().expect("a name");
        let firing = |batch: u64| SlowFiring {
            application: name("quakes"),
            version: 1,
            rule: name(if batch.is_multiple_of(2) { "even" } else { "odd" }),
            batch: EventBatchId(batch),
            events: 1,
            at: Timestamp(0),
            took: Duration::from_secs(2),
            timeout: Duration::from_secs(10),
            plan: Vec::new(),
        };
        let slow = SlowFirings::default();
        (0..SLOW_FIRINGS_MAX as u64 + 10).for_each(|batch| slow.add(firing(batch)));
        let all = slow.newest(usize::MAX, |_| true);
        assert_eq!((all.len(), all[0].batch.0, all[SLOW_FIRINGS_MAX - 1].batch.0), (500, 509, 10));
        let even: Vec<u64> =
            slow.newest(2, |firing| firing.rule.as_str() == "even").iter().map(|firing| firing.batch.0).collect();
        assert_eq!(even, [508, 506]);
    }
}
