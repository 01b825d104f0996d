//! What a subscription costs in the match index.

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::busy,
        figure::{Figure, rounded},
        market::{self, ORDERS_EACH},
        server::memory,
    },
    failure::Outcome,
};

/// With 1,000,000 subscriptions.
pub const BENCH: Bench = Bench {
    name: "match.memory",
    about: "bytes per subscription in the index, 1,000,000 subscriptions",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context.size(200_000, 2_000))) },
};

/// With 10,000,000.
pub const TEN_MILLION: Bench = Bench {
    name: "match.memory.10m",
    about: "the same with 10,000,000; only when named, it takes a while",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context.size(2_000_000, 20_000))) },
};

/// Counted once: the same subscriptions always take the same.
async fn run(subscribers: u32) -> Outcome<Figure> {
    busy(move || {
        let compiled = market::compiled()?;
        let before = memory(std::process::id(), "VmRSS:");
        let (shard, built) = market::shard(&compiled, subscribers, 1)?;
        let resident = memory(std::process::id(), "VmRSS:").saturating_sub(before);
        let each = |bytes: u64| bytes as f64 / shard.len() as f64;
        Ok(Figure::new("bytes", [each(shard.memory_bytes() as u64)].into_iter().collect())
            .under(format!("{} subscriptions", subscribers * ORDERS_EACH))
            .under("as the index counts itself")
            .under(format!("resident memory grew by {} bytes each", rounded(each(resident), 3)))
            .under(format!("built in {} s", rounded(built, 3))))
    })
    .await?
}
