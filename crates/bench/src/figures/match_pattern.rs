//! Figures `match.pattern.*`: distinct event patterns in the filter index, in this process. Peer: event-ruler on the
//! same patterns and events.

use std::{fs, hint::black_box, time::Instant};

use tocsin_matching::filter::{
    compile,
    index::{FilterIndex, FilterScratch},
};
use tocsin_model::{
    field::{Field, FieldType, Fields, Row},
    filter::{Dialect, Filter},
};

use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::{Context, run_blocking},
        figure::{Figure, Samples, rounded},
        peers,
    },
};

/// 10,000 patterns.
pub const TEN_THOUSAND: Bench = Bench {
    name: "match.pattern.10k",
    about: "events/s with 10,000 distinct event patterns, one core; peer: event-ruler",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context, 10_000)) },
};

/// 100,000 patterns.
pub const HUNDRED_THOUSAND: Bench = Bench {
    name: "match.pattern.100k",
    about: "the same with 100,000 patterns",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context, 100_000)) },
};

/// 1,000,000 patterns, of which event-ruler loads only a part within minutes.
pub const MILLION: Bench = Bench {
    name: "match.pattern.1m",
    about: "the same with 1,000,000 patterns; the peer has those it loads in 4 minutes",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context, 1_000_000)) },
};

/// Minimum duration of a measured round, in seconds.
const ROUND_SECONDS: f64 = 0.2;

const NUMBERS: [&str; 2] = ["price", "qty"];
const TEXTS: [&str; 12] =
    ["account", "category", "city", "coupon", "dtype", "eventid", "path", "region", "source", "status", "tier", "user"];

struct PatternHarness {
    fields: Fields,
    index: FilterIndex,
    scratch: FilterScratch,
    events: Vec<String>,
    rows: Vec<Row>,
    found: Vec<u32>,
    load_seconds: f64,
}

impl PatternHarness {
    fn new(patterns: &str, events: &str, n: usize) -> Outcome<Self> {
        let field = |name: &str, kind| {
            let name = name.parse().map_err(|_| Failure::failed("invalid field name"))?;
            Ok::<_, Failure>(Field::new(name, kind))
        };
        let numbers = NUMBERS.iter().map(|name| field(name, FieldType::Number));
        let texts = TEXTS.iter().map(|name| field(name, FieldType::String));
        let fields = Fields::new(texts.chain(numbers).collect::<Outcome<_>>()?);
        let mut index = FilterIndex::new();
        let started = Instant::now();
        for (number, pattern) in patterns.lines().take(n).enumerate() {
            let filter = compile(&Filter::new(Dialect::EventPattern, pattern), &fields).map_err(|problems| {
                let failure = Failure::failed("a pattern is invalid");
                problems.iter().fold(failure, |failure, problem| failure.detail(problem.to_string()))
            })?;
            index.insert(number as u32, &filter);
        }
        let load_seconds = started.elapsed().as_secs_f64();
        let events: Vec<String> = events.lines().map(str::to_owned).collect();
        let row = |event: &String| {
            fields.row_from_json(event.as_bytes()).map_err(|_| Failure::failed("an event does not match its schema"))
        };
        let rows = events.iter().map(row).collect::<Outcome<_>>()?;
        Ok(PatternHarness {
            fields,
            index,
            scratch: FilterScratch::new(),
            events,
            rows,
            found: Vec::new(),
            load_seconds,
        })
    }

    fn match_row(&mut self, row: &Row) -> u64 {
        self.found.clear();
        self.index.matching(row, &mut self.scratch, &mut self.found);
        black_box(&self.found).len() as u64
    }

    /// Events/s and matches of a pass; repeated for at least [`ROUND_SECONDS`].
    fn round(&mut self, from_json: bool) -> Outcome<(f64, u64)> {
        let (started, mut passes) = (Instant::now(), 0_usize);
        loop {
            let mut matches = 0;
            if from_json {
                let events = std::mem::take(&mut self.events);
                for event in &events {
                    let row = self.fields.row_from_json(event.as_bytes());
                    matches += self.match_row(&row.map_err(|_| Failure::failed("an event does not match its schema"))?);
                }
                self.events = events;
            } else {
                let rows = std::mem::take(&mut self.rows);
                matches += rows.iter().map(|row| self.match_row(row)).sum::<u64>();
                self.rows = rows;
            }
            passes += 1;
            let seconds = started.elapsed().as_secs_f64();
            if seconds > ROUND_SECONDS {
                return Ok(((passes * self.rows.len()) as f64 / seconds, matches));
            }
        }
    }
}

async fn run(context: &Context, n: usize) -> Outcome<Figure> {
    let n = context.size(n, n / 100);
    let data = peers::generated(context, "patterns", &context.size([1_000_000, 20_000], [10_000, 2_000])).await?;
    let (patterns, events) = (data.join("common.jsonl"), data.join("events.jsonl"));
    let read = |file| fs::read_to_string(file).map_err(|error| Failure::file("read", file, &error));
    let (pattern_text, event_text) = (read(&patterns)?, read(&events)?);
    let mut harness = run_blocking(move || PatternHarness::new(&pattern_text, &event_text, n)).await??;
    let (mut ours, mut from_json, mut found) = (Samples::default(), Samples::default(), 0);
    let mut peer = Samples::default();
    let mut conditions = Vec::new();
    for turn in context.turns() {
        let (back, rows, read) = run_blocking(move || {
            let rows = harness.round(false);
            let read = harness.round(true);
            (harness, rows, read)
        })
        .await?;
        harness = back;
        let (per_second, matches) = rows?;
        ours.push(per_second);
        from_json.push(read?.0);
        found = matches;
        // Loading takes minutes, so it runs once, between our turns.
        if turn == context.repeats().div_ceil(2)
            && let Some(ruled) = peers::event_ruler(context, &patterns, &events, n).await?
        {
            if ruled.patterns == n as u64 && ruled.events == harness.rows.len() as u64 && ruled.matches != found {
                return Err(Failure::failed(format!("the index found {found} matches, event-ruler {}", ruled.matches)));
            }
            ruled.per_second.into_iter().for_each(|sample| peer.push(sample));
            let loaded =
                if ruled.patterns < n as u64 { format!(" with {} patterns", ruled.patterns) } else { String::new() };
            conditions.push(format!("event-ruler{loaded} takes {:.0} bytes each", ruled.bytes_each));
        }
    }
    let each = found as f64 / harness.rows.len() as f64;
    let figure = Figure::new("events/s", ours)
        .with_peer("event-ruler", peer)
        .with_condition(format!("{n} patterns"))
        .with_condition("one core")
        .with_condition(format!("{} matches per event", rounded(each, 3)))
        .with_condition("events parsed beforehand, by both")
        .with_condition(format!("{:.0} events/s from JSON", from_json.median()))
        .with_condition(format!("{} bytes per pattern in the index", harness.index.memory_bytes() / n))
        .with_condition(format!("parsed and indexed in {} s", rounded(harness.load_seconds, 3)));
    Ok(conditions.into_iter().fold(figure, Figure::with_condition))
}
