//! Matching alone, in this process: ids of matching subscriptions from an index of one owner, beside a bare prototype
//! that does nothing else.

use super::{Bench, Measuring};
use crate::{
    bench::{
        bed::Bed,
        context::{Context, busy},
        figure::{Figure, Samples, rounded},
        market::{self, BATCHES, ORDERS_EACH},
        peers::StockLimit,
    },
    failure::{Failure, Outcome},
};

/// With 1,000,000 subscriptions.
pub const BENCH: Bench = Bench {
    name: "match.stock.1m",
    about: "matches/s with 1,000,000 subscriptions, ids out, one core; peer: the bare prototype",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context, 1)) },
};

/// With 10,000,000.
pub const TEN_MILLION: Bench = Bench {
    name: "match.stock.10m",
    about: "the same with 10,000,000; only when named, it takes a while",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context, 10)) },
};

/// With 40,000,000.
pub const FORTY_MILLION: Bench = Bench {
    name: "match.stock.40m",
    about: "the same with 40,000,000; only when named, it takes minutes and 4 GB",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context, 40)) },
};

async fn run(context: &Context, copies: u32) -> Outcome<Figure> {
    let subscribers = context.size(200_000, 20_000);
    let limit = StockLimit::prepare(context, subscribers).await;
    let (mut bed, built) = busy(move || {
        let compiled = market::compiled()?;
        let (shard, built) = market::shard(&compiled, subscribers, copies)?;
        let mut bed = Bed::new(&compiled, shard)?;
        bed.round()?;
        Ok::<_, Failure>((bed, built))
    })
    .await??;
    let (mut ours, mut peer, mut found) = (Samples::default(), Samples::default(), 0);
    for _ in context.turns() {
        let (back, round) = busy(move || {
            let round = bed.round();
            (bed, round)
        })
        .await?;
        bed = back;
        let (passes, matches) = round?;
        ours.push(passes * matches as f64);
        found = matches;
        if let Some(limit) = &limit {
            let _theirs = context.progress.theirs("the bare prototype");
            let (per_second, theirs) = limit.round(copies).await?;
            if theirs != matches {
                return Err(Failure::failed(format!("the index finds {matches} matches, the bare prototype {theirs}")));
            }
            peer.push(per_second);
        }
    }
    let each = found as f64 / BATCHES as f64;
    let millis = each / ours.median() * 1e3;
    let bytes = bed.shard.memory_bytes() as f64 / bed.shard.len() as f64;
    Ok(Figure::new("matches/s", ours)
        .beside("bare prototype", peer)
        .under(format!("{} subscriptions", subscribers * ORDERS_EACH * copies))
        .under("packed events in, ids out, one core; the peer's events are numbers in memory")
        .under(format!("batches of 1000 events with {each:.0} matches, {} ms each", rounded(millis, 3)))
        .under(format!("index of {} bytes a subscription built in {} s", rounded(bytes, 3), rounded(built, 3))))
}
