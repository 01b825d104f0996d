//! Firings that took long: what each took, and how its rule was answered. The newest are remembered, in memory.

use std::{collections::VecDeque, time::Duration};

use parking_lot::Mutex;
use tocsin_matching::rule::{RuleExplanation, RuleNumber};
use tocsin_model::{
    event::EventBatch,
    id::{EventBatchId, Name},
    time::Timestamp,
};

use crate::{compile::Compiled, shards::IndexReport};

/// So many are remembered; the oldest makes room.
pub const SLOW_FIRINGS_MAX: usize = 500;

/// A rule that took long for an event batch.
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
    /// How many events it has.
    pub events: u32,
    /// When that was.
    pub at: Timestamp,
    /// How long it took; of a rule that the index answers, on the shard where that was longest.
    pub took: Duration,
    /// How long it may take.
    pub timeout: Duration,
    /// How the rule is answered: the steps of its query in the store's words, or the ways of the index with how much stood
    /// there, and what its author should know.
    pub plan: Vec<String>,
}

/// The newest slow firings of all applications.
#[derive(Debug, Default)]
pub(crate) struct SlowFirings(Mutex<VecDeque<SlowFiring>>);

impl SlowFirings {
    /// Remembers one.
    pub fn note(&self, firing: SlowFiring) {
        metrics::counter!("match_slow_firings_total").increment(1);
        tracing::warn!(
            application = %firing.application,
            rule = %firing.rule,
            batch = %firing.batch,
            events = firing.events,
            seconds = firing.took.as_secs_f64(),
            "a rule took long"
        );
        let mut newest = self.0.lock();
        newest.truncate(SLOW_FIRINGS_MAX - 1);
        newest.push_front(firing);
    }

    /// Those that are wanted, newest first.
    pub fn newest(&self, limit: usize, wanted: impl Fn(&SlowFiring) -> bool) -> Vec<SlowFiring> {
        self.0.lock().iter().filter(|firing| wanted(firing)).take(limit).cloned().collect()
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

/// How a rule is answered, a line for each way.
fn plan(explanation: &RuleExplanation) -> Vec<String> {
    let ways = explanation.branches.iter().map(|branch| match branch.candidates {
        Some(count) => format!("{branch}; about {count} subscriptions stand there for an event"),
        None => branch.to_string(),
    });
    let filters = explanation.filters.as_ref().map(|filters| {
        format!("{} distinct filters, {} of them looked at for every event", filters.distinct, filters.unindexed)
    });
    let warnings = explanation.warnings.iter().map(|warning| format!("warning: {warning}"));
    ways.chain(filters).chain(explanation.query.iter().cloned()).chain(warnings).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_remembered() {
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
        (0..SLOW_FIRINGS_MAX as u64 + 10).for_each(|batch| slow.note(firing(batch)));
        let all = slow.newest(usize::MAX, |_| true);
        assert_eq!((all.len(), all[0].batch.0, all[SLOW_FIRINGS_MAX - 1].batch.0), (500, 509, 10));
        let even: Vec<u64> =
            slow.newest(2, |firing| firing.rule.as_str() == "even").iter().map(|firing| firing.batch.0).collect();
        assert_eq!(even, [508, 506]);
    }
}
