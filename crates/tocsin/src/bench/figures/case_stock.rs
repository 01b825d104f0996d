//! The stock case from the first quote to the last receipt: 200,000 subscribers with 5 orders each, told by HTTP.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::Context,
        figure::{Figure, Samples, rounded},
        market::{self, CONNECTIONS, ORDERS_EACH},
        peers::{Nginx, Wrk},
        probe::Tally,
        server::{Server, megabytes},
    },
    examples::stock::{Market, SEED},
    failure::{Failure, Outcome},
};

/// The figure.
pub const BENCH: Bench = Bench {
    name: "case.stock",
    about: "the stock case end to end over HTTP, notifications/s with 1,000,000 subscriptions; peer: wrk",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// Batches of a turn.
const BATCHES: u64 = 5;

async fn run(context: &Context) -> Outcome<Figure> {
    let subscribers = context.size(200_000, 2_000);
    let nginx = Nginx::start(context).await?.ok_or_else(|| Failure::failed("nginx is needed to receive the posts"))?;
    let wrk = Wrk::new(context, CONNECTIONS, &[("Content-Type", "application/json")], &market::sample_body())?;
    let folder = context.folder()?;
    let mut server = Server::start(context, folder.path()).await?;
    market::load(&server, subscribers, nginx.port).await?;
    let time = Duration::from_secs(context.size(5, 1));
    let (mut ours, mut peer, mut wanted, mut next) = (Samples::default(), Samples::default(), 0, 0);
    let mut tally = Tally::of(&server);
    for _ in context.turns() {
        let batches = next..next + BATCHES;
        next += BATCHES;
        let counts = market::expected(subscribers, batches.clone());
        let (started, before) = (Instant::now(), wanted);
        tally.begin();
        for (number, count) in batches.zip(counts) {
            let quotes = market::quotes_json(&Market::new(SEED).quotes(number));
            server.publish("stock", "quote", &quotes).await?;
            wanted += count;
            // The next batch comes when half of this one is delivered: there is always work, and never a long queue.
            until_left(&server, wanted, count / 2).await?;
        }
        server.until_delivered(wanted).await?;
        tally.end((wanted - before) as f64);
        ours.push((wanted - before) as f64 / started.elapsed().as_secs_f64());
        if let Some(wrk) = &wrk {
            let _theirs = context.progress.theirs("wrk");
            peer.push(wrk.post(nginx.port, "/hook/u0", time).await?.per_second);
        }
    }
    let status = server.status().await?;
    Ok(Figure::new("notifications/s", ours)
        .beside("wrk", peer)
        .counted(&tally)
        .under(format!("{} subscriptions of {subscribers} subscribers", subscribers * ORDERS_EACH))
        .under(format!(
            "{BATCHES} batches of 1000 quotes a turn, {} notifications a batch, closed loop",
            wanted / next.max(1)
        ))
        .under(format!("{CONNECTIONS} connections to nginx"))
        .under(percentiles(&status))
        .under(format!("peak memory {} MB", rounded(megabytes(server.peak_bytes()), 3))))
}

/// Waits until no more than `left` of the notifications are undelivered.
async fn until_left(server: &Server, wanted: u64, left: u64) -> Outcome {
    let asked = Instant::now();
    while server.delivered().await? + left < wanted {
        if asked.elapsed() > Duration::from_secs(300) {
            return Err(Failure::failed("the notifications of a batch are not delivered"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// How long notifications took from acceptance to their receipt, as the server says.
pub fn percentiles(status: &Value) -> String {
    let found = &status["latencies"]["end_to_end"];
    let of = |name: &str| rounded(found[name].as_f64().unwrap_or_default(), 3);
    format!("end to end p50 {} ms, p95 {} ms, p99 {} ms", of("p50_ms"), of("p95_ms"), of("p99_ms"))
}
