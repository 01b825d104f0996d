//! Matching, cutting and packing on one core: events in, packed notification batches out, ready to be committed.

use std::{hint::black_box, time::Instant};

use tocsin_matching::{cut::NotificationCutter, shard::Shard};
use tocsin_model::{event::EventBatch, field::Fields};
use tocsin_pipeline::Compiled;

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::{Context, busy},
        figure::{Figure, Samples, rounded},
        market::{self, BATCHES, ORDERS_EACH},
    },
    failure::{Failure, Outcome},
};

/// The figure.
pub const BENCH: Bench = Bench {
    name: "match.stock.generate",
    about: "notifications/s of one core into packed batches ready to commit, 1,000,000 subscriptions",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// The same into many notification batches, and into few.
pub const BY_32: Bench = Bench {
    name: "match.stock.generate.by32",
    about: "the same into 32 notification batches for each rule and batch of events; peer: into one",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run_split(context)) },
};

/// A measured round takes at least this long, in seconds.
const ROUND_SECONDS: f64 = 0.5;
/// More than a rule makes of a batch of events, and as many as a batch may hold.
const BATCH_SIZE_MAX: u32 = 100_000;
/// Into so many batches what one holds is split.
const SPLIT: u64 = 32;

/// The market on one core.
struct Mill {
    compiled: Compiled,
    shard: Shard,
    fields: Fields,
    batches: Vec<EventBatch>,
    cutter: NotificationCutter,
}

/// What a pass over the market made.
#[derive(Default)]
struct Made {
    notifications: u64,
    batches: u64,
    packed_bytes: u64,
}

impl Mill {
    /// The market, whose first pass is right.
    fn prepare(compiled: Compiled, subscribers: u32) -> Outcome<(Mill, Made)> {
        let (shard, _) = market::shard(&compiled, subscribers, 1)?;
        let (fields, batches) = (market::quote_fields(&compiled)?, market::event_batches(&compiled)?);
        let mut mill = Mill { compiled, shard, fields, batches, cutter: NotificationCutter::new() };
        let expected: u64 = market::expected(subscribers, 0..BATCHES).iter().sum();
        let made = mill.pass()?;
        if made.notifications != expected {
            return Err(Failure::failed(format!(
                "{} notifications were made, and trying one by one finds {expected}",
                made.notifications
            )));
        }
        Ok((mill, made))
    }

    fn pass(&mut self) -> Outcome<Made> {
        let mut made = Made::default();
        for batch in &self.batches {
            let matched = self.shard.match_batch(batch, &self.fields, &mut self.cutter);
            matched.map_err(|error| Failure::failed("a batch cannot be matched").because(&error))?;
            let (cut, failures) = self.cutter.finish(&self.compiled.rules);
            if !failures.is_empty() {
                return Err(Failure::failed("a rule could not be decided"));
            }
            for batch in cut {
                made.notifications += batch.notifications.count() as u64;
                made.batches += 1;
                made.packed_bytes += black_box(batch.notifications.pack()).len() as u64;
            }
        }
        Ok(made)
    }

    /// Notifications a second of a round.
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
    busy(move || {
        let (mut mill, Made { notifications, packed_bytes, .. }) = Mill::prepare(market::compiled()?, subscribers)?;
        let mut ours = Samples::default();
        for _ in turns {
            ours.push(mill.round()?);
        }
        let each = notifications as f64 / BATCHES as f64;
        let millis = each / ours.median() * 1e3;
        let bytes_each = packed_bytes as f64 / notifications.max(1) as f64;
        Ok(Figure::new("notifications/s", ours)
            .under(format!("{} subscriptions", subscribers * ORDERS_EACH))
            .under("one core")
            .under(format!("batches of 1000 events with {each:.0} notifications, {} ms each", rounded(millis, 3)))
            .under(format!("{} packed bytes a notification", rounded(bytes_each, 3))))
    })
    .await?
}

async fn run_split(context: &Context) -> Outcome<Figure> {
    let subscribers = context.size(200_000, 2_000);
    let turns = context.turns();
    busy(move || {
        let (mut whole, of_whole) = Mill::prepare(market::compiled_with(BATCH_SIZE_MAX)?, subscribers)?;
        let size = (of_whole.notifications / of_whole.batches.max(1) / SPLIT).max(1);
        let (mut split, of_split) = Mill::prepare(market::compiled_with(u32::try_from(size).expect("it is small"))?, subscribers)?;
        let (mut ours, mut peer) = (Samples::default(), Samples::default());
        for turn in turns {
            for is_split in [turn % 2 == 0, turn % 2 != 0] {
                let (mill, samples) = if is_split { (&mut split, &mut ours) } else { (&mut whole, &mut peer) };
                samples.push(mill.round()?);
            }
        }
        let each = |made: &Made| made.batches / BATCHES;
        Ok(Figure::new("notifications/s", ours)
            .beside("into one batch for each rule", peer)
            .under(format!("{} subscriptions, one core", subscribers * ORDERS_EACH))
            .under(format!(
                "{} notifications of a batch of 1000 events into {} batches of {size} at most, where they are {} otherwise",
                of_whole.notifications / BATCHES,
                each(&of_split),
                each(&of_whole)
            )))
    })
    .await?
}
