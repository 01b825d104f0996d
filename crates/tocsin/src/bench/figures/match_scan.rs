//! What a rule costs that no index answers: every subscription of its class is looked at for every event. The estimate that
//! `tocsin check` gives for such a rule stands on this.

use std::{hint::black_box, time::Duration};

use tocsin_matching::{
    datum::Trouble,
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

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::{Context, busy, processor_time},
        figure::{Figure, Samples, rounded},
    },
    failure::{Failure, Outcome},
};

/// The figure.
pub const BENCH: Bench = Bench {
    name: "match.scan",
    about: "subscriptions/s that a rule without an index looks at for an event, 1,000,000 of them, one core",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// The first is what such rules mostly are, and gives the figure.
const PREDICATES: [(&str, &str); 3] = [
    ("a product", "event.place != sub.place && event.magnitude * sub.least > 100.0"),
    ("a distance", "distance_km(event.lat, event.lon, sub.lat, sub.lon) <= sub.radius"),
    ("a list", "sub.tags.exists(tag, tag.startsWith(event.place))"),
];

/// What the kernel may count processor time by.
const TICK: Duration = Duration::from_millis(4);

/// Events of a round; so many that the kernel counts enough ticks.
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

    fn rule_failed(&mut self, _: RuleNumber, _: EventId, _: Trouble) {
        self.failures += 1;
    }

    fn subscriptions_failed(&mut self, _: RuleNumber, _: EventId, _: Trouble, _: u32) {
        self.failures += 1;
    }
}

struct Bed {
    shard: Shard,
    batch: EventBatch,
    fields: Fields,
}

impl Bed {
    fn new(predicate: &str, subscriptions: u64) -> Outcome<Bed> {
        let compiled = compiled(predicate)?;
        let class = name("near")?;
        let mut shard = Shard::new(compiled.rules.clone());
        for id in 0..subscriptions {
            // Spread over the map, and at nobody's place.
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
            put.map_err(|problem| Failure::failed("a subscription does not fit").detail(problem.to_string()))?;
        }
        let quake = name("quake")?;
        let class = compiled.event_class(&quake).ok_or_else(|| Failure::failed("there are no quakes"))?;
        let fields = class.fields.clone();
        let mut packer = EventPacker::new(fields.clone());
        let row = fields.row_from_json(br#"{"place": "Lima", "magnitude": 1.5, "lat": 0.5, "lon": 0.5}"#);
        let row = row.map_err(|_| Failure::failed("an event does not fit its fields"))?;
        (0..EVENTS).for_each(|_| packer.push(&row));
        let batch = EventBatch {
            id: EventBatchId(1),
            application: name("quakes")?,
            version: compiled.version,
            class: quake,
            source: name("api")?,
            received_at: Timestamp(0),
            accepted_at: Timestamp(0),
            sees: None,
            events: packer.finish(),
            chronicled: Default::default(),
        };
        Ok(Bed { shard, batch, fields })
    }

    /// Subscriptions looked at in a second.
    fn round(&mut self) -> Outcome<f64> {
        let mut count = Count::default();
        let started = processor_time();
        let matched = self.shard.match_batch(&self.batch, &self.fields, &mut count);
        // A small round may be done before the kernel counts its first tick.
        let seconds = (processor_time() - started).max(TICK).as_secs_f64();
        matched.map_err(|error| Failure::failed("a batch cannot be matched").because(&error))?;
        let Count { matches, failures } = black_box(count);
        if failures > 0 || matches > self.shard.len() as u64 {
            return Err(Failure::failed(format!("{matches} matches and {failures} failures")));
        }
        Ok(self.shard.len() as f64 * f64::from(EVENTS) / seconds)
    }
}

fn name(text: &str) -> Outcome<Name> {
    text.parse().map_err(|_| Failure::failed("a class has no name"))
}

fn compiled(predicate: &str) -> Outcome<Compiled> {
    let text = format!(
        "
application: quakes
events: {{ quake: {{ fields: {{ place: string, magnitude: number, lat: number, lon: number }} }} }}
subscriptions:
  near: {{ fields: {{ place: string, least: number, lat: number, lon: number, radius: number, tags: list }} }}
notifications: {{ told: {{ content: {{ templates: {{ base: {{ text: x }} }} }} }} }}
rules: {{ it: {{ on: quake, subscription: near, notify: told, when: '{predicate}' }} }}
channels: {{ }}
"
    );
    compile_text(&text, 1, &|_| None).map_err(|problems| {
        let failure = Failure::failed("the definition of the quakes has mistakes");
        problems.iter().fold(failure, |failure, problem| failure.detail(problem.to_string()))
    })
}

async fn run(context: &Context) -> Outcome<Figure> {
    let subscriptions = context.size(1_000_000, 10_000);
    let turns = context.turns();
    busy(move || {
        let mut samples = Vec::new();
        for (_, predicate) in PREDICATES {
            let mut bed = Bed::new(predicate, subscriptions)?;
            bed.round()?;
            samples.push(turns.clone().map(|_| bed.round()).collect::<Outcome<Samples>>()?);
        }
        let of_a_million = |samples: &Samples| rounded(1e9 / samples.median(), 3);
        let each = PREDICATES
            .iter()
            .zip(&samples)
            .map(|((what, _), samples)| format!("{what}: {} ms for a million", of_a_million(samples)));
        let each: Vec<String> = each.collect();
        let figure = Figure::new("subscriptions/s", samples.swap_remove(0))
            .under(format!("{subscriptions} subscriptions, few or none match, processor time of one core"));
        Ok(each.into_iter().fold(figure, Figure::under))
    })
    .await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_index_answers_and_few_match() {
        for (what, predicate) in PREDICATES {
            let explained = compiled(predicate).expect("a definition").rules.explain();
            assert!(explained[0].warnings[0].starts_with("no index answers"), "{what}: {explained:?}");
            let mut bed = Bed::new(predicate, 1_000).expect("a bed");
            let mut count = Count::default();
            bed.shard.match_batch(&bed.batch, &bed.fields, &mut count).expect("a batch");
            assert!(count.matches < 300 && count.failures == 0, "{what}: {}", count.matches);
        }
    }
}
