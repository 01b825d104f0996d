//! Requests that wait for a reply of the far side: stored, routed by what they hold, sent, answered, stored, given back.

use std::{path::Path, time::Duration};

use reqwest::{Method, header::CONTENT_TYPE};
use serde_json::json;

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::Context,
        far_end::{FarEnd, Nature},
        figure::{Figure, Samples, rounded},
        load::Target,
        server::{Server, processor_seconds},
        wire,
    },
    failure::Outcome,
};

/// The figure.
pub const BENCH: Bench = Bench {
    name: "exchange.roundtrip",
    about: "durable round trips/s through an exchange, 64 callers, 1 KB; then at 70 % of that in an open loop",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

const CALLERS: usize = 64;
const BODY_BYTES: usize = 1_000;
/// Of the rate of the closed loop.
const PACE: f64 = 0.7;

fn definition(port: u16) -> String {
    format!(
        "exchange: bench
properties: {{ type: $.type }}
receive: {{ questions: {{ mode: request, wait: 30s }} }}
send:
  answers:
    mode: request
    protocol: http
    options: {{ url: \"http://127.0.0.1:{port}/answers\", allow_networks: [127.0.0.1] }}
    concurrency: {CALLERS}
    retry: []
  others:
    mode: request
    protocol: http
    options: {{ url: \"http://127.0.0.1:{port}/others\", allow_networks: [127.0.0.1] }}
routes:
  orders: {{ when: \"message.type == 'order'\", to: answers }}
  rest: {{ when: \"message.type == 'other'\", to: others }}
"
    )
}

/// A far end, and a server with the exchange.
///
/// # Errors
/// The server refuses something.
pub async fn prepare(context: &Context, folder: &Path) -> Outcome<(FarEnd, Server)> {
    let far = FarEnd::start(|_| Nature { workers: CALLERS, millis: 0 }).await?;
    let server = Server::start(context, folder).await?;
    let request = server.client().request(Method::PUT, "/v1/exchanges/bench").header(CONTENT_TYPE, "application/yaml");
    server.client().send(request.body(definition(far.port))).await?;
    Ok((far, server))
}

/// Callers that ask with a text of so many bytes.
pub fn target(server: &Server, bytes: usize, connections: usize) -> Target {
    let text: String = "What was ordered stands here. ".chars().cycle().take(bytes).collect();
    let body = json!({"type": "order", "text": text}).to_string();
    let path = "/v1/exchanges/bench/receive/questions";
    let request = wire::post(path, &server.key, "application/json", body.as_bytes());
    Target { port: server.port, request, connections }
}

async fn run(context: &Context) -> Outcome<Figure> {
    let folder = context.folder()?;
    let (_far, server) = prepare(context, folder.path()).await?;
    let target = target(&server, BODY_BYTES, CALLERS);
    let time = Duration::from_secs(context.size(10, 1));
    target.closed(time / 5).await?;
    let (mut ours, mut micros, mut told) = (Samples::default(), Samples::default(), Vec::new());
    for _ in context.turns() {
        let before = processor_seconds(server.pid());
        let load = target.closed(time).await?;
        micros.push((processor_seconds(server.pid()) - before) * 1e6 / load.count.max(1) as f64);
        ours.push(load.per_second());
        told.push(load.told());
    }
    let paced = target.open_at(ours.median() * PACE, time).await?;
    Ok(Figure::new("round trips/s", ours)
        .under(format!(
            "{CALLERS} callers, {BODY_BYTES} bytes, two routes, a far end that answers at once without a body"
        ))
        .under("request and reply durable before the caller has it")
        .under(told.join("; "))
        .under(paced.told())
        .under(format!("{} µs of processor for each", rounded(micros.median(), 3))))
}
