//! What an event costs beside subscriptions that it does not concern: orders for symbols that nobody quotes, and orders
//! for quoted symbols that no quote comes near.

use tocsin_matching::shard::Shard;

use super::{Bench, Measuring};
use crate::{
    bench::{
        bed::Bed,
        context::{Context, busy},
        figure::{Figure, Samples},
        market::{self, Filing, ORDERS_EACH},
    },
    examples::stock::{Kind, Order, SYMBOLS},
    failure::{Failure, Outcome},
};

/// The figure.
pub const BENCH: Bench = Bench {
    name: "match.stock.unmatched",
    about: "events/s with 1,000,000 subscriptions and 4,000,000 that never match; peer: without those",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

async fn run(context: &Context) -> Outcome<Figure> {
    let subscribers = context.size(200_000, 2_000);
    let turns = context.turns();
    busy(move || {
        let compiled = market::compiled()?;
        let (alone, _) = market::shard(&compiled, subscribers, 1)?;
        let (mut crowded, _) = market::shard(&compiled, subscribers, 1)?;
        add_unmatched(&mut crowded, 4 * subscribers * ORDERS_EACH)?;
        let others = crowded.len() - alone.len();
        let (mut alone, mut crowded) = (Bed::new(&compiled, alone)?, Bed::new(&compiled, crowded)?);
        let (mut ours, mut peer) = (Samples::default(), Samples::default());
        for _ in turns {
            let ((with, found), (without, expected)) = (crowded.round()?, alone.round()?);
            if found != expected {
                return Err(Failure::failed(format!(
                    "{found} matches are found beside the others, {expected} without"
                )));
            }
            // A pass is ten batches of a thousand events.
            ours.push(with * 1e4);
            peer.push(without * 1e4);
        }
        Ok(Figure::new("events/s", ours)
            .beside("the same without those that never match", peer)
            .under(format!("{} subscriptions and {others} that never match", subscribers * ORDERS_EACH))
            .under("a quarter of those in the very groups that are searched")
            .under("ids out, one core"))
    })
    .await?
}

/// Three of four wait for symbols that nobody quotes, one for a quoted symbol at a price that no quote comes near.
fn add_unmatched(shard: &mut Shard, count: u32) -> Outcome {
    let (filing, first) = (Filing::new(), shard.len() as u64 + 1);
    for number in 0..count {
        let symbol = (number as usize / 4 % SYMBOLS) as u16;
        let far = number % 4 > 0;
        let order = Order {
            subscriber: number,
            place: 0,
            symbol: if far { symbol + SYMBOLS as u16 } else { symbol },
            kind: [Kind::Limit, Kind::Change, Kind::Volume][number as usize % 3],
            trigger: 1_000_000_000 + i64::from(number),
        };
        filing.put(shard, first + u64::from(number), &order)?;
    }
    Ok(())
}
