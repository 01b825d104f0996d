//! What an index holds and what it costs, in figures that cost nothing to read.

use std::ops::AddAssign;

use crate::{
    filter::index::Counts,
    rule::{RuleExplanation, RuleSet},
};

/// Figures of the index of a rule set. Those of its shards are added up.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// For each branch, how many subscriptions stand where the index leads an event, on average.
    pub(crate) branches: Vec<f64>,
    /// For each filter plan.
    pub(crate) filters: Vec<FilterFigures>,
}

/// What the own filters of the subscriptions of a class are, and what they cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct FilterFigures {
    /// Distinct filters; one that subscriptions of several shards have counts on each.
    pub distinct: u64,
    /// Those of them that are looked at for every event.
    pub unindexed: u64,
    /// Places in which their alternatives are filed.
    pub groups: u64,
    /// What was done with them since the index was built.
    pub counts: Counts,
}

impl Figures {
    /// The filters of all plans together.
    pub fn filters(&self) -> FilterFigures {
        let mut sum = FilterFigures::default();
        for figures in &self.filters {
            sum.distinct += figures.distinct;
            sum.unindexed += figures.unindexed;
            sum.groups += figures.groups;
            sum.counts += figures.counts;
        }
        sum
    }

    /// Puts them into what is said of the rules.
    pub fn explain(&self, rules: &RuleSet, explanations: &mut [RuleExplanation]) {
        for (rule, explanation) in rules.rules.iter().zip(explanations).filter(|(rule, _)| rule.enabled) {
            explanation.filters = rule.filters.and_then(|plan| self.filters.get(plan)).copied();
            for (branch, said) in self.branches.iter().skip(rule.first_branch).zip(&mut explanation.branches) {
                said.candidates = Some(branch.ceil() as u64);
            }
        }
    }
}

/// Of two shards of the same rule set.
impl AddAssign<&Figures> for Figures {
    fn add_assign(&mut self, other: &Figures) {
        self.branches.resize(self.branches.len().max(other.branches.len()), 0.0);
        self.branches.iter_mut().zip(&other.branches).for_each(|(sum, more)| *sum += more);
        self.filters.resize(self.filters.len().max(other.filters.len()), FilterFigures::default());
        for (sum, more) in self.filters.iter_mut().zip(&other.filters) {
            // Each shard is asked about each event.
            let events = sum.counts.events.max(more.counts.events);
            sum.distinct += more.distinct;
            sum.unindexed += more.unindexed;
            sum.groups += more.groups;
            sum.counts += more.counts;
            sum.counts.events = events;
        }
    }
}
