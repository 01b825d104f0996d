//! Property test: the filter index agrees with testing each condition separately, over random conditions, changes and
//! events. A failure prints the seed; `TOCSIN_SEED` repeats it, `TOCSIN_CASES` runs more.

use std::{collections::BTreeMap, env, sync::Arc};

use fastrand::Rng;
use tocsin_matching::{
    eval_value::EvalError,
    filter::{
        Case, CompiledFilter, Condition, Evaluate, Limit, Path, Range, Reach, ValueTest, compile,
        index::{FilterIndex, FilterPlacement, FilterScratch, ScanReason},
    },
    regex_pattern::Pattern,
    text::{Network, Wildcard},
};
use tocsin_model::{
    field::{Field, FieldType, Fields},
    filter::{Dialect, Filter},
    time::Timestamp,
    value::Value,
};

const TEXTS: [&str; 16] = [
    "",
    "a",
    "b",
    "ab",
    "abc",
    "abcabc",
    "ABC",
    "Abcd",
    "é",
    "É",
    "éa",
    "10.0.0.1",
    "10.1.2.3",
    "::1",
    "bca",
    "road closed",
];
const INTEGERS: [i64; 8] = [0, 1, 2, -1, 9_007_199_254_740_992, 9_007_199_254_740_993, i64::MAX, i64::MIN];
const NUMBERS: [f64; 8] = [0.0, -0.0, 0.5, 1.0, 1.5, 9_007_199_254_740_992.0, 9_223_372_036_854_775_808.0, -1e300];

fn one_of<T: Clone>(random: &mut Rng, list: &[T]) -> T {
    list[random.usize(0..list.len())].clone()
}

fn scalar(random: &mut Rng) -> Value {
    match random.u8(0..12) {
        0 => Value::Null,
        1 => Value::Boolean(random.bool()),
        2 | 3 => Value::Integer(one_of(random, &INTEGERS)),
        4 => Value::Integer(random.i64(-3..6)),
        5 | 6 => Value::Number(one_of(random, &NUMBERS)),
        7 => Value::Timestamp(Timestamp(random.i64(0..4))),
        _ => Value::from(one_of(random, &TEXTS)),
    }
}

fn value(random: &mut Rng, depth: u8) -> Value {
    match random.u8(0..if depth == 0 { 6 } else { 9 }) {
        6 | 7 => Value::List((0..random.usize(0..4)).map(|_| value(random, depth - 1)).collect()),
        8 => {
            let mut entries: Vec<(Arc<str>, Value)> = Vec::new();
            for key in ["x", "y"] {
                if random.u8(0..3) > 0 {
                    entries.push((key.into(), value(random, depth - 1)));
                }
            }
            Value::Map(entries.into())
        }
        _ => scalar(random),
    }
}

/// Fields 0 and 1 have any value, 2 to 4 a single value.
fn event(random: &mut Rng) -> Vec<Value> {
    (0..5).map(|field| if field < 2 { value(random, 3) } else { scalar(random) }).collect()
}

fn path(random: &mut Rng) -> Path {
    let keys = if random.u8(0..4) == 0 {
        (0..random.usize(1..3)).map(|_| Arc::from(one_of(random, &["x", "y"]))).collect()
    } else {
        Vec::new()
    };
    let field = if keys.is_empty() { random.usize(0..6) } else { random.usize(0..2) };
    Path { field, keys, reach: one_of(random, &[Reach::One, Reach::One, Reach::Items, Reach::Leaves]) }
}

fn value_test(random: &mut Rng) -> ValueTest {
    let case = one_of(random, &[Case::Sensitive, Case::Folded]);
    let text = one_of(random, &TEXTS);
    match random.u8(0..20) {
        0..=3 => ValueTest::In((0..random.usize(1..4)).map(|_| scalar(random)).collect()),
        4 => ValueTest::In((0..random.usize(1..12)).map(|_| scalar(random)).collect()),
        5 => ValueTest::prefix(text, case),
        6 => ValueTest::suffix(text, case),
        7 => ValueTest::contains(text, case),
        8 => ValueTest::equals_ignore_case(text),
        9 => {
            let parts = (0..random.usize(1..4)).map(|_| Arc::from(one_of(random, &TEXTS)));
            ValueTest::Wildcard(Wildcard::new(parts.collect()))
        }
        10 => {
            let texts = ["a|b", "(?i)abc", "^ab+c", "road (closed|open)", "x*", "(?i)é", "[a-c]{3}"];
            ValueTest::Matches(Pattern::read(one_of(random, &texts)).expect("an expression"))
        }
        11 => ValueTest::Cidr(
            Network::read(one_of(random, &["10.0.0.0/8", "10.0.0.0/30", "::/64", "0.0.0.0/0"])).expect("a network"),
        ),
        12 => ValueTest::Exists,
        13 => ValueTest::Missing,
        14 | 15 => {
            let inner = value_test(random);
            if matches!(inner, ValueTest::Exists | ValueTest::Missing) {
                inner
            } else {
                ValueTest::But(Box::new(inner))
            }
        }
        _ => {
            let limit = |random: &mut Rng| {
                let value = loop {
                    match scalar(random) {
                        Value::Null | Value::Boolean(_) => {}
                        value => break value,
                    }
                };
                Limit { value, inclusive: random.bool() }
            };
            let low = limit(random);
            let high = loop {
                let high = limit(random);
                let number = |value: &Value| matches!(value, Value::Integer(_) | Value::Number(_));
                let alike = std::mem::discriminant(&low.value) == std::mem::discriminant(&high.value);
                if alike || number(&low.value) && number(&high.value) {
                    break high;
                }
            };
            match random.u8(0..3) {
                0 => Range::within(Some(low), None),
                1 => Range::within(None, Some(high)),
                _ => Range::within(Some(low), Some(high)),
            }
        }
    }
}

fn condition(random: &mut Rng, depth: u8) -> Condition {
    let parts = |random: &mut Rng| {
        let count = if random.u8(0..20) == 0 { 0 } else { random.usize(1..5) };
        (0..count).map(|_| condition(random, depth - 1)).collect()
    };
    match random.u8(0..if depth == 0 { 10 } else { 16 }) {
        10..=13 => Condition::All(parts(random)),
        14 | 15 => Condition::Any(parts(random)),
        0 if random.u8(0..6) == 0 => one_of(random, &[Condition::Always, Condition::Unknown, Condition::never()]),
        _ => Condition::test(path(random), value_test(random)),
    }
}

/// An evaluator that is stricter than the condition.
#[derive(Debug)]
struct StricterEvaluator(Condition, Option<Condition>);

impl Evaluate for StricterEvaluator {
    fn holds(&self, event: &[Value]) -> Result<bool, EvalError> {
        Ok(self.0.holds(event) && self.1.as_ref().is_none_or(|more| more.holds(event)))
    }

    fn memory_bytes(&self) -> usize {
        0
    }
}

fn filter(random: &mut Rng) -> CompiledFilter {
    // Many with one value and a further test, so that their group grows large enough to be split.
    let condition = if random.u8(0..3) == 0 {
        let path = Path { field: 0, keys: Vec::new(), reach: Reach::Items };
        let mut parts =
            vec![Condition::test(path.clone(), ValueTest::equals("a")), Condition::test(path, value_test(random))];
        if random.u8(0..3) == 0 {
            parts.push(condition(random, 1));
        }
        Condition::All(parts)
    // Many narrow ranges of one path, so that groups grow large enough to be sorted.
    } else if random.u8(0..2) == 0 {
        let range = loop {
            if let range @ ValueTest::Range(_) = value_test(random) {
                break range;
            }
        };
        let mut parts = vec![Condition::test(Path::field(2), range)];
        if random.bool() {
            parts.push(Condition::test(Path::field(3), ValueTest::equals(one_of(random, &["a", "b"]))));
        }
        if random.u8(0..4) == 0 {
            parts.push(condition(random, 1));
        }
        Condition::All(parts)
    } else {
        condition(random, 3)
    };
    let exact = random.u8(0..5) > 0;
    let more = (!exact).then(|| self::condition(random, 0));
    let means = StricterEvaluator(condition.clone(), more);
    CompiledFilter::new(Dialect::Cel, condition, exact, "", Arc::new(means))
}

fn cases(few: usize) -> (u64, usize) {
    let number = |name: &str| env::var(name).ok().map(|text| text.parse().expect("a number"));
    let seed = number("TOCSIN_SEED").unwrap_or_else(|| Rng::new().u64(..));
    (seed, number("TOCSIN_CASES").map_or(few, |cases| cases as usize))
}

fn check_agreement(seed: u64, rounds: usize) {
    let mut random = Rng::with_seed(seed);
    let mut index = FilterIndex::new();
    let mut scratch = FilterScratch::new();
    let mut indexed: BTreeMap<u32, CompiledFilter> = BTreeMap::new();
    let mut free: Vec<u32> = Vec::new();
    for round in 0..rounds {
        // Grows, shrinks to nothing, grows again.
        let grows = round % 300 < 200;
        for _ in 0..random.usize(1..4) {
            if random.u8(0..10) < if grows { 8 } else { 2 } || indexed.is_empty() {
                let filter = filter(&mut random);
                let number = free.pop().unwrap_or(indexed.len() as u32);
                index.insert(number, &filter);
                indexed.insert(number, filter);
            } else {
                let numbers: Vec<u32> = indexed.keys().copied().collect();
                let number = one_of(&mut random, &numbers);
                let filter = indexed.remove(&number).expect("the filter is in the index");
                index.remove(number, &filter);
                free.push(number);
            }
        }
        assert_eq!(index.len(), indexed.len());
        for _ in 0..3 {
            let event = event(&mut random);
            let mut found = Vec::new();
            index.matching(&event, &mut scratch, &mut found);
            found.sort_unstable();
            let expected: Vec<u32> = indexed
                .iter()
                .filter(|(_, filter)| filter.holds(&event) == Ok(true))
                .map(|(number, _)| *number)
                .collect();
            if found != expected {
                let wrong = found
                    .iter()
                    .find(|number| !expected.contains(number))
                    .or_else(|| expected.iter().find(|number| !found.contains(number)));
                let filter = wrong.and_then(|number| indexed.get(number));
                panic!(
                    "TOCSIN_SEED={seed}, round {round}: found {found:?} instead of {expected:?} for {event:?}; {filter:?}"
                );
            }
        }
    }
    indexed.iter().for_each(|(number, filter)| index.remove(*number, filter));
    assert!(index.is_empty() && index.scanned() == 0 && index.signatures() == 0, "TOCSIN_SEED={seed}");
    let mut found = Vec::new();
    index.matching(&event(&mut random), &mut scratch, &mut found);
    assert!(found.is_empty());
}

#[test]
fn the_index_agrees_with_each_condition() {
    let (seed, cases) = cases(3);
    (0..cases as u64).for_each(|case| check_agreement(seed.wrapping_add(case), 300));
}

#[test]
fn slow_the_index_agrees_with_many_conditions() {
    let (seed, cases) = cases(4);
    (0..cases as u64).for_each(|case| check_agreement(seed.wrapping_add(case), 1_500));
}

fn fields() -> Fields {
    let field = |(name, kind): (&str, FieldType)| Field::new(name.parse().expect("a name"), kind);
    use FieldType::*;
    Fields::new(
        [("place", String), ("title", String), ("size", Number), ("count", Integer), ("tags", List)].map(field).into(),
    )
}

fn cel(text: &str) -> CompiledFilter {
    compile(&Filter::new(Dialect::Cel, text), &fields()).expect("a filter")
}

#[test]
fn insert_returns_the_placement() {
    let mut index = FilterIndex::new();
    let mut numbers = 0..;
    let mut insert = |text: &str| index.insert(numbers.next().expect("a number"), &cel(text));
    assert_eq!(insert("event.place == 'Kobe'"), FilterPlacement::Indexed);
    assert_eq!(insert("event.size > 5.0"), FilterPlacement::Indexed);
    assert_eq!(insert("event.title.contains('x') || 'a' in event.tags"), FilterPlacement::Indexed);
    assert_eq!(insert("event.title.matches('^road (closed|open)')"), FilterPlacement::Indexed);
    assert_eq!(insert("true"), FilterPlacement::Always);
    assert_eq!(insert("false"), FilterPlacement::Never);
    assert_eq!(insert("event.place != 'Kobe'"), FilterPlacement::Scanned(ScanReason::NoValue));
    assert_eq!(insert("event.place > 'Kobe' && event.place <= 'Kyoto'"), FilterPlacement::Indexed);
    assert_eq!(insert("event.place == 'Kobe' || event.count != 1"), FilterPlacement::Scanned(ScanReason::NoValue));
    assert_eq!(insert("size(event.tags) == 2"), FilterPlacement::Scanned(ScanReason::Opaque));
    assert_eq!((index.len(), index.scanned()), (10, 3));
}

#[test]
fn explain_shows_keys_and_groups() {
    let mut index = FilterIndex::new();
    index.insert(0, &cel("event.place == 'Kobe' && event.size > 5.0"));
    let filter =
        cel("event.place == 'Kobe' && event.size > 6.0 && event.title != 'x' || event.title.startsWith('Big')");
    index.insert(1, &filter);
    assert_eq!(
        index.explain(&filter, &fields()).to_string(),
        "it is a candidate only for events with certain values\n\
         - title starts with \"Big\"\n\
         - place == \"Kobe\" and size > 6, then 1 more test; 2 filters are in the same group"
    );
    assert_eq!(
        index.explain(&cel("size(event.tags) == 2"), &fields()).to_string(),
        "it is a candidate for every event: only evaluating it decides whether it matches\n\
         - every event\na candidate is evaluated"
    );
}

/// Checks the matches of an event, and returns the number of candidates.
fn candidates(filters: impl Iterator<Item = String>, event: &[Value], expected: &[u32]) -> u64 {
    let mut index = FilterIndex::new();
    let filters: Vec<CompiledFilter> = filters.map(|text| cel(&text)).collect();
    for (number, filter) in filters.iter().enumerate() {
        assert_eq!(index.insert(number as u32, filter), FilterPlacement::Indexed);
    }
    let (mut scratch, mut found) = (FilterScratch::new(), Vec::new());
    index.matching(event, &mut scratch, &mut found);
    found.sort_unstable();
    assert_eq!(found, expected);
    filters.iter().enumerate().for_each(|(number, filter)| index.remove(number as u32, filter));
    assert!(index.is_empty() && index.groups() == 0);
    scratch.counts().candidates
}

#[test]
fn text_ranges_are_sorted() {
    let event = |place: &str| [Value::from(place), Value::Null, Value::Null, Value::Null, Value::Null];
    let from = |number: u32| format!("event.place >= 'town {number:04}'");
    assert_eq!(candidates((0..3_000).map(from), &event("town 0002/b"), &[0, 1, 2]), 3);
    let between = |number: u32| format!("event.place > 'town {number:04}' && event.place < 'town {:04}'", number + 2);
    assert_eq!(candidates((0..3_000).map(between), &event("town 1500"), &[1499]), 1);
}

#[test]
fn a_very_frequent_value_does_not_make_all_filters_candidates() {
    let place = Value::from("Kobe");
    let event = |title: &str, tags: &[&str]| {
        let tags = tags.iter().map(|tag| Value::from(*tag)).collect();
        [place.clone(), Value::from(title), Value::Number(5.0), Value::Null, Value::List(tags)]
    };
    // Two values of one list, of which one is in all filters.
    let tags = |number: u32| format!("'all' in event.tags && 'tag{number}' in event.tags");
    assert!(candidates((0..3_000).map(tags), &event("", &["all", "tag7", "x"]), &[7]) <= 64);
    // Two substrings in one text.
    let texts = |number: u32| format!("event.title.contains('everything') && event.title.contains('w{number:05}')");
    assert!(candidates((0..3_000).map(texts), &event("everything w00017", &[]), &[17]) <= 64);
    // A set that is too wide for a key, with a range.
    let sets = |number: u32| {
        let tags: Vec<String> = (0..12).map(|more| format!("'t{}'", number * 12 + more)).collect();
        format!("event.place == 'Kobe' && event.title in [{}] && event.size >= {}.0", tags.join(", "), number % 7)
    };
    assert!(candidates((0..3_000).map(sets), &event("t96", &[]), &[8]) <= 1);
    assert!(candidates((0..3_000).map(sets), &event("t129", &[]), &[10]) <= 1);
}

#[test]
fn the_cost_of_an_event_grows_with_its_matches() {
    let mut index = FilterIndex::new();
    for number in 0..3_000 {
        let text = match number % 3 {
            0 => format!("event.place == 'p{number}' && event.size > 5.0"),
            1 => format!("event.title.contains('word{number}')"),
            _ => format!("event.count > {number} && event.count <= {}", number + 2),
        };
        assert_eq!(index.insert(number, &cel(&text)), FilterPlacement::Indexed);
    }
    let event =
        [Value::from("p3"), Value::from("a word1 and word2998"), Value::Number(6.0), 51_i64.into(), Value::Null];
    let (mut scratch, mut found) = (FilterScratch::new(), Vec::new());
    index.matching(&event, &mut scratch, &mut found);
    found.sort_unstable();
    assert_eq!(found, [1, 3, 50, 2998]);
    assert!(scratch.counts().candidates <= 5, "{:?}", scratch.counts());
    assert!(index.memory_bytes() < 3_000 * 400, "{} bytes", index.memory_bytes());
}
