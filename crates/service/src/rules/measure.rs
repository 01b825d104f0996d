//! Cost of a rule per event, compared with a baseline rule that matches nothing.

use std::time::{Duration, Instant};

use tocsin_matching::{
    eval_value::EvalError,
    rule::RuleNumber,
    shard::{MatchSink, Run, Shard},
};
use tocsin_model::{application::Rule, field::Row, id::EventId, problem::Code, time::Timestamp};
use tocsin_pipeline::Compiled;
use tocsin_store::queries::QueryTables;

use super::{
    Sample, Tested, alone, nothing,
    test_index::{TestIndex, batch_of},
};
use crate::error::ServiceError;

/// Duration of a measurement; at least one round is made.
const MEASURED_MAX: Duration = Duration::from_secs(2);
/// Maximum number of rounds.
const ROUNDS_MAX: usize = 1_000;

/// Cost per event: medians over rounds in which the rule and the baseline alternate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Number of rounds.
    pub rounds: usize,
    /// Time of the rule per event.
    pub rule: Duration,
    /// Time of the baseline per event.
    pub baseline: Duration,
}

/// A baseline rule over the same events that matches nothing as fast as possible: a query without rows if the tested
/// rule has a query.
pub(super) fn baseline(compiled: &Compiled, tested: &Tested) -> Result<Tested, ServiceError> {
    let (name, class) = nothing();
    let mut rule = Rule::new(tested.on.clone(), tested.class.clone(), name.clone());
    match tested.queries.is_empty() {
        true => rule.when = Some("false".to_owned()),
        false => rule.sql = Some("SELECT 0 AS _event, 0 AS _subscription WHERE 0".to_owned()),
    }
    alone(compiled, &name, rule, Some(class), "")
}

/// Measures a rule over events by its index.
pub(super) fn measure(
    mut index: TestIndex,
    tested: &Tested,
    baseline: &Tested,
    samples: Vec<Sample>,
    now: Timestamp,
) -> Result<Cost, ServiceError> {
    let rows: Vec<Row> = samples.into_iter().map(|sample| sample.row).collect();
    let tables = QueryTables::open(baseline.queries.clone())?.map(parking_lot::Mutex::new);
    let mut empty = TestIndex { shard: Shard::new(baseline.rules.clone()), tables };
    let began = Instant::now();
    let (mut of_rule, mut of_baseline) = (Vec::new(), Vec::new());
    while of_rule.is_empty() || of_rule.len() < ROUNDS_MAX && began.elapsed() < MEASURED_MAX {
        of_baseline.push(took(&mut empty, baseline, &rows, now)?);
        of_rule.push(took(&mut index, tested, &rows, now)?);
    }
    let each = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2] / u32::try_from(rows.len().max(1)).unwrap_or(u32::MAX)
    };
    Ok(Cost { rounds: of_rule.len(), rule: each(&mut of_rule), baseline: each(&mut of_baseline) })
}

/// Time of a rule for all events.
fn took(index: &mut TestIndex, tested: &Tested, rows: &[Row], now: Timestamp) -> Result<Duration, ServiceError> {
    let batch = batch_of(tested, rows, now);
    let began = Instant::now();
    let fired = index.fire(tested, &batch, rows, &mut Nobody);
    let took = began.elapsed();
    fired
        .map(|()| took)
        .map_err(|reason| ServiceError::invalid(Code::NotApplicable, "rule", format!("cannot be measured: {reason}")))
}

/// A sink that discards matches.
struct Nobody;

impl MatchSink for Nobody {
    fn run(&mut self, _: Run<'_>) {}
    fn rule_failed(&mut self, _: RuleNumber, _: EventId, _: EvalError) {}
    fn subscriptions_failed(&mut self, _: RuleNumber, _: EventId, _: EvalError, _: u32) {}
}
