//! Measures distinct event patterns on one core, in processor time of this thread, so that other load on the machine
//! matters less. Prints events per second for rows, and for events parsed from JSON first, as event-ruler does.
//!
//! `cargo run --release -p tocsin-matching --example patterns -- PATTERNS EVENTS [N]`, where the files hold one pattern
//! or event per line, as `bench/peers/matching` generates them.

use std::{env, fs, hint::black_box, time::Instant};

use tocsin_matching::filter::{
    CompiledFilter, compile,
    index::{FilterIndex, FilterScratch},
};
use tocsin_model::{
    field::{Field, FieldType, Fields, Row},
    filter::{Dialect, Filter},
};

const PASSES: usize = 7;
/// A pass repeats the events until at least this many are done.
const EVENTS_MIN: usize = 100_000;
const NUMBERS: [&str; 2] = ["price", "qty"];
const TEXTS: [&str; 12] =
    ["account", "category", "city", "coupon", "dtype", "eventid", "path", "region", "source", "status", "tier", "user"];

fn main() {
    let mut arguments = env::args().skip(1);
    let mut read = || fs::read_to_string(arguments.next().expect("a file")).expect("the data is there");
    let (patterns, events) = (read(), read());
    let n: usize = arguments.next().map_or(usize::MAX, |n| n.parse().expect("a number of patterns"));
    let field = |name: &str, kind| Field::new(name.parse().expect("a name"), kind);
    let numbers = NUMBERS.map(|name| field(name, FieldType::Number));
    let fields = Fields::new(TEXTS.map(|name| field(name, FieldType::String)).into_iter().chain(numbers).collect());

    let mut index = FilterIndex::new();
    let (mut read, mut filed) = (0.0, 0.0);
    let mut some: Vec<(u32, CompiledFilter)> = Vec::new();
    for (number, pattern) in patterns.lines().take(n).enumerate() {
        let before = Instant::now();
        let filter = compile(&Filter::new(Dialect::EventPattern, pattern), &fields).expect("a pattern");
        read += before.elapsed().as_secs_f64();
        let before = Instant::now();
        index.insert(number as u32, &filter);
        filed += before.elapsed().as_secs_f64();
        if number % 10 == 0 {
            some.push((number as u32, filter));
        }
    }
    let rows: Vec<Row> =
        events.lines().map(|event| fields.row_from_json(event.as_bytes()).expect("an event")).collect();

    let (mut scratch, mut found, mut matches) = (FilterScratch::new(), Vec::new(), 0);
    let rounds = EVENTS_MIN.div_ceil(rows.len());
    let mut rate = |pass: &mut dyn FnMut() -> usize| {
        let mut rates: Vec<f64> = (0..PASSES)
            .map(|_| {
                let before = processor_seconds();
                (0..rounds).for_each(|_| matches = pass());
                (rows.len() * rounds) as f64 / (processor_seconds() - before)
            })
            .collect();
        rates.sort_by(f64::total_cmp);
        (rates[PASSES / 2], rates[0], rates[PASSES - 1])
    };
    let given = rate(&mut || {
        let mut matches = 0;
        for row in &rows {
            found.clear();
            index.matching(row, &mut scratch, &mut found);
            matches += black_box(&found).len();
        }
        matches
    });
    let counts = scratch.counts();
    let from_json = rate(&mut || {
        let mut matches = 0;
        for event in events.lines() {
            let row = fields.row_from_json(event.as_bytes()).expect("an event");
            found.clear();
            index.matching(&row, &mut scratch, &mut found);
            matches += black_box(&found).len();
        }
        matches
    });
    let bytes = index.memory_bytes() / index.len();
    let before = Instant::now();
    for (number, filter) in &some {
        index.remove(*number, filter);
    }
    for (number, filter) in &some {
        index.insert(*number, filter);
    }
    let changes = 2.0 * some.len() as f64 / before.elapsed().as_secs_f64();

    println!(
        "{} patterns, {bytes} bytes each, {} signatures, {} scanned; read in {read:.2} s, filed in {filed:.2} s; {:.0} thousand \
         changes/s; {} matches of {} events, {:.2} candidates a match",
        index.len(),
        index.signatures(),
        index.scanned(),
        changes / 1e3,
        matches,
        rows.len(),
        counts.candidates as f64 / counts.matched as f64
    );
    for (what, (median, low, high)) in [("rows given", given), ("from JSON", from_json)] {
        println!("{what}: {:.0} thousand events/s ({:.0} to {:.0})", median / 1e3, low / 1e3, high / 1e3);
    }
}

/// Processor time of this thread, from Linux.
fn processor_seconds() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let nanos: u64 = text.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("nanoseconds");
    nanos as f64 / 1e9
}
