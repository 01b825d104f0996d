//! Single events, each durable before its answer, from 64 connections; beside a server that only answers, and beside the
//! syncs that the same disk makes.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::Context,
        disk,
        figure::{Figure, Samples, rounded},
        peers::{Nginx, Wrk},
        probe::Tally,
        server::Server,
    },
    examples::stock::SEED,
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

const CONSONANTS: &[u8] = b"bcdfghjklmnprstvz";
const VOWELS: &[u8] = b"aeiou";

/// Characters of an event.
pub const EVENT_CHARACTERS: usize = 250;

/// So many events of 250 characters, the same each time.
pub fn events(count: usize) -> Vec<Value> {
    events_of(count, EVENT_CHARACTERS)
}

/// So many events of so many characters, at least 60, the same each time. No two are alike, and their text is of words: the journal
/// compresses, and would make nothing of repeated letters.
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

/// So many characters of words.
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
    // Warms up: connections, the journal's file, the processor.
    let mut answered = wrk.post(server.port, PATH, Duration::from_secs(1)).await?.requests;

    let (mut ours, mut peer, mut syncs) = (Samples::default(), Samples::default(), Samples::default());
    let mut tally = Tally::of(&server);
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
            let _theirs = context.progress.theirs("wrk to nginx");
            peer.push(wrk.post(nginx.port, "/notify", time).await?.per_second);
        }
    }
    let stored = server.status().await?["totals"]["events"].as_u64().unwrap_or_default();
    if stored < answered {
        return Err(Failure::failed(format!("{answered} events were answered, and {stored} are there")));
    }
    Ok(Figure::new("events/s", ours)
        .beside("wrk to nginx", peer)
        .counted(&tally)
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
    fn the_events_have_their_size_and_the_definition_is_in_order() {
        let events = events(1_000);
        assert!(events.iter().all(|event| event.to_string().len() == EVENT_CHARACTERS), "{:?}", events[0]);
        assert_eq!(events, super::events(1_000));
        assert_ne!(events[0], events[1]);
        let problems = tocsin_pipeline::compile_text(DEFINITION, 1, &|_| None).err();
        assert!(problems.is_none(), "{problems:?}");
    }
}
