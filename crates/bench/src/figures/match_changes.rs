//! Figure `match.changes`: subscriptions are added, replaced and removed between batches of matching, on one index
//! shard.

use std::time::{Duration, Instant};

use tocsin_model::id::SubscriptionId;

use crate::{
    bench::{Bench, Measuring},
    examples::stock::{Market, Order, SEED},
    failure::{Failure, Outcome},
    {
        context::{Context, run_blocking},
        figure::{Figure, Samples, rounded},
        match_harness::MatchHarness,
        stock_workload::{self, ORDERS_EACH, OrderIndexer},
    },
};

/// Benchmark of this file.
pub const BENCH: Bench = Bench {
    name: "match.changes",
    about: "subscriptions/s added, replaced and removed in equal parts in an index of 1,000,000 that matches in between, one core",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// Changes between two batches.
const CHANGES: usize = 10_000;
/// Batches per round.
const ROUND_BATCHES: usize = 40;

async fn run(context: &Context) -> Outcome<Figure> {
    let subscribers = context.size(200_000, 2_000);
    let batches = context.size(ROUND_BATCHES, 2);
    let turns = context.turns();
    run_blocking(move || {
        let compiled = stock_workload::compiled()?;
        let (shard, _) = stock_workload::shard(&compiled, subscribers, 1)?;
        let mut harness = MatchHarness::new(&compiled, shard)?;
        let market = Market::new(SEED);
        let filing = OrderIndexer::new();
        // Index: id minus one. `None` where an order was removed.
        let mut orders: Vec<Option<Order>> = market.orders(subscribers, ORDERS_EACH).map(Some).collect();
        let mut new = market.orders(u32::MAX, 1).skip(orders.len());
        let mut random = fastrand::Rng::with_seed(SEED);
        let (mut ours, mut share) = (Samples::default(), Samples::default());
        for _ in turns {
            let (mut changing, mut matching) = (Duration::ZERO, Duration::ZERO);
            for number in 0..batches {
                let mut changes: Vec<(u64, Option<Order>)> = Vec::with_capacity(CHANGES);
                for at in 0..CHANGES {
                    // In turn: add a new order, replace an existing or removed one, remove one.
                    let index = if at % 3 == 0 { orders.len() } else { random.usize(0..orders.len()) };
                    let order = new.next().filter(|_| at % 3 < 2);
                    if index == orders.len() {
                        orders.push(order);
                    } else {
                        orders[index] = order;
                    }
                    changes.push((index as u64 + 1, order));
                }
                let started = Instant::now();
                for (id, order) in &changes {
                    match order {
                        Some(order) => filing.put(&mut harness.shard, *id, order)?,
                        None => harness.shard.remove(SubscriptionId(*id)),
                    }
                }
                changing += started.elapsed();
                let started = Instant::now();
                let found = harness.batch(number)?;
                matching += started.elapsed();
                if number + 1 == batches {
                    check(&market, &orders, number, found)?;
                }
            }
            let whole = (changing + matching).as_secs_f64();
            ours.push((batches * CHANGES) as f64 / whole);
            share.push(matching.as_secs_f64() / whole * 100.0);
        }
        let bytes = harness.shard.memory_bytes() as f64 / harness.shard.len() as f64;
        Ok(Figure::new("changes/s", ours)
            .with_condition(format!(
                "{} subscriptions at the start, {} at the end",
                subscribers * ORDERS_EACH,
                harness.shard.len()
            ))
            .with_condition(format!("one core, a batch of 1000 events after each {CHANGES} changes, its time included"))
            .with_condition(format!("{} % of the time was spent matching", rounded(share.median(), 3)))
            .with_condition(format!("{} bytes per subscription at the end", rounded(bytes, 3)))
            .with_condition("matches verified by testing every order"))
    })
    .await?
}

/// Checks the matches of a batch against testing every order.
fn check(market: &Market, orders: &[Option<Order>], number: usize, found: u64) -> Outcome {
    let quotes = market.quotes(number as u64 % stock_workload::BATCHES);
    let met = |order: &&Order| order.is_met_by(&quotes[usize::from(order.symbol)]);
    let expected = orders.iter().flatten().filter(met).count() as u64;
    if found == expected {
        return Ok(());
    }
    Err(Failure::failed(format!("{found} matches were found after the changes; testing every order finds {expected}")))
}
