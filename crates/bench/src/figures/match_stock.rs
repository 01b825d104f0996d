//! Figures `match.stock*`: matching alone, in this process; ids of matching subscriptions from one index shard. Peer: a
//! bare prototype.

use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::{Context, run_blocking},
        figure::{Figure, Samples, rounded},
        match_harness::MatchHarness,
        peers::StockPrototype,
        stock_workload::{self, BATCHES, ORDERS_EACH},
    },
};

/// 1,000,000 subscriptions.
pub const BENCH: Bench = Bench {
    name: "match.stock.1m",
    about: "matches/s with 1,000,000 subscriptions, ids out, one core; peer: the bare prototype",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context, 1)) },
};

/// 10,000,000 subscriptions.
pub const TEN_MILLION: Bench = Bench {
    name: "match.stock.10m",
    about: "the same with 10,000,000; slow, only on request",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context, 10)) },
};

/// 40,000,000 subscriptions.
pub const FORTY_MILLION: Bench = Bench {
    name: "match.stock.40m",
    about: "the same with 40,000,000; takes minutes and 4 GB, only on request",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context, 40)) },
};

async fn run(context: &Context, copies: u32) -> Outcome<Figure> {
    let subscribers = context.size(200_000, 20_000);
    let limit = StockPrototype::prepare(context, subscribers).await;
    let (mut harness, built) = run_blocking(move || {
        let compiled = stock_workload::compiled()?;
        let (shard, built) = stock_workload::shard(&compiled, subscribers, copies)?;
        let mut harness = MatchHarness::new(&compiled, shard)?;
        harness.round()?;
        Ok::<_, Failure>((harness, built))
    })
    .await??;
    let (mut ours, mut peer, mut found) = (Samples::default(), Samples::default(), 0);
    for _ in context.turns() {
        let (back, round) = run_blocking(move || {
            let round = harness.round();
            (harness, round)
        })
        .await?;
        harness = back;
        let (passes, matches) = round?;
        ours.push(passes * matches as f64);
        found = matches;
        if let Some(limit) = &limit {
            let _turn = context.progress.peer_turn("the bare prototype");
            let (per_second, theirs) = limit.round(copies).await?;
            if theirs != matches {
                return Err(Failure::failed(format!("the index found {matches} matches, the bare prototype {theirs}")));
            }
            peer.push(per_second);
        }
    }
    let each = found as f64 / BATCHES as f64;
    let millis = each / ours.median() * 1e3;
    let bytes = harness.shard.memory_bytes() as f64 / harness.shard.len() as f64;
    Ok(Figure::new("matches/s", ours)
        .with_peer("bare prototype", peer)
        .with_condition(format!("{} subscriptions", subscribers * ORDERS_EACH * copies))
        .with_condition("packed events in, ids out, one core; the peer's events are numbers in memory")
        .with_condition(format!("batches of 1000 events with {each:.0} matches, {} ms each", rounded(millis, 3)))
        .with_condition(format!(
            "index of {} bytes per subscription built in {} s",
            rounded(bytes, 3),
            rounded(built, 3)
        )))
}
