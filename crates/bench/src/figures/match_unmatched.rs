//! Figure `match.unmatched`: cost of an event with many subscriptions that never match: orders for symbols without
//! quotes, and orders for quoted symbols at unreachable prices.

use tocsin_matching::shard::Shard;

use crate::{
    bench::{Bench, Measuring},
    examples::stock::{Kind, Order, SYMBOLS},
    failure::{Failure, Outcome},
    {
        context::{Context, run_blocking},
        figure::{Figure, Samples},
        match_harness::MatchHarness,
        stock_workload::{self, ORDERS_EACH, OrderIndexer},
    },
};

/// Benchmark of this file.
pub const BENCH: Bench = Bench {
    name: "match.stock.unmatched",
    about: "events/s with 1,000,000 subscriptions and 4,000,000 that never match; peer: without those",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

async fn run(context: &Context) -> Outcome<Figure> {
    let subscribers = context.size(200_000, 2_000);
    let turns = context.turns();
    run_blocking(move || {
        let compiled = stock_workload::compiled()?;
        let (alone, _) = stock_workload::shard(&compiled, subscribers, 1)?;
        let (mut crowded, _) = stock_workload::shard(&compiled, subscribers, 1)?;
        add_unmatched(&mut crowded, 4 * subscribers * ORDERS_EACH)?;
        let others = crowded.len() - alone.len();
        let (mut alone, mut crowded) = (MatchHarness::new(&compiled, alone)?, MatchHarness::new(&compiled, crowded)?);
        let (mut ours, mut peer) = (Samples::default(), Samples::default());
        for _ in turns {
            let ((with, found), (without, expected)) = (crowded.round()?, alone.round()?);
            if found != expected {
                return Err(Failure::failed(format!(
                    "{found} matches with the additional subscriptions, {expected} without"
                )));
            }
            // A pass is ten batches of a thousand events.
            ours.push(with * 1e4);
            peer.push(without * 1e4);
        }
        Ok(Figure::new("events/s", ours)
            .with_peer("without those that never match", peer)
            .with_condition(format!("{} subscriptions and {others} that never match", subscribers * ORDERS_EACH))
            .with_condition("a quarter of those in the searched groups")
            .with_condition("ids out, one core"))
    })
    .await?
}

/// Three of four orders are for symbols without quotes, one for a quoted symbol at an unreachable price.
fn add_unmatched(shard: &mut Shard, count: u32) -> Outcome {
    let (filing, first) = (OrderIndexer::new(), shard.len() as u64 + 1);
    for number in 0..count {
        let symbol = (number as usize / 4 % SYMBOLS) as u16;
        let without_quotes = number % 4 > 0;
        let order = Order {
            subscriber: number,
            place: 0,
            symbol: if without_quotes { symbol + SYMBOLS as u16 } else { symbol },
            kind: [Kind::Limit, Kind::Change, Kind::Volume][number as usize % 3],
            trigger: 1_000_000_000 + i64::from(number),
        };
        filing.put(shard, first + u64::from(number), &order)?;
    }
    Ok(())
}
