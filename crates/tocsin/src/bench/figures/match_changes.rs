//! Subscriptions are added, changed and removed while the index goes on matching: one owner, batches in between.

use std::time::{Duration, Instant};

use tocsin_model::id::SubscriptionId;

use super::{Bench, Measuring};
use crate::{
    bench::{
        bed::Bed,
        context::{Context, busy},
        figure::{Figure, Samples, rounded},
        market::{self, Filing, ORDERS_EACH},
    },
    examples::stock::{Market, Order, SEED},
    failure::{Failure, Outcome},
};

/// The figure.
pub const BENCH: Bench = Bench {
    name: "match.changes",
    about: "subscriptions/s added, changed and removed by thirds while an index of 1,000,000 goes on matching, one core",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// Changes between two batches.
const CHANGES: usize = 10_000;
/// Batches in a round.
const ROUND_BATCHES: usize = 40;

async fn run(context: &Context) -> Outcome<Figure> {
    let subscribers = context.size(200_000, 2_000);
    let batches = context.size(ROUND_BATCHES, 2);
    let turns = context.turns();
    busy(move || {
        let compiled = market::compiled()?;
        let (shard, _) = market::shard(&compiled, subscribers, 1)?;
        let mut bed = Bed::new(&compiled, shard)?;
        let market = Market::new(SEED);
        let filing = Filing::new();
        // By id less one; nothing where an order was removed.
        let mut orders: Vec<Option<Order>> = market.orders(subscribers, ORDERS_EACH).map(Some).collect();
        let mut new = market.orders(u32::MAX, 1).skip(orders.len());
        let mut random = fastrand::Rng::with_seed(SEED);
        let (mut ours, mut share) = (Samples::default(), Samples::default());
        for _ in turns {
            let (mut changing, mut matching) = (Duration::ZERO, Duration::ZERO);
            for number in 0..batches {
                let mut changes: Vec<(u64, Option<Order>)> = Vec::with_capacity(CHANGES);
                for at in 0..CHANGES {
                    // One is added, one that is there or was there changes, one goes.
                    let place = if at % 3 == 0 { orders.len() } else { random.usize(0..orders.len()) };
                    let order = new.next().filter(|_| at % 3 < 2);
                    if place == orders.len() {
                        orders.push(order);
                    } else {
                        orders[place] = order;
                    }
                    changes.push((place as u64 + 1, order));
                }
                let started = Instant::now();
                for (id, order) in &changes {
                    match order {
                        Some(order) => filing.put(&mut bed.shard, *id, order)?,
                        None => bed.shard.remove(SubscriptionId(*id)),
                    }
                }
                changing += started.elapsed();
                let started = Instant::now();
                let found = bed.batch(number)?;
                matching += started.elapsed();
                if number + 1 == batches {
                    check(&market, &orders, number, found)?;
                }
            }
            let whole = (changing + matching).as_secs_f64();
            ours.push((batches * CHANGES) as f64 / whole);
            share.push(matching.as_secs_f64() / whole * 100.0);
        }
        let bytes = bed.shard.memory_bytes() as f64 / bed.shard.len() as f64;
        Ok(Figure::new("changes/s", ours)
            .under(format!("{} subscriptions at first, {} at last", subscribers * ORDERS_EACH, bed.shard.len()))
            .under(format!("one core, a batch of 1000 events after each {CHANGES} changes, its time counts"))
            .under(format!("{} % of the time went into matching", rounded(share.median(), 3)))
            .under(format!("{} bytes a subscription at last", rounded(bytes, 3)))
            .under("matches checked one by one"))
    })
    .await?
}

/// What a batch found is what trying the orders one by one finds.
fn check(market: &Market, orders: &[Option<Order>], number: usize, found: u64) -> Outcome {
    let quotes = market.quotes(number as u64 % market::BATCHES);
    let met = |order: &&Order| order.is_met_by(&quotes[usize::from(order.symbol)]);
    let expected = orders.iter().flatten().filter(met).count() as u64;
    if found == expected {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{found} matches were found after the changes, and trying one by one finds {expected}"
    )))
}
