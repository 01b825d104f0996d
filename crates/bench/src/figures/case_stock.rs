//! Figure `case.stock`: the stock case from the first quote to the last receipt; 200,000 subscribers with 5 orders
//! each, delivered by HTTP.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{
    bench::{Bench, Measuring},
    examples::stock::{Market, SEED},
    failure::{Failure, Outcome},
    {
        context::Context,
        figure::{Figure, Samples, rounded},
        peers::{Nginx, Wrk},
        resource_usage::CostMeter,
        server::{Server, megabytes},
        stock_workload::{self, CONNECTIONS, ORDERS_EACH},
    },
};

/// Benchmark of this file.
pub const BENCH: Bench = Bench {
    name: "case.stock",
    about: "the stock case end to end over HTTP, notifications/s with 1,000,000 subscriptions; peer: wrk",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// Batches per turn.
const BATCHES: u64 = 5;

async fn run(context: &Context) -> Outcome<Figure> {
    let subscribers = context.size(200_000, 2_000);
    let nginx = Nginx::start(context).await?.ok_or_else(|| Failure::failed("nginx is needed to receive the posts"))?;
    let wrk = Wrk::new(context, CONNECTIONS, &[("Content-Type", "application/json")], &stock_workload::sample_body())?;
    let folder = context.folder()?;
    let mut server = Server::start(context, folder.path()).await?;
    stock_workload::load(&server, subscribers, nginx.port).await?;
    let time = Duration::from_secs(context.size(5, 1));
    let (mut ours, mut peer, mut wanted, mut next) = (Samples::default(), Samples::default(), 0, 0);
    let mut tally = CostMeter::of(&server);
    for _ in context.turns() {
        let batches = next..next + BATCHES;
        next += BATCHES;
        let counts = stock_workload::expected(subscribers, batches.clone());
        let (started, before) = (Instant::now(), wanted);
        tally.begin();
        for (number, count) in batches.zip(counts) {
            let quotes = stock_workload::quotes_json(&Market::new(SEED).quotes(number));
            server.publish("stock", "quote", &quotes).await?;
            wanted += count;
            // Publish the next batch when half of this one is delivered: always some work, never a long queue.
            until_left(&server, wanted, count / 2).await?;
        }
        server.until_delivered(wanted).await?;
        tally.end((wanted - before) as f64);
        ours.push((wanted - before) as f64 / started.elapsed().as_secs_f64());
        if let Some(wrk) = &wrk {
            let _turn = context.progress.peer_turn("wrk");
            peer.push(wrk.post(nginx.port, "/hook/u0", time).await?.per_second);
        }
    }
    let status = server.status().await?;
    Ok(Figure::new("notifications/s", ours)
        .with_peer("wrk", peer)
        .with_cost(tally.counts())
        .with_condition(format!("{} subscriptions of {subscribers} subscribers", subscribers * ORDERS_EACH))
        .with_condition(format!(
            "{BATCHES} batches of 1000 quotes a turn, {} notifications a batch, closed loop",
            wanted / next.max(1)
        ))
        .with_condition(format!("{CONNECTIONS} connections to nginx"))
        .with_condition(percentiles(&status))
        .with_condition(format!("peak memory {} MB", rounded(megabytes(server.peak_bytes()), 3))))
}

/// Waits until at most `left` of the notifications are undelivered.
async fn until_left(server: &Server, wanted: u64, left: u64) -> Outcome {
    let asked = Instant::now();
    while server.delivered().await? + left < wanted {
        if asked.elapsed() > Duration::from_secs(300) {
            return Err(Failure::failed("the notifications of a batch were not delivered in time"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Percentiles of the time from acceptance to receipt, from the server's status.
pub fn percentiles(status: &Value) -> String {
    let found = &status["latencies"]["end_to_end"];
    let of = |name: &str| rounded(found[name].as_f64().unwrap_or_default(), 3);
    format!("end to end p50 {} ms, p95 {} ms, p99 {} ms", of("p50_ms"), of("p95_ms"), of("p99_ms"))
}
