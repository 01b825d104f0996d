//! What it costs a server that the bench watches it: its status is asked for as often as while deliveries are counted, and what
//! its process has used is read before and after.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Bench, Measuring, accept_single};
use crate::{
    bench::{
        context::Context,
        figure::{Figure, Samples, rounded},
        load::{Load, Target},
        probe::Used,
        server::{Server, asked_after},
        wire,
    },
    failure::Outcome,
};

/// The figure.
pub const BENCH: Bench = Bench {
    name: "bench.overhead",
    about: "events/s accepted while the bench watches the server; peer: the same unwatched, so that 1 less the ratio is its cost",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

const CONNECTIONS: usize = 16;

async fn run(context: &Context) -> Outcome<Figure> {
    let folder = context.folder()?;
    let server = Server::start(context, folder.path()).await?;
    server.apply("intake", accept_single::DEFINITION).await?;
    let body = Value::Array(accept_single::events(1)).to_string();
    let request = wire::post(accept_single::PATH, &server.key, "application/json", body.as_bytes());
    let target = Target { port: server.port, request, connections: CONNECTIONS };
    let time = Duration::from_millis(context.size(5_000, 300));
    target.closed(time / 2).await?;
    let (mut with, mut without) = (Samples::default(), Samples::default());
    for turn in context.turns() {
        // Whoever begins finds the machine as the other left it: they take turns at that too.
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
        .beside("unwatched", without)
        .under(format!("{CONNECTIONS} connections, closed loop, each event durable before its answer"))
        .under("status asked for every 10 ms, and later at each fiftieth of the time that has passed")
        .under(format!("watching takes {} % of the throughput (median of the turns)", rounded(lost, 2))))
}

/// The load, beside somebody who looks at the server as the bench does.
async fn watched(server: &Server, target: &Target, time: Duration) -> Outcome<Load> {
    let begun = Instant::now();
    let watching = async {
        loop {
            if let Err(failure) = server.status().await {
                break failure;
            }
            tokio::time::sleep(asked_after(begun.elapsed())).await;
        }
    };
    // What it says does not matter here: to read it is the work.
    let _ = Used::by(server.pid(), &server.folder);
    let load = tokio::select! {
        load = target.closed(time) => load,
        failure = watching => Err(failure),
    };
    let _ = Used::by(server.pid(), &server.folder);
    load
}
