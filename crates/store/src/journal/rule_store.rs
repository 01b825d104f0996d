//! Rule firings, stopped rules and rule state.

use async_trait::async_trait;
use tocsin_model::{id::Name, state::StatePage};

use super::{Firing, FiringFilter, RuleStop};
use crate::error::StoreError;

/// State of rules: firings that failed or were skipped, stopped rules, and pages of rule state. Steps write firings and
/// state ([`WorkQueue::commit`](super::WorkQueue::commit)); this facet reads them and changes them on request of an
/// operator.
///
/// A change is durable when the call returns. Repeating it has no further effect.
#[async_trait]
pub trait RuleStore: Send + Sync + 'static {
    /// Up to `limit` pages of an application's rule state, after the given one. The order is fixed per backend.
    async fn state_pages(
        &self,
        application: &Name,
        after: Option<&StatePage>,
        limit: usize,
    ) -> Result<Vec<StatePage>, StoreError>;

    /// Failed and skipped firings, oldest first, from after the number `after`.
    async fn firings(&self, filter: &FiringFilter, after: u64, limit: usize) -> Result<Vec<Firing>, StoreError>;

    /// Dismisses firings: they leave the list and are not repeated. Returns the number of event batches.
    async fn dismiss_firings(&self, filter: &FiringFilter) -> Result<u64, StoreError>;

    /// Stops a rule. A rule that is stopped already keeps its first stop.
    async fn stop_rule(&self, stop: RuleStop) -> Result<(), StoreError>;

    /// Resumes a stopped rule. Returns whether it was stopped.
    async fn resume_rule(&self, application: &Name, rule: &Name) -> Result<bool, StoreError>;

    /// All stopped rules, by application and name.
    async fn rule_stops(&self) -> Result<Vec<RuleStop>, StoreError>;
}
