//! Match harness: an in-process index and batches of quotes to match against it.

use std::{hint::black_box, time::Instant};

use tocsin_matching::{
    eval_value::EvalError,
    rule::RuleNumber,
    shard::{MatchSink, Run, Shard},
};
use tocsin_model::{
    event::EventBatch,
    field::Fields,
    id::{EventId, SubscriptionId},
};
use tocsin_pipeline::Compiled;

use super::stock_workload;
use crate::failure::{Failure, Outcome};

/// Minimum duration of a measured round, in seconds.
const ROUND_SECONDS: f64 = 0.2;

/// Match sink that collects subscription ids and counts failures.
#[derive(Default)]
struct Ids {
    ids: Vec<SubscriptionId>,
    failures: u64,
}

impl MatchSink for Ids {
    fn run(&mut self, run: Run<'_>) {
        run.append_ids(&mut self.ids);
    }

    fn rule_failed(&mut self, _: RuleNumber, _: EventId, _: EvalError) {
        self.failures += 1;
    }

    fn subscriptions_failed(&mut self, _: RuleNumber, _: EventId, _: EvalError, _: u32) {
        self.failures += 1;
    }
}

/// In-process matching index of the stock example, with ten batches of quotes.
pub struct MatchHarness {
    /// Index under test.
    pub shard: Shard,
    fields: Fields,
    batches: Vec<EventBatch>,
    sink: Ids,
}

impl MatchHarness {
    /// Creates a harness for an index of the stock example's rules.
    ///
    /// # Errors
    /// If the definition has no quotes.
    pub fn new(compiled: &Compiled, shard: Shard) -> Outcome<Self> {
        let (fields, batches) = (stock_workload::quote_fields(compiled)?, stock_workload::event_batches(compiled)?);
        Ok(MatchHarness { shard, fields, batches, sink: Ids::default() })
    }

    /// Matches batch `number` (modulo the number of batches) and returns the number of matches.
    ///
    /// # Errors
    /// If a rule or filter cannot be evaluated.
    pub fn batch(&mut self, number: usize) -> Outcome<u64> {
        self.sink.ids.clear();
        let batch = &self.batches[number % self.batches.len()];
        let matched = self.shard.match_batch(batch, &self.fields, &mut self.sink);
        matched.map_err(|error| Failure::failed("a batch cannot be matched").because(&error))?;
        match self.sink.failures {
            0 => Ok(black_box(&self.sink.ids).len() as u64),
            _ => Err(Failure::failed("a rule could not be evaluated")),
        }
    }

    /// Matches every batch once and returns the number of matches.
    ///
    /// # Errors
    /// If a rule or filter cannot be evaluated.
    pub fn pass(&mut self) -> Outcome<u64> {
        (0..self.batches.len()).map(|number| self.batch(number)).sum()
    }

    /// Repeats passes for at least [`ROUND_SECONDS`]; returns passes/s and the matches of one pass.
    ///
    /// # Errors
    /// If a rule or filter cannot be evaluated.
    pub fn round(&mut self) -> Outcome<(f64, u64)> {
        let (started, mut passes) = (Instant::now(), 0);
        loop {
            let matches = self.pass()?;
            passes += 1;
            let seconds = started.elapsed().as_secs_f64();
            if seconds > ROUND_SECONDS {
                return Ok((f64::from(passes) / seconds, matches));
            }
        }
    }
}
