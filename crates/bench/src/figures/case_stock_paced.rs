//! Figure `case.stock.paced`: latency of the stock case at a rate far below capacity.

use std::time::Duration;

use super::case_stock::percentiles;
use crate::{
    bench::{Bench, Measuring},
    examples::stock::{Market, SEED},
    failure::{Failure, Outcome},
    {
        context::Context,
        figure::{Figure, Samples, rounded},
        peers::Nginx,
        server::{Server, megabytes},
        stock_workload::{self, CONNECTIONS, ORDERS_EACH},
    },
};

/// Benchmark of this file.
pub const BENCH: Bench = Bench {
    name: "case.stock.paced",
    about: "the stock case with a batch of 1,000 quotes each 5 s: p99 of the end-to-end latency in ms",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// A turn has 30 s. The paper has one batch a minute; either way a batch is finished long before the next.
const BATCHES: u64 = 6;

async fn run(context: &Context) -> Outcome<Figure> {
    let subscribers = context.size(200_000, 2_000);
    let pace = Duration::from_millis(context.size(5_000, 200));
    let nginx = Nginx::start(context).await?.ok_or_else(|| Failure::failed("nginx is needed to receive the posts"))?;
    let folder = context.folder()?;
    let mut server = Server::start(context, folder.path()).await?;
    stock_workload::load(&server, subscribers, nginx.port).await?;
    let (mut ours, mut said, mut wanted, mut peak, mut next) = (Samples::default(), Vec::new(), 0, 0, 0);
    for _ in context.turns() {
        // The server's percentiles count from its start.
        server.stop().await;
        server = Server::start(context, folder.path()).await?;
        let counts = stock_workload::expected(subscribers, next..next + BATCHES);
        let mut tick = tokio::time::interval(pace);
        for count in counts {
            tick.tick().await;
            server.publish("stock", "quote", &stock_workload::quotes_json(&Market::new(SEED).quotes(next))).await?;
            (next, wanted) = (next + 1, wanted + count);
        }
        let status = server.until_delivered(wanted).await?;
        ours.push(status["latencies"]["end_to_end"]["p99_ms"].as_f64().unwrap_or_default());
        said.push(percentiles(&status));
        peak = peak.max(server.peak_bytes());
    }
    Ok(Figure::new("ms", ours)
        .with_condition("p99")
        .with_condition(format!("{} subscriptions of {subscribers} subscribers", subscribers * ORDERS_EACH))
        .with_condition(format!(
            "a batch of 1000 quotes with {} notifications each {} s, open loop",
            wanted / next.max(1),
            pace.as_secs_f64()
        ))
        .with_condition(format!("{CONNECTIONS} connections to nginx"))
        .with_condition(said.join("; "))
        .with_condition(format!("peak memory {} MB", rounded(megabytes(peak), 3))))
}
