//! Figure `match.scan`: a rule without index support tests every subscription of its class for each event. The cost
//! estimate of `tocsin check` for such rules is based on this figure.

use std::{hint::black_box, time::Duration};

use tocsin_matching::{
    eval_value::EvalError,
    rule::RuleNumber,
    shard::{MatchSink, Run, Shard, Subject},
};
use tocsin_model::{
    event::{EventBatch, EventPacker},
    field::Fields,
    id::{EventBatchId, EventId, Name, SubscriberNumber, SubscriptionId},
    time::Timestamp,
};
use tocsin_pipeline::{Compiled, compile_text};

use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::{Context, processor_time, run_blocking},
        figure::{Figure, Samples, rounded},
    },
};

/// Benchmark of this file.
pub const BENCH: Bench = Bench {
    name: "match.scan",
    about: "subscriptions/s that a rule without index support tests per event, 1,000,000 of them, one core",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// The first is typical of such rules and is the figure's value.
const PREDICATES: [(&str, &str); 3] = [
    ("a product", "event.place != sub.place && event.magnitude * sub.least > 100.0"),
    ("a distance", "distance_km(event.lat, event.lon, sub.lat, sub.lon) <= sub.radius"),
    ("a list", "sub.tags.exists(tag, tag.startsWith(event.place))"),
];

/// Tick by which the kernel may count CPU time.
const TICK: Duration = Duration::from_millis(4);

/// Events per round: enough for many kernel ticks.
const EVENTS: u32 = 10;

#[derive(Default)]
struct Count {
    matches: u64,
    failures: u64,
}

impl MatchSink for Count {
    fn run(&mut self, run: Run<'_>) {
        self.matches += run.slots.len() as u64;
    }

    fn rule_failed(&mut self, _: RuleNumber, _: EventId, _: EvalError) {
        self.failures += 1;
    }

    fn subscriptions_failed(&mut self, _: RuleNumber, _: EventId, _: EvalError, _: u32) {
        self.failures += 1;
    }
}

struct ScanHarness {
    shard: Shard,
    batch: EventBatch,
    fields: Fields,
}

impl ScanHarness {
    fn new(predicate: &str, subscriptions: u64) -> Outcome<ScanHarness> {
        let compiled = compiled(predicate)?;
        let class = name("near")?;
        let mut shard = Shard::new(compiled.rules.clone());
        for id in 0..subscriptions {
            // Spread over the map, away from the event.
            let (lat, lon) = (id % 180, id / 180 % 360);
            let values = format!(
                r#"{{"place": "p{}", "least": {}, "lat": {}, "lon": {}, "radius": 5, "tags": ["a{id}", "b"]}}"#,
                id % 1_000,
                id % 10 + 5,
                lat as f64 - 90.0,
                lon as f64 - 180.0,
            );
            let subject = Subject {
                id: SubscriptionId(id + 1),
                subscriber: SubscriberNumber(id + 1),
                class: &class,
                values: &values,
                channel: None,
                filter: None,
            };
            let put = shard.put(subject);
            put.map_err(|problem| Failure::failed("the index rejected a subscription").detail(problem.to_string()))?;
        }
        let quake = name("quake")?;
        let class =
            compiled.event_class(&quake).ok_or_else(|| Failure::failed("the definition has no class `quake`"))?;
        let fields = class.fields.clone();
        let mut packer = EventPacker::new(fields.clone());
        let row = fields.row_from_json(br#"{"place": "Lima", "magnitude": 1.5, "lat": 0.5, "lon": 0.5}"#);
        let row = row.map_err(|_| Failure::failed("an event does not match its schema"))?;
        (0..EVENTS).for_each(|_| packer.push(&row));
        let batch = EventBatch {
            id: EventBatchId(1),
            application: name("quakes")?,
            version: compiled.version,
            class: quake,
            source: name("api")?,
            received_at: Timestamp(0),
            accepted_at: Timestamp(0),
            snapshot_sequence: None,
            events: packer.finish(),
            chronicled: Default::default(),
        };
        Ok(ScanHarness { shard, batch, fields })
    }

    /// Subscriptions tested per second.
    fn round(&mut self) -> Outcome<f64> {
        let mut count = Count::default();
        let started = processor_time();
        let matched = self.shard.match_batch(&self.batch, &self.fields, &mut count);
        // A small round may finish within one kernel tick.
        let seconds = (processor_time() - started).max(TICK).as_secs_f64();
        matched.map_err(|error| Failure::failed("a batch cannot be matched").because(&error))?;
        let Count { matches, failures } = black_box(count);
        if failures > 0 || matches > self.shard.len() as u64 {
            return Err(Failure::failed(format!("unexpected result: {matches} matches and {failures} failures")));
        }
        Ok(self.shard.len() as f64 * f64::from(EVENTS) / seconds)
    }
}

fn name(text: &str) -> Outcome<Name> {
    text.parse().map_err(|_| Failure::failed("invalid class name"))
}

fn compiled(predicate: &str) -> Outcome<Compiled> {
    let text = format!(
        "
application: quakes
events: {{ quake: {{ fields: {{ place: string, magnitude: number, lat: number, lon: number }} }} }}
subscriptions:
  near: {{ fields: {{ place: string, least: number, lat: number, lon: number, radius: number, tags: list }} }}
notifications: {{ item: {{ content: {{ templates: {{ base: {{ text: x }} }} }} }} }}
rules: {{ it: {{ on: quake, subscription: near, notify: item, when: '{predicate}' }} }}
channels: {{ }}
"
    );
    compile_text(&text, 1, &|_| None).map_err(|problems| {
        let failure = Failure::failed("the definition of the quakes is invalid");
        problems.iter().fold(failure, |failure, problem| failure.detail(problem.to_string()))
    })
}

async fn run(context: &Context) -> Outcome<Figure> {
    let subscriptions = context.size(1_000_000, 10_000);
    let turns = context.turns();
    run_blocking(move || {
        let mut samples = Vec::new();
        for (_, predicate) in PREDICATES {
            let mut harness = ScanHarness::new(predicate, subscriptions)?;
            harness.round()?;
            samples.push(turns.clone().map(|_| harness.round()).collect::<Outcome<Samples>>()?);
        }
        let of_a_million = |samples: &Samples| rounded(1e9 / samples.median(), 3);
        let each = PREDICATES
            .iter()
            .zip(&samples)
            .map(|((what, _), samples)| format!("{what}: {} ms for a million", of_a_million(samples)));
        let each: Vec<String> = each.collect();
        let figure = Figure::new("subscriptions/s", samples.swap_remove(0))
            .with_condition(format!("{subscriptions} subscriptions, few or no matches, CPU time of one core"));
        Ok(each.into_iter().fold(figure, Figure::with_condition))
    })
    .await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_predicates_have_no_index_support_and_few_matches() {
        for (what, predicate) in PREDICATES {
            let explained = compiled(predicate).expect("a definition").rules.explain();
            assert!(explained[0].warnings[0].starts_with("no index answers"), "{what}: {explained:?}");
            let mut harness = ScanHarness::new(predicate, 1_000).expect("a harness");
            let mut count = Count::default();
            harness.shard.match_batch(&harness.batch, &harness.fields, &mut count).expect("a batch");
            assert!(count.matches < 300 && count.failures == 0, "{what}: {}", count.matches);
        }
    }
}
