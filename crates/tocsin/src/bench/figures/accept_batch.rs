//! Batches of 1,000 events, each batch durable before its answer.

use std::time::Duration;

use serde_json::Value;

use super::{
    Bench, Measuring,
    accept_single::{DEFINITION, PATH, events},
};
use crate::{
    bench::{
        context::Context,
        figure::{Figure, Samples},
        probe::Tally,
        server::Server,
        wire,
    },
    failure::{Failure, Outcome},
};

/// The figure.
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
    let request = wire::post(PATH, &server.key, "application/json", body.as_bytes());
    let time = Duration::from_secs(context.size(5, 1));
    let (mut batches, _) = wire::flood(server.port, request.clone(), CONNECTIONS, Duration::from_millis(500)).await?;
    let (mut ours, mut tally) = (Samples::default(), Tally::of(&server));
    for _ in context.turns() {
        tally.begin();
        let (answers, seconds) = wire::flood(server.port, request.clone(), CONNECTIONS, time).await?;
        tally.end(answers as f64 * EVENTS as f64);
        batches += answers;
        ours.push(answers as f64 * EVENTS as f64 / seconds);
    }
    let (answered, stored) =
        (batches * EVENTS as u64, server.status().await?["totals"]["events"].as_u64().unwrap_or_default());
    if stored != answered {
        return Err(Failure::failed(format!("{answered} events were answered, and {stored} are there")));
    }
    Ok(Figure::new("events/s", ours)
        .counted(&tally)
        .under(format!("JSON arrays of {EVENTS} events of 250 characters"))
        .under(format!("{CONNECTIONS} connections, closed loop"))
        .under("each batch durable before its answer"))
}
