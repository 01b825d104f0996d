//! Evaluation plans of rules.

use serde::Serialize;
use tocsin_service::applications::RuleExplanation;
use utoipa::ToSchema;

/// Evaluation plan of a rule.
#[derive(Serialize, ToSchema)]
pub(crate) struct RuleBody {
    rule: String,
    /// The segment that limits the recipients, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    audience: Option<String>,
    /// Its alternatives; a subscription that several of them find is matched once.
    branches: Vec<BranchBody>,
    /// State clauses of the rule, which suppress matches.
    remembers: Vec<String>,
    /// The own filters of its class's subscriptions, of a rule that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    filters: Option<FilterFiguresBody>,
    /// The store's query plan, for a SQL rule.
    query: Vec<String>,
    /// Warnings for the author.
    warnings: Vec<String>,
}

/// Evaluation plan of one alternative of a rule.
#[derive(Serialize, ToSchema)]
pub(crate) struct BranchBody {
    /// Tested once per event.
    event_guards: Vec<String>,
    /// Tested once when a subscription is put.
    subscription_guards: Vec<String>,
    /// Answered by the hash.
    keys: Vec<String>,
    /// Answered by the sorted column.
    range: Vec<String>,
    /// Whether the subscriptions' own filters have a say: where no index answers, the candidates are those whose filter
    /// matches and those without one.
    filters: bool,
    /// Checked for each candidate that the index gives.
    residual: Vec<String>,
    /// Average number of subscriptions that the index returns for an event; a slice takes a share of them. Only for
    /// running rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    candidates: Option<u64>,
}

/// The own filters of the subscriptions of a rule's class, and what they cost since the index was built.
#[derive(Serialize, ToSchema)]
pub(crate) struct FilterFiguresBody {
    /// Distinct filters; one that subscriptions of several shards have counts on each.
    distinct: u64,
    /// Number of subscriptions that are checked for every event.
    unindexed: u64,
    /// Events that they were asked about.
    events: u64,
    /// Alternatives that were looked at, since their values were found.
    candidates: u64,
    /// Filters that were evaluated because the index does not decide them.
    evaluated: u64,
    /// Filters that matched.
    matched: u64,
}

impl From<RuleExplanation> for RuleBody {
    fn from(rule: RuleExplanation) -> Self {
        let branches = rule.branches.into_iter().map(|branch| BranchBody {
            event_guards: branch.event_guards,
            subscription_guards: branch.subscription_guards,
            keys: branch.keys,
            range: branch.range,
            filters: branch.filters,
            residual: branch.residual,
            candidates: branch.candidates,
        });
        let filters = rule.filters.map(|filters| FilterFiguresBody {
            distinct: filters.distinct,
            unindexed: filters.unindexed,
            events: filters.counts.events,
            candidates: filters.counts.candidates,
            evaluated: filters.counts.evaluated,
            matched: filters.counts.matched,
        });
        RuleBody {
            rule: rule.rule.to_string(),
            audience: rule.audience.as_ref().map(ToString::to_string),
            branches: branches.collect(),
            remembers: rule.suppression,
            filters,
            query: rule.query,
            warnings: rule.warnings,
        }
    }
}
