//! An index in this process, and batches of quotes that it is asked about again and again.

use std::{hint::black_box, time::Instant};

use tocsin_matching::{
    datum::Trouble,
    rule::RuleNumber,
    shard::{MatchSink, Run, Shard},
};
use tocsin_model::{
    event::EventBatch,
    field::Fields,
    id::{EventId, SubscriptionId},
};
use tocsin_pipeline::Compiled;

use super::market;
use crate::failure::{Failure, Outcome};

/// A measured round takes at least this long, in seconds.
const ROUND_SECONDS: f64 = 0.2;

/// Takes the ids of what matches, and counts failures.
#[derive(Default)]
struct Ids {
    ids: Vec<SubscriptionId>,
    failures: u64,
}

impl MatchSink for Ids {
    fn run(&mut self, run: Run<'_>) {
        run.append_ids(&mut self.ids);
    }

    fn rule_failed(&mut self, _: RuleNumber, _: EventId, _: Trouble) {
        self.failures += 1;
    }

    fn subscriptions_failed(&mut self, _: RuleNumber, _: EventId, _: Trouble, _: u32) {
        self.failures += 1;
    }
}

/// An index of one owner and ten batches of quotes.
pub struct Bed {
    /// The index.
    pub shard: Shard,
    fields: Fields,
    batches: Vec<EventBatch>,
    sink: Ids,
}

impl Bed {
    /// For an index of the stock example's rules.
    ///
    /// # Errors
    /// The definition has no quotes.
    pub fn new(compiled: &Compiled, shard: Shard) -> Outcome<Self> {
        let (fields, batches) = (market::quote_fields(compiled)?, market::event_batches(compiled)?);
        Ok(Bed { shard, fields, batches, sink: Ids::default() })
    }

    /// Matches one of the batches, ids out. Gives the number of matches.
    ///
    /// # Errors
    /// Something could not be decided.
    pub fn batch(&mut self, number: usize) -> Outcome<u64> {
        self.sink.ids.clear();
        let batch = &self.batches[number % self.batches.len()];
        let matched = self.shard.match_batch(batch, &self.fields, &mut self.sink);
        matched.map_err(|error| Failure::failed("a batch cannot be matched").because(&error))?;
        match self.sink.failures {
            0 => Ok(black_box(&self.sink.ids).len() as u64),
            _ => Err(Failure::failed("a rule could not be decided")),
        }
    }

    /// Matches every batch once. Gives the number of matches.
    ///
    /// # Errors
    /// Something could not be decided.
    pub fn pass(&mut self) -> Outcome<u64> {
        (0..self.batches.len()).map(|number| self.batch(number)).sum()
    }

    /// Passes/s and the matches of a pass, over as many passes as a round holds.
    ///
    /// # Errors
    /// Something could not be decided.
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
