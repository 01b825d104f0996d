//! Matching, cutting and packing on one core: events in, packed notification batches out, ready to be committed.

use std::{hint::black_box, time::Instant};

use tocsin_matching::cut::NotificationCutter;

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

/// A measured round takes at least this long, in seconds.
const ROUND_SECONDS: f64 = 0.5;

async fn run(context: &Context) -> Outcome<Figure> {
    let subscribers = context.size(200_000, 2_000);
    let turns = context.turns();
    busy(move || {
        let compiled = market::compiled()?;
        let (mut shard, _) = market::shard(&compiled, subscribers, 1)?;
        let (fields, batches) = (market::quote_fields(&compiled)?, market::event_batches(&compiled)?);
        let mut cutter = NotificationCutter::new();
        // Gives notifications and packed bytes of a pass.
        let mut pass = || {
            let (mut notifications, mut bytes) = (0, 0);
            for batch in &batches {
                let matched = shard.match_batch(batch, &fields, &mut cutter);
                matched.map_err(|error| Failure::failed("a batch cannot be matched").because(&error))?;
                let (cut, failures) = cutter.finish(&compiled.rules);
                if !failures.is_empty() {
                    return Err(Failure::failed("a rule could not be decided"));
                }
                for batch in cut {
                    notifications += batch.notifications.count();
                    bytes += black_box(batch.notifications.pack()).len();
                }
            }
            Ok((notifications, bytes))
        };
        let expected: u64 = market::expected(subscribers, 0..BATCHES).iter().sum();
        let (notifications, bytes) = pass()?;
        if notifications as u64 != expected {
            return Err(Failure::failed(format!(
                "{notifications} notifications were made, and trying one by one finds {expected}"
            )));
        }
        let mut ours = Samples::default();
        for _ in turns {
            let (started, mut made) = (Instant::now(), 0);
            while started.elapsed().as_secs_f64() < ROUND_SECONDS {
                made += pass()?.0;
            }
            ours.push(made as f64 / started.elapsed().as_secs_f64());
        }
        let each = notifications as f64 / BATCHES as f64;
        let millis = each / ours.median() * 1e3;
        Ok(Figure::new("notifications/s", ours)
            .under(format!("{} subscriptions", subscribers * ORDERS_EACH))
            .under("one core")
            .under(format!("batches of 1000 events with {each:.0} notifications, {} ms each", rounded(millis, 3)))
            .under(format!("{} packed bytes a notification", rounded(bytes as f64 / notifications.max(1) as f64, 3))))
    })
    .await?
}
