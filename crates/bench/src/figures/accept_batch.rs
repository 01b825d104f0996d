//! Figure `accept.batch`: durable batches of 1,000 events.

use std::time::Duration;

use serde_json::Value;

use super::accept_single::{DEFINITION, PATH, events};
use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::Context,
        figure::{Figure, Samples},
        http_client,
        resource_usage::CostMeter,
        server::Server,
    },
};

/// Benchmark of this file.
pub const BENCH: Bench = Bench {
    name: "accept.batch",
    about: "events/s in durable batches of 1,000 events of 250 characters",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

const EVENTS: usize = 1_000;
const CONNECTIONS: usize = 4;

async fn run(context: &Context) -> Outcome<Figure> {
    let folder = context.folder()?;
    let server = Server::start(context, folder.path()).await?;
    server.apply("intake", DEFINITION).await?;
    let body = Value::Array(events(EVENTS)).to_string();
    let request = http_client::post(PATH, &server.key, "application/json", body.as_bytes());
    let time = Duration::from_secs(context.size(5, 1));
    let (mut batches, _) =
        http_client::closed_loop(server.port, request.clone(), CONNECTIONS, Duration::from_millis(500)).await?;
    let (mut ours, mut tally) = (Samples::default(), CostMeter::of(&server));
    for _ in context.turns() {
        tally.begin();
        let (answers, seconds) = http_client::closed_loop(server.port, request.clone(), CONNECTIONS, time).await?;
        tally.end(answers as f64 * EVENTS as f64);
        batches += answers;
        ours.push(answers as f64 * EVENTS as f64 / seconds);
    }
    let (answered, stored) =
        (batches * EVENTS as u64, server.status().await?["totals"]["events"].as_u64().unwrap_or_default());
    if stored != answered {
        return Err(Failure::failed(format!("{answered} events were accepted, but {stored} are stored")));
    }
    Ok(Figure::new("events/s", ours)
        .with_cost(tally.counts())
        .with_condition(format!("JSON arrays of {EVENTS} events of 250 characters"))
        .with_condition(format!("{CONNECTIONS} connections, closed loop"))
        .with_condition("each batch durable before its response"))
}
