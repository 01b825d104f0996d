//! Figures `match.memory*`: memory of a subscription in the match index.

use crate::{
    bench::{Bench, Measuring},
    failure::Outcome,
    {
        context::run_blocking,
        figure::{Figure, rounded},
        server::memory,
        stock_workload::{self, ORDERS_EACH},
    },
};

/// 1,000,000 subscriptions.
pub const BENCH: Bench = Bench {
    name: "match.memory",
    about: "bytes per subscription in the index, 1,000,000 subscriptions",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context.size(200_000, 2_000))) },
};

/// 10,000,000 subscriptions.
pub const TEN_MILLION: Bench = Bench {
    name: "match.memory.10m",
    about: "the same with 10,000,000; slow, only on request",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context.size(2_000_000, 20_000))) },
};

/// Measured once: the same subscriptions always take the same memory.
async fn run(subscribers: u32) -> Outcome<Figure> {
    run_blocking(move || {
        let compiled = stock_workload::compiled()?;
        let before = memory(std::process::id(), "VmRSS:");
        let (shard, built) = stock_workload::shard(&compiled, subscribers, 1)?;
        let resident = memory(std::process::id(), "VmRSS:").saturating_sub(before);
        let each = |bytes: u64| bytes as f64 / shard.len() as f64;
        Ok(Figure::new("bytes", [each(shard.memory_bytes() as u64)].into_iter().collect())
            .with_condition(format!("{} subscriptions", subscribers * ORDERS_EACH))
            .with_condition("by the index's own count")
            .with_condition(format!("resident memory grew by {} bytes each", rounded(each(resident), 3)))
            .with_condition(format!("built in {} s", rounded(built, 3))))
    })
    .await?
}
