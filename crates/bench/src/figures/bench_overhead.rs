//! Figure `bench.overhead`: cost of the benchmark's own observation. The server's status is polled as often as while
//! counting deliveries, and its resource usage is sampled before and after.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::accept_single;
use crate::{
    bench::{Bench, Measuring},
    failure::Outcome,
    {
        context::Context,
        figure::{Figure, Samples, rounded},
        http_client,
        load::{HttpLoadResult, Target},
        resource_usage::ResourceUsage,
        server::{Server, next_poll},
    },
};

/// Benchmark of this file.
pub const BENCH: Bench = Bench {
    name: "bench.overhead",
    about: "events/s accepted while the server is observed; peer: unobserved; 1 minus the ratio is the cost",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

const CONNECTIONS: usize = 16;

async fn run(context: &Context) -> Outcome<Figure> {
    let folder = context.folder()?;
    let server = Server::start(context, folder.path()).await?;
    server.apply("intake", accept_single::DEFINITION).await?;
    let body = Value::Array(accept_single::events(1)).to_string();
    let request = http_client::post(accept_single::PATH, &server.key, "application/json", body.as_bytes());
    let target = Target { port: server.port, request, connections: CONNECTIONS };
    let time = Duration::from_millis(context.size(5_000, 300));
    target.closed(time / 2).await?;
    let (mut with, mut without) = (Samples::default(), Samples::default());
    for turn in context.turns() {
        // The order alternates, because each run starts in the state that the previous one left.
        let order = if turn % 2 == 0 { [true, false] } else { [false, true] };
        for is_watched in order {
            if is_watched {
                with.push(watched(&server, &target, time).await?.per_second());
            } else {
                without.push(target.closed(time).await?.per_second());
            }
        }
    }
    let lost = (1.0 - with.ratios(&without).median()) * 100.0;
    Ok(Figure::new("events/s", with)
        .with_peer("unwatched", without)
        .with_condition(format!("{CONNECTIONS} connections, closed loop, each event durable before its response"))
        .with_condition("status polled every 10 ms, later after each fiftieth of the elapsed time")
        .with_condition(format!("polling costs {} % of the throughput (median of the turns)", rounded(lost, 2))))
}

/// Runs the load while the server is polled as the benchmarks do.
async fn watched(server: &Server, target: &Target, time: Duration) -> Outcome<HttpLoadResult> {
    let begun = Instant::now();
    let watching = async {
        loop {
            if let Err(failure) = server.status().await {
                break failure;
            }
            tokio::time::sleep(next_poll(begun.elapsed())).await;
        }
    };
    // The content does not matter: reading it is the measured work.
    let _ = ResourceUsage::by(server.pid(), &server.folder);
    let load = tokio::select! {
        load = target.closed(time) => load,
        failure = watching => Err(failure),
    };
    let _ = ResourceUsage::by(server.pid(), &server.folder);
    load
}
