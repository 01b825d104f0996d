//! Single events, each durable before its answer, from 64 connections; beside a server that only answers, and beside the
//! syncs that the same disk makes.

use std::time::Duration;

use serde_json::json;

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::Context,
        disk,
        figure::{Figure, Samples, rounded},
        peers::{Nginx, Wrk},
        server::Server,
    },
    failure::{Failure, Outcome},
};

/// The figure.
pub const BENCH: Bench = Bench {
    name: "accept.single",
    about: "durable posts of one event from 64 connections; peer: wrk into nginx that only answers",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// An application whose events concern nobody, so that what is measured is their acceptance.
pub const DEFINITION: &str = "
application: intake
events: {reading: {fields: {device: {type: string, required: true}, value: number, text: string}}}
subscriptions: {watch: {fields: {device: {type: string, required: true}}}}
notifications: {alarm: {fields: {value: number}, content: {templates: {base: {subject: alarm, text: '{{ value }}'}}}}}
rules: {watched: {on: reading, subscription: watch, when: event.device == sub.device, notify: alarm}}
channels: {records: {protocol: file}}
";
/// Where its events are posted.
pub const PATH: &str = "/v1/applications/intake/events/reading";
const CONNECTIONS: usize = 64;

/// An event of 250 characters.
pub fn event() -> serde_json::Value {
    let empty = json!({"device": "d-0042", "value": 21.5, "text": ""});
    let padding = 250 - empty.to_string().len();
    json!({"device": "d-0042", "value": 21.5, "text": "x".repeat(padding)})
}

async fn run(context: &Context) -> Outcome<Figure> {
    let folder = context.folder()?;
    let server = Server::start(context, folder.path()).await?;
    server.apply("intake", DEFINITION).await?;
    let key = format!("Bearer {}", server.key);
    let headers = [("Content-Type", "application/json"), ("Authorization", key.as_str())];
    let body = event().to_string();
    let wrk = Wrk::new(context, CONNECTIONS, &headers, body.as_bytes())?;
    let wrk = wrk.ok_or_else(|| Failure::failed("wrk is needed to post the events"))?;
    let nginx = Nginx::start(context).await?;
    let time = Duration::from_secs(context.size(5, 1));
    // Warms up: connections, the journal's file, the processor.
    let mut answered = wrk.post(server.port, PATH, Duration::from_secs(1)).await?.requests;

    let (mut ours, mut peer, mut syncs) = (Samples::default(), Samples::default(), Samples::default());
    let (mut p50, mut p99) = (Samples::default(), Samples::default());
    for _ in context.turns() {
        syncs.push(disk::syncs_per_second(folder.path(), Duration::from_secs(1)).await?);
        let load = wrk.post(server.port, PATH, time).await?;
        ours.push(load.per_second);
        answered += load.requests;
        p50.push(load.p50_ms);
        p99.push(load.p99_ms);
        if let Some(nginx) = &nginx {
            peer.push(wrk.post(nginx.port, "/notify", time).await?.per_second);
        }
    }
    let stored = server.status().await?["totals"]["events"].as_u64().unwrap_or_default();
    if stored < answered {
        return Err(Failure::failed(format!("{answered} events were answered, and {stored} are there")));
    }
    Ok(Figure::new("events/s", ours)
        .beside("wrk to nginx", peer)
        .under(format!("{} characters", body.len()))
        .under(format!("{CONNECTIONS} connections, closed loop"))
        .under("each durable before its answer; the peer only answers")
        .under(format!("p50 {} ms, p99 {} ms", rounded(p50.median(), 3), rounded(p99.median(), 3)))
        .under(format!("bare fdatasync of 8 KB {}/s", rounded(syncs.median(), 3))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_has_its_size_and_the_definition_is_in_order() {
        assert_eq!(event().to_string().len(), 250);
        let problems = tocsin_pipeline::compile_text(DEFINITION, 1, &|_| None).err();
        assert!(problems.is_none(), "{problems:?}");
    }
}
