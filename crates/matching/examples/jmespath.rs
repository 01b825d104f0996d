//! Measures JMESPath filters against the crate `jmespath`, and the worst-case cost.
//!
//! `cargo run --release -p tocsin-matching --example jmespath`

use std::{hint::black_box, time::Instant};

use tocsin_matching::filter::{
    CompiledFilter, compile,
    index::{FilterIndex, FilterScratch},
};
use tocsin_model::{
    field::{Field, FieldType, Fields},
    filter::{Dialect, Filter},
    value::Value,
};

/// The filter of NotifyBC's load test.
const LOAD: &str = "contains_ci(title,'vancouver') || contains_ci(title,'victoria')";
/// A filter that both accept.
const BOTH: &str = "contains(title, 'vancouver') || contains(title, 'victoria') && magnitude > `3`";
const TITLE: &str = "Planned power outage on the north shore of West Vancouver this Saturday";
const PASSES: usize = 7;

fn main() {
    let fields = Fields::new(
        [("title", FieldType::String), ("magnitude", FieldType::Number), ("tags", FieldType::List)]
            .map(|(name, kind)| Field {
                name: name.parse().expect("a name"),
                kind,
                required: true,
                default: Value::Null,
                description: None,
            })
            .into(),
    );
    let event = [Value::from(TITLE), Value::from(4.5), Value::List((0..1_000).map(Value::from).collect())];
    let filter = |text: &str| compile(&Filter::new(Dialect::Jmespath, text), &fields).expect("a filter");
    let small = serde_json::json!({ "title": TITLE, "magnitude": 4.5 });
    let theirs = jmespath::compile(BOTH).expect("a filter");
    let given = jmespath::Variable::from_json(&small.to_string()).expect("JSON");

    nanos("ours, compiled with its condition", 20_000, || drop(black_box(filter(BOTH))));
    nanos("jmespath crate, compiled", 20_000, || drop(black_box(jmespath::compile(BOTH))));
    let (both, load) = (filter(BOTH), filter(LOAD));
    nanos("ours, evaluated", 200_000, || assert_eq!(black_box(&both).holds(&event), Ok(false)));
    nanos("jmespath crate, evaluated", 200_000, || drop(black_box(theirs.search(&given))));
    nanos("ours, evaluated, the load test's filter", 200_000, || assert_eq!(black_box(&load).holds(&event), Ok(true)));
    let mut index = FilterIndex::new();
    for number in 0..10_000 {
        index.insert(number, &filter(&LOAD.replace("victoria", &format!("place {number:04}"))));
    }
    let (mut scratch, mut found) = (FilterScratch::new(), Vec::new());
    nanos("10,000 such filters by the index, all of them met", 2_000, || {
        found.clear();
        index.matching(&event, &mut scratch, &mut found);
        assert_eq!(found.len(), 10_000);
    });

    let worst = [
        ("pairs of pairs", format!("tags{} | @ == @", " | [@, @]".repeat(60))),
        ("every item as text", vec!["length(map(&to_string(@), tags)) > `1`"; 300].join(" && ")),
        ("sorted again and again", format!("tags{}", " | sort_by(@, &to_string(@))".repeat(200))),
        ("many alternatives", vec!["length(title) > `999`"; 600].join(" || ")),
        ("many conjunctions", vec!["(title == 'a' || magnitude > `1`)"; 400].join(" && ")),
        ("nested", format!("{}title{}", "!(".repeat(31), ")".repeat(31))),
    ];
    for (name, text) in &worst {
        let start = Instant::now();
        let compiled: CompiledFilter = filter(text);
        let compiling = start.elapsed();
        let start = Instant::now();
        let answer = compiled.holds(&event);
        println!("{name:40} compiled in {compiling:>10.1?}, {answer:?} in {:>10.1?}", start.elapsed());
    }
}

/// Prints the median of several passes.
fn nanos(name: &str, rounds: u32, mut work: impl FnMut()) {
    let mut passes: Vec<f64> = (0..PASSES)
        .map(|_| {
            let start = Instant::now();
            (0..rounds).for_each(|_| work());
            start.elapsed().as_nanos() as f64 / f64::from(rounds)
        })
        .collect();
    passes.sort_by(f64::total_cmp);
    println!("{name:55} {:>12.0} ns", passes[PASSES / 2]);
}
