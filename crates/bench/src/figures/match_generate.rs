//! Figures `match.stock.generate*`: matching, batching and packing on one core, from events to packed notification
//! batches.

use std::{hint::black_box, time::Instant};

use tocsin_matching::{cut::NotificationCutter, shard::Shard};
use tocsin_model::{event::EventBatch, field::Fields};
use tocsin_pipeline::Compiled;

use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::{Context, run_blocking},
        figure::{Figure, Samples, rounded},
        stock_workload::{self, BATCHES, ORDERS_EACH},
    },
};

/// Benchmark of this file.
pub const BENCH: Bench = Bench {
    name: "match.stock.generate",
    about: "notifications/s of one core into packed batches ready to commit, 1,000,000 subscriptions",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// Many small notification batches, compared with few large ones.
pub const BY_32: Bench = Bench {
    name: "match.stock.generate.by32",
    about: "the same into 32 notification batches per rule and event batch; peer: one",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run_split(context)) },
};

/// Minimum duration of a measured round, in seconds.
const ROUND_SECONDS: f64 = 0.5;
/// More than a rule produces from an event batch, and the maximum of a batch.
const BATCH_SIZE_MAX: u32 = 100_000;
/// Number of batches that the notifications of one batch are split into.
const SPLIT: u64 = 32;

/// Batch generator for the market, on one core.
struct BatchGenerator {
    compiled: Compiled,
    shard: Shard,
    fields: Fields,
    batches: Vec<EventBatch>,
    cutter: NotificationCutter,
}

/// Result of a pass over the market.
#[derive(Default)]
struct GeneratedPass {
    notifications: u64,
    batches: u64,
    packed_bytes: u64,
}

impl BatchGenerator {
    /// Creates a generator and verifies its first pass.
    fn prepare(compiled: Compiled, subscribers: u32) -> Outcome<(BatchGenerator, GeneratedPass)> {
        let (shard, _) = stock_workload::shard(&compiled, subscribers, 1)?;
        let (fields, batches) = (stock_workload::quote_fields(&compiled)?, stock_workload::event_batches(&compiled)?);
        let mut mill = BatchGenerator { compiled, shard, fields, batches, cutter: NotificationCutter::new() };
        let expected: u64 = stock_workload::expected(subscribers, 0..BATCHES).iter().sum();
        let made = mill.pass()?;
        if made.notifications != expected {
            return Err(Failure::failed(format!(
                "{} notifications were generated; testing every order finds {expected}",
                made.notifications
            )));
        }
        Ok((mill, made))
    }

    fn pass(&mut self) -> Outcome<GeneratedPass> {
        let mut made = GeneratedPass::default();
        for batch in &self.batches {
            let matched = self.shard.match_batch(batch, &self.fields, &mut self.cutter);
            matched.map_err(|error| Failure::failed("a batch cannot be matched").because(&error))?;
            let (cut, failures) = self.cutter.finish(&self.compiled.rules);
            if !failures.is_empty() {
                return Err(Failure::failed("a rule could not be evaluated"));
            }
            for batch in cut {
                made.notifications += batch.notifications.count() as u64;
                made.batches += 1;
                made.packed_bytes += black_box(batch.notifications.pack()).len() as u64;
            }
        }
        Ok(made)
    }

    /// Notifications per second of a round.
    fn round(&mut self) -> Outcome<f64> {
        let (started, mut made) = (Instant::now(), 0);
        while started.elapsed().as_secs_f64() < ROUND_SECONDS {
            made += self.pass()?.notifications;
        }
        Ok(made as f64 / started.elapsed().as_secs_f64())
    }
}

async fn run(context: &Context) -> Outcome<Figure> {
    let subscribers = context.size(200_000, 2_000);
    let turns = context.turns();
    run_blocking(move || {
        let (mut mill, GeneratedPass { notifications, packed_bytes, .. }) =
            BatchGenerator::prepare(stock_workload::compiled()?, subscribers)?;
        let mut ours = Samples::default();
        for _ in turns {
            ours.push(mill.round()?);
        }
        let each = notifications as f64 / BATCHES as f64;
        let millis = each / ours.median() * 1e3;
        let bytes_each = packed_bytes as f64 / notifications.max(1) as f64;
        Ok(Figure::new("notifications/s", ours)
            .with_condition(format!("{} subscriptions", subscribers * ORDERS_EACH))
            .with_condition("one core")
            .with_condition(format!(
                "batches of 1000 events with {each:.0} notifications, {} ms each",
                rounded(millis, 3)
            ))
            .with_condition(format!("{} packed bytes per notification", rounded(bytes_each, 3))))
    })
    .await?
}

async fn run_split(context: &Context) -> Outcome<Figure> {
    let subscribers = context.size(200_000, 2_000);
    let turns = context.turns();
    run_blocking(move || {
        let (mut whole, of_whole) =
            BatchGenerator::prepare(stock_workload::compiled_with(BATCH_SIZE_MAX)?, subscribers)?;
        let size = (of_whole.notifications / of_whole.batches.max(1) / SPLIT).max(1);
        let (mut split, of_split) = BatchGenerator::prepare(
            stock_workload::compiled_with(u32::try_from(size).expect("it is at most BATCH_SIZE_MAX"))?,
            subscribers,
        )?;
        let (mut ours, mut peer) = (Samples::default(), Samples::default());
        for turn in turns {
            for is_split in [turn % 2 == 0, turn % 2 != 0] {
                let (mill, samples) = if is_split { (&mut split, &mut ours) } else { (&mut whole, &mut peer) };
                samples.push(mill.round()?);
            }
        }
        let each = |made: &GeneratedPass| made.batches / BATCHES;
        Ok(Figure::new("notifications/s", ours)
            .with_peer("one batch per rule", peer)
            .with_condition(format!("{} subscriptions, one core", subscribers * ORDERS_EACH))
            .with_condition(format!(
                "{} notifications of a batch of 1000 events in {} batches of at most {size}, otherwise in {}",
                of_whole.notifications / BATCHES,
                each(&of_split),
                each(&of_whole)
            )))
    })
    .await?
}
