//! Figure `accept.single`: durable single events over 64 connections. Peers: a server that only responds, and the sync
//! rate of the same disk.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    bench::{Bench, Measuring},
    examples::stock::SEED,
    failure::{Failure, Outcome},
    {
        context::Context,
        disk,
        figure::{Figure, Samples, rounded},
        peers::{Nginx, Wrk},
        resource_usage::CostMeter,
        server::Server,
    },
};

/// Benchmark of this file.
pub const BENCH: Bench = Bench {
    name: "accept.single",
    about: "durable posts of one event from 64 connections; peer: wrk into nginx that only responds",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// Application whose events match nothing, so that only their acceptance is measured.
pub const DEFINITION: &str = "
application: intake
events: {reading: {fields: {device: {type: string, required: true}, value: number, text: string}}}
subscriptions: {watch: {fields: {device: {type: string, required: true}}}}
notifications: {alarm: {fields: {value: number}, content: {templates: {base: {subject: alarm, text: '{{ value }}'}}}}}
rules: {watched: {on: reading, subscription: watch, when: event.device == sub.device, notify: alarm}}
channels: {records: {protocol: file}}
";
/// Path to post its events to.
pub const PATH: &str = "/v1/applications/intake/events/reading";
const CONNECTIONS: usize = 64;

const CONSONANTS: &[u8] = b"bcdfghjklmnprstvz";
const VOWELS: &[u8] = b"aeiou";

/// Characters of an event.
pub const EVENT_CHARACTERS: usize = 250;

/// Deterministic events of 250 characters.
pub fn events(count: usize) -> Vec<Value> {
    events_of(count, EVENT_CHARACTERS)
}

/// Deterministic events of `characters` characters, at least 60. All differ and consist of words, because the journal
/// compresses, and repeated letters would compress to nothing.
pub fn events_of(count: usize, characters: usize) -> Vec<Value> {
    let mut chance = fastrand::Rng::with_seed(SEED);
    let event = |_| {
        let device = format!("d-{:04}", chance.u32(..10_000));
        let value = f64::from(chance.u32(10_000..100_000)) / 1_000.0;
        let empty = json!({"device": device, "value": value, "text": ""});
        let text = words(&mut chance, characters.saturating_sub(empty.to_string().len()));
        json!({"device": device, "value": value, "text": text})
    };
    (0..count).map(event).collect()
}

/// Random words with this total number of characters.
pub fn words(chance: &mut fastrand::Rng, characters: usize) -> String {
    let mut text = String::with_capacity(characters + 16);
    while text.len() < characters {
        for _ in 0..chance.u8(1..=4) {
            text.push(char::from(CONSONANTS[chance.usize(..CONSONANTS.len())]));
            text.push(char::from(VOWELS[chance.usize(..VOWELS.len())]));
        }
        text.push(' ');
    }
    text.truncate(characters);
    text
}

async fn run(context: &Context) -> Outcome<Figure> {
    let folder = context.folder()?;
    let server = Server::start(context, folder.path()).await?;
    server.apply("intake", DEFINITION).await?;
    let key = format!("Bearer {}", server.key);
    let headers = [("Content-Type", "application/json"), ("Authorization", key.as_str())];
    let body = events(1)[0].to_string();
    let wrk = Wrk::new(context, CONNECTIONS, &headers, body.as_bytes())?;
    let wrk = wrk.ok_or_else(|| Failure::failed("wrk is needed to post the events"))?;
    let nginx = Nginx::start(context).await?;
    let time = Duration::from_secs(context.size(5, 1));
    // Warm-up: connections, the journal's file, the CPU.
    let mut answered = wrk.post(server.port, PATH, Duration::from_secs(1)).await?.requests;

    let (mut ours, mut peer, mut syncs) = (Samples::default(), Samples::default(), Samples::default());
    let mut tally = CostMeter::of(&server);
    let (mut p50, mut p99) = (Samples::default(), Samples::default());
    for _ in context.turns() {
        syncs.push(disk::syncs_per_second(folder.path(), Duration::from_secs(1)).await?);
        tally.begin();
        let load = wrk.post(server.port, PATH, time).await?;
        tally.end(load.requests as f64);
        ours.push(load.per_second);
        answered += load.requests;
        p50.push(load.p50_ms);
        p99.push(load.p99_ms);
        if let Some(nginx) = &nginx {
            let _turn = context.progress.peer_turn("wrk to nginx");
            peer.push(wrk.post(nginx.port, "/notify", time).await?.per_second);
        }
    }
    let stored = server.status().await?["totals"]["events"].as_u64().unwrap_or_default();
    if stored < answered {
        return Err(Failure::failed(format!("{answered} events were accepted, but {stored} are stored")));
    }
    Ok(Figure::new("events/s", ours)
        .with_peer("wrk to nginx", peer)
        .with_cost(tally.counts())
        .with_condition(format!("{} characters", body.len()))
        .with_condition(format!("{CONNECTIONS} connections, closed loop"))
        .with_condition("each durable before its response; the peer only responds")
        .with_condition(format!("p50 {} ms, p99 {} ms", rounded(p50.median(), 3), rounded(p99.median(), 3)))
        .with_condition(format!("bare fdatasync of 8 KB {}/s", rounded(syncs.median(), 3))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_events_have_their_size_and_the_definition_compiles() {
        let events = events(1_000);
        assert!(events.iter().all(|event| event.to_string().len() == EVENT_CHARACTERS), "{:?}", events[0]);
        assert_eq!(events, super::events(1_000));
        assert_ne!(events[0], events[1]);
        let problems = tocsin_pipeline::compile_text(DEFINITION, 1, &|_| None).err();
        assert!(problems.is_none(), "{problems:?}");
    }
}
