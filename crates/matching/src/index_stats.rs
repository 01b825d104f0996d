//! Statistics of an index: sizes and costs, cheap to read.

use std::ops::AddAssign;

use crate::filter::index::Counts;

/// Statistics of the index of a rule set, summed over its shards.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IndexStats {
    /// For each branch, the average number of subscriptions in the group of an event.
    pub(crate) branches: Vec<f64>,
    /// For each filter plan.
    pub(crate) filters: Vec<FilterStats>,
}

/// Statistics of the filters of the subscriptions of a class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct FilterStats {
    /// Distinct filters; a filter with subscriptions in several shards counts on each.
    pub distinct: u64,
    /// Distinct filters that are evaluated for every event.
    pub unindexed: u64,
    /// Index groups that hold their alternatives.
    pub groups: u64,
    /// Work done since the index was built.
    pub counts: Counts,
}

impl IndexStats {
    /// The sum over all plans.
    pub fn filters(&self) -> FilterStats {
        let mut sum = FilterStats::default();
        for index_stats in &self.filters {
            sum.distinct += index_stats.distinct;
            sum.unindexed += index_stats.unindexed;
            sum.groups += index_stats.groups;
            sum.counts += index_stats.counts;
        }
        sum
    }
}

/// Adds the statistics of another shard of the same rule set.
impl AddAssign<&IndexStats> for IndexStats {
    fn add_assign(&mut self, other: &IndexStats) {
        self.branches.resize(self.branches.len().max(other.branches.len()), 0.0);
        self.branches.iter_mut().zip(&other.branches).for_each(|(sum, more)| *sum += more);
        self.filters.resize(self.filters.len().max(other.filters.len()), FilterStats::default());
        for (sum, more) in self.filters.iter_mut().zip(&other.filters) {
            // Each shard evaluates each event, so events are not added up.
            let events = sum.counts.events.max(more.counts.events);
            sum.distinct += more.distinct;
            sum.unindexed += more.unindexed;
            sum.groups += more.groups;
            sum.counts += more.counts;
            sum.counts.events = events;
        }
    }
}
