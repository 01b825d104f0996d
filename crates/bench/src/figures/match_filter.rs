//! Figures `match.filter.*`: subscribers' own filters, in this process; ids of the subscriptions whose filter an event
//! satisfies. Peer: an interpreter that evaluates the filter of each subscriber.

use std::{fs, hint::black_box, path::Path, time::Instant};

use tocsin_matching::{
    eval_value::EvalError,
    rule::RuleNumber,
    shard::{MatchSink, Run, Shard, Subject},
};
use tocsin_model::{
    event::{EventBatch, EventPacker},
    field::Fields,
    filter::{Dialect, Filter},
    id::{EventBatchId, EventId, Name, SubscriberNumber, SubscriptionId},
    time::Timestamp,
};
use tocsin_pipeline::compile_text;

use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::{Context, run_blocking},
        figure::{Figure, Samples, rounded},
        peers,
    },
};

/// All subscribers share one filter.
pub const SHARED: Bench = Bench {
    name: "match.filter.shared",
    about: "subscribers/s, 1,000,000 with one filter, one core; peer: the jmespath crate, one by one",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context, "shared")) },
};

/// 10,000 distinct filters.
pub const TEN_THOUSAND: Bench = Bench {
    name: "match.filter.10k",
    about: "the same with 10,000 distinct filters",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context, "10k")) },
};

/// Minimum duration of a measured round, in seconds.
const ROUND_SECONDS: f64 = 0.2;

const DEFINITION: &str = "
application: notices
events:
  notice:
    fields:
      title: {type: string, required: true}
      province: string
      city: string
subscriptions:
  interest:
    filter: [jmespath]
notifications:
  news:
    fields: {title: string}
    content:
      engine: jinja
      templates: {base: {text: '{{ title }}'}}
rules:
  matches: {on: notice, subscription: interest, when: 'true', notify: news}
channels:
  mail: {protocol: file, options: {path: notices.ndjson}}
";

struct FilterHarness {
    shard: Shard,
    fields: Fields,
    /// Batches of one event each.
    batches: Vec<EventBatch>,
    ids: Ids,
    load_seconds: f64,
}

/// Match sink that collects subscription ids and counts failures.
#[derive(Default)]
struct Ids {
    ids: Vec<SubscriptionId>,
    failures: u64,
}

impl MatchSink for Ids {
    fn run(&mut self, run: Run<'_>) {
        run.append_ids(&mut self.ids);
    }

    fn rule_failed(&mut self, _: RuleNumber, _: EventId, _: EvalError) {
        self.failures += 1;
    }

    fn subscriptions_failed(&mut self, _: RuleNumber, _: EventId, _: EvalError, _: u32) {
        self.failures += 1;
    }
}

impl FilterHarness {
    fn new(filters: &str, events: &str, n: usize) -> Outcome<Self> {
        let name = |text: &str| text.parse::<Name>().map_err(|_| Failure::failed("invalid class name"));
        let (notice, interest) = (name("notice")?, name("interest")?);
        let with_problem = |failure: Failure, problem: &dyn std::fmt::Display| failure.detail(problem.to_string());
        let compiled = compile_text(DEFINITION, 1, &|_| None).map_err(|problems| {
            let failure = Failure::failed("the definition of the notices is invalid");
            problems.iter().fold(failure, |failure, problem| with_problem(failure, problem))
        })?;
        let class =
            compiled.event_class(&notice).ok_or_else(|| Failure::failed("the definition has no class `notice`"))?;
        let fields = class.fields.clone();
        let mut shard = Shard::new(compiled.rules.clone());
        let started = Instant::now();
        for (id, text) in (1..).zip(filters.lines().take(n)) {
            let filter = Filter::new(Dialect::Jmespath, text);
            let id = SubscriptionId(id);
            let put = shard.put(Subject {
                id,
                subscriber: SubscriberNumber(id.0),
                class: &interest,
                values: "{}",
                channel: None,
                filter: Some(&filter),
            });
            put.map_err(|problem| with_problem(Failure::failed("the index rejected a filter"), &problem))?;
        }
        let load_seconds = started.elapsed().as_secs_f64();
        let batch = |(number, event): (u64, &str)| {
            let row = fields.row_from_json(event.as_bytes());
            let mut packer = EventPacker::new(fields.clone());
            packer.push(&row.map_err(|_| Failure::failed("an event does not match its schema"))?);
            Ok(EventBatch {
                id: EventBatchId(number),
                application: name("notices")?,
                version: compiled.version,
                class: notice.clone(),
                source: name("api")?,
                received_at: Timestamp::from_millis(0),
                accepted_at: Timestamp::from_millis(0),
                snapshot_sequence: None,
                events: packer.finish(),
                chronicled: Default::default(),
            })
        };
        let batches = (1..).zip(events.lines()).map(batch).collect::<Outcome<_>>()?;
        Ok(FilterHarness { shard, fields, batches, ids: Ids::default(), load_seconds })
    }

    /// Seconds of each event, and the total number of matches.
    fn pass(&mut self) -> Outcome<(Vec<f64>, u64)> {
        let (mut seconds, mut matches) = (Vec::new(), 0);
        for batch in &self.batches {
            self.ids.ids.clear();
            let started = Instant::now();
            let matched = self.shard.match_batch(batch, &self.fields, &mut self.ids);
            matches += black_box(&self.ids).ids.len() as u64;
            seconds.push(started.elapsed().as_secs_f64());
            matched.map_err(|error| Failure::failed("a batch cannot be matched").because(&error))?;
        }
        if self.ids.failures > 0 {
            return Err(Failure::failed("a filter could not be evaluated"));
        }
        Ok((seconds, matches))
    }

    /// Subscribers/s over all events, subscribers/s of the slowest event, and matches; repeated for at least
    /// [`ROUND_SECONDS`].
    fn round(&mut self) -> Outcome<(f64, f64, u64)> {
        let (started, mut each, mut passes) = (Instant::now(), vec![0.0; self.batches.len()], 0.0);
        loop {
            let (seconds, matches) = self.pass()?;
            each.iter_mut().zip(seconds).for_each(|(sum, seconds)| *sum += seconds);
            passes += 1.0;
            if started.elapsed().as_secs_f64() > ROUND_SECONDS {
                let asked = self.shard.len() as f64 * passes;
                let longest = each.iter().copied().fold(0.0, f64::max);
                return Ok((asked * each.len() as f64 / each.iter().sum::<f64>(), asked / longest, matches));
            }
        }
    }
}

async fn run(context: &Context, which: &str) -> Outcome<Figure> {
    let n = context.size(1_000_000, 10_000);
    let data = peers::generated(context, "filters", &[n]).await?;
    let (filters, events) = (data.join(format!("filters_{which}.txt")), data.join("events.jsonl"));
    let read = |file: &Path| fs::read_to_string(file).map_err(|error| Failure::file("read", file, &error));
    let (filter_text, event_text) = (read(&filters)?, read(&events)?);
    let mut harness = run_blocking(move || FilterHarness::new(&filter_text, &event_text, n as usize)).await??;
    let (mut ours, mut longest, mut peer, mut found) = (Samples::default(), Samples::default(), Samples::default(), 0);
    let mut has_peer = true;
    for _ in context.turns() {
        let (back, round) = run_blocking(move || {
            let round = harness.round();
            (harness, round)
        })
        .await?;
        harness = back;
        let (per_second, at_least, matches) = round?;
        ours.push(per_second);
        longest.push(at_least);
        found = matches;
        if !has_peer {
            continue;
        }
        match peers::jmespath(context, &filters, &events, n).await? {
            Some((per_second, theirs)) if theirs == matches => peer.push(per_second),
            Some((_, theirs)) => {
                return Err(Failure::failed(format!("the index found {matches} matches, jmespath {theirs}")));
            }
            None => has_peer = false,
        }
    }
    let distinct = harness.shard.distinct_filters();
    let worst = longest.median() / peer.median();
    let figure = Figure::new("subscribers/s", ours)
        .with_peer("jmespath crate", peer)
        .with_condition(format!("{n} subscribers with {distinct} distinct filters"))
        .with_condition(format!("{} events, packed, one by one, ids out, one core", harness.batches.len()))
        .with_condition(format!("{found} matches in all"))
        .with_condition("the peer's filters are compiled and its events parsed beforehand")
        .with_condition(format!(
            "{} bytes per subscriber in the index",
            harness.shard.memory_bytes() / harness.shard.len().max(1)
        ))
        .with_condition(format!("indexed in {} s", rounded(harness.load_seconds, 3)));
    Ok(match worst.is_finite() {
        true => figure.with_condition(format!("{} times the peer for the slowest event", rounded(worst, 3))),
        false => figure,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_matches_the_subscriptions_whose_filter_it_satisfies() {
        let filters = "contains_ci(title,'harbour')\ncontains_ci(title,'road') || contains_ci(title,'fire')\ncontains_ci(title,'harbour')\n";
        let events =
            "{\"title\":\"Road near the HARBOUR\",\"province\":\"BC\"}\n{\"title\":\"fire\"}\n{\"title\":\"none\"}\n";
        let mut harness = FilterHarness::new(filters, events, 3).expect("a harness");
        assert_eq!(harness.pass().expect("decided").1, 4);
        assert_eq!(harness.shard.distinct_filters(), 2);
    }
}
