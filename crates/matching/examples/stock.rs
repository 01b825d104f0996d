//! Measures the stock workload on one core, in processor time of this thread, so that other load on the machine matters
//! less.
//!
//! `cargo run --release -p tocsin-matching --example stock -- DIR [COPIES [PASSES]]`, where `DIR` holds `subs.csv` and
//! ten batches as `bench/peers/matching` generates them; copies beyond the first have shifted triggers, as there. With
//! `PASSES`, only that many passes of matching run, for a profiler.

use std::{collections::BTreeMap, env, fs, hint::black_box, path::Path, sync::Arc, time::Instant};

use tocsin_matching::{
    cut::NotificationCutter,
    eval_value::EvalError,
    rule::{RuleNumber, RuleSet},
    shard::{MatchSink, Run, Shard, Subject},
};
use tocsin_model::{
    definition,
    event::{EventBatch, EventPacker},
    id::{EventBatchId, EventId, Name, SubscriberNumber, SubscriptionId},
    time::Timestamp,
    value::Value,
};

/// The same allocator as in the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const DEFINITION: &str = include_str!("../../../examples/stock/application.yaml");
const KINDS: [&str; 4] = ["stop", "limit", "change", "volume"];
const PASSES: usize = 7;
/// Rounds through the batches per measurement, since the kernel may count in ticks of 4 ms.
const ROUNDS: usize = 15;

/// Collects the ids of the subscriptions.
#[derive(Default)]
struct IdCollector(Vec<SubscriptionId>);

impl MatchSink for IdCollector {
    fn run(&mut self, run: Run<'_>) {
        run.append_ids(&mut self.0);
    }

    fn rule_failed(&mut self, _: RuleNumber, _: EventId, error: EvalError) {
        panic!("{error}");
    }

    fn subscriptions_failed(&mut self, _: RuleNumber, _: EventId, error: EvalError, _: u32) {
        panic!("{error}");
    }
}

fn main() {
    let mut arguments = env::args().skip(1);
    let dir = arguments.next().expect("the folder of the data");
    let copies: u64 = arguments.next().map_or(1, |copies| copies.parse().expect("a number of copies"));
    let profiled: Option<usize> = arguments.next().map(|passes| passes.parse().expect("a number of passes"));
    let read = |file: &str| fs::read_to_string(Path::new(&dir).join(file)).expect("the data is there");
    let application = definition::read(DEFINITION, &|_| None).expect("the definition is right");
    let rules = Arc::new(RuleSet::compile(&application).expect("the rules are right"));
    let name = |text: &str| text.parse::<Name>().expect("a name");
    let (quote, order, web) = (name("quote"), name("order"), name("web"));

    let mut shard = Shard::new(Arc::clone(&rules));
    let subscriptions = read("subs.csv");
    let started = Instant::now();
    for copy in 0..copies {
        let shift = (copy % 7) as i64 - if copy > 0 { 3 } else { 0 };
        for line in subscriptions.lines() {
            let parts: Vec<&str> = line.split(',').collect();
            let trigger = parts[4].parse::<i64>().expect("a trigger") + shift;
            let kind = KINDS[parts[3].parse::<usize>().expect("a kind")];
            let values = format!(r#"{{"symbol":"{}","kind":"{kind}","trigger":{trigger}}}"#, parts[2]);
            let id = SubscriptionId(shard.len() as u64 + 1);
            shard
                .put(Subject {
                    id,
                    subscriber: SubscriberNumber(id.0),
                    class: &order,
                    values: &values,
                    channel: Some(&web),
                    filter: None,
                })
                .expect("an order");
        }
    }
    let built = started.elapsed().as_secs_f64();
    let fields = &application.events[&quote].fields;
    let batches: Vec<EventBatch> = (0..10)
        .map(|number| {
            let mut packer = EventPacker::new(fields.clone());
            for line in read(&format!("batch{number:02}.csv")).lines() {
                let parts: Vec<&str> = line.split(',').collect();
                let number = |at: usize| Value::Integer(parts[at].parse().expect("a number"));
                packer.push(&[Value::from(parts[0]), number(1), number(2), number(3)]);
            }
            EventBatch {
                id: EventBatchId(number + 1),
                application: application.name.clone(),
                version: 1,
                class: quote.clone(),
                source: name("api"),
                received_at: Timestamp(0),
                accepted_at: Timestamp(0),
                snapshot_sequence: None,
                events: packer.finish(),
                chronicled: Default::default(),
            }
        })
        .collect();

    let mut taken = IdCollector::default();
    let mut matches = 0;
    let mut seconds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for _ in 0..profiled.unwrap_or(PASSES) {
        let before = processor_seconds();
        for _ in 0..ROUNDS {
            matches = 0;
            for batch in &batches {
                taken.0.clear();
                shard.match_batch(batch, fields, &mut taken).expect("a batch");
                matches += black_box(&taken).0.len();
            }
        }
        seconds.entry("match").or_default().push((processor_seconds() - before) / ROUNDS as f64);

        if profiled.is_some() {
            continue;
        }
        let before = processor_seconds();
        let mut cutter = NotificationCutter::new();
        for batch in (0..ROUNDS).flat_map(|_| &batches) {
            shard.match_batch(batch, fields, &mut cutter).expect("a batch");
            let (cut, _) = cutter.finish(&rules);
            for batch in &cut {
                black_box(batch.notifications.pack());
            }
        }
        seconds.entry("match, cut and pack").or_default().push((processor_seconds() - before) / ROUNDS as f64);
    }
    let bytes = shard.memory_bytes() / shard.len();
    println!("{} subscriptions, {bytes} bytes each, put in {built:.2} s; {matches} matches", shard.len());
    for (what, mut seconds) in seconds {
        seconds.sort_by(f64::total_cmp);
        let rate = |seconds: f64| matches as f64 / seconds / 1e6;
        let (slow, median, fast) = (seconds[seconds.len() - 1], seconds[seconds.len() / 2], seconds[0]);
        println!("{what}: {:.1} million/s ({:.1} to {:.1})", rate(median), rate(slow), rate(fast));
    }
}

/// Processor time of this thread, from Linux.
fn processor_seconds() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let nanos: u64 = text.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("nanoseconds");
    nanos as f64 / 1e9
}
