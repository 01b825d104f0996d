//! Adversarial filters and segments, and events of the largest allowed size, to measure the worst-case cost. Add
//! further cases here.

use std::{collections::BTreeMap, time::Duration};

use tocsin_model::{
    field::{Field, FieldType, Fields},
    filter::{Dialect, Filter},
    ldap::{Entry, LdapFilter},
    problem::Problem,
    subscriber::Profile,
    time::Timestamp,
    value::Value,
};

use crate::filter::{
    compile::compile,
    compiled::CompiledFilter,
    index::{FilterIndex, FilterScratch},
};

/// Limit of the processor time for rejecting or stopping any of them.
pub const LONGEST: Duration = Duration::from_millis(100);
/// About the longest text that an event can hold.
const TEXT_BYTES: usize = 1_000_000;

/// Processor time of the thread since a fixed point.
pub type Clock<'a> = &'a dyn Fn() -> Duration;

/// The measured cost of one case.
#[derive(Debug, Clone)]
pub struct WorstCaseResult {
    /// Dialect and description.
    pub name: String,
    /// Time to compile it.
    pub reading: Duration,
    /// Longest evaluation for one event or subscriber; zero if it is rejected.
    pub evaluating: Duration,
    /// The result of the slowest evaluation.
    pub answer: String,
}

impl WorstCaseResult {
    /// The longest uninterrupted time.
    pub fn longest(&self) -> Duration {
        self.reading.max(self.evaluating)
    }
}

/// Measures all cases, one after another.
pub fn run_all(clock: Clock<'_>) -> Vec<WorstCaseResult> {
    let (fields, events) = (fields(), events());
    let filters = filters().into_iter().map(|(dialect, name, text)| {
        let name = format!("{dialect} {name}");
        measure_filter(name, &Filter::new(dialect, text), &fields, &events, clock)
    });
    let segments =
        segments().into_iter().map(|(name, text, attributes)| measure_segment(name, &text, attributes, clock));
    filters.chain(segments).collect()
}

/// Measures an ordinary filter for comparison: evaluated `times` times, the time is that of one.
pub fn ordinary_filter(times: u32, clock: Clock<'_>) -> WorstCaseResult {
    let (fields, events) = (fields(), events());
    let filter = Filter::new(Dialect::Cel, "event.title.contains_ci('wildfire') || 'x' in event.tags");
    let blasts = (0..times).map(|_| measure_filter("a usual filter".to_owned(), &filter, &fields, &events[..1], clock));
    let sum = blasts.reduce(|sum, one| WorstCaseResult {
        reading: sum.reading + one.reading,
        evaluating: sum.evaluating + one.evaluating,
        ..one
    });
    let sum = sum.expect("it is evaluated at least once");
    WorstCaseResult { reading: sum.reading / times, evaluating: sum.evaluating / times, ..sum }
}

fn measure_filter(
    name: String,
    filter: &Filter,
    fields: &Fields,
    events: &[(&str, Vec<Value>)],
    clock: Clock<'_>,
) -> WorstCaseResult {
    let start = clock();
    let compiled = compile(filter, fields);
    let reading = clock() - start;
    let (answer, evaluating) = match compiled {
        Err(problems) => (rejection(&problems), Duration::ZERO),
        Ok(filter) => measure_events(&filter, events, clock),
    };
    WorstCaseResult { name, reading, evaluating, answer }
}

fn measure_segment(name: &str, text: &str, attributes: BTreeMap<String, Value>, clock: Clock<'_>) -> WorstCaseResult {
    let start = clock();
    let parsed = LdapFilter::parse(text);
    let reading = clock() - start;
    let (answer, evaluating) = match parsed {
        Err(problems) => (rejection(&problems), Duration::ZERO),
        Ok(filter) => {
            let profile = Profile { attributes, ..Profile::default() };
            let id = "s".parse().expect("an id");
            let entry = Entry { id: &id, profile: &profile, channels: Vec::new(), created_at: Timestamp(0) };
            let start = clock();
            let truth = filter.evaluate(&entry);
            (truth.to_string(), clock() - start)
        }
    };
    WorstCaseResult { name: format!("ldap {name}"), reading, evaluating, answer }
}

fn rejection(problems: &[Problem]) -> String {
    let first = problems.first().map(Problem::to_string).unwrap_or_default();
    format!("refused: {}", first.chars().take(70).collect::<String>())
}

/// The results of a filter for the events, and the longest evaluation: by its own evaluator, and by the index.
fn measure_events(filter: &CompiledFilter, events: &[(&str, Vec<Value>)], clock: Clock<'_>) -> (String, Duration) {
    let mut index = FilterIndex::new();
    index.insert(0, filter);
    let (mut scratch, mut found) = (FilterScratch::new(), Vec::new());
    let (mut longest, mut slowest) = (Duration::ZERO, String::new());
    for (name, event) in events {
        let start = clock();
        let answer = filter.holds(event);
        let alone = clock() - start;
        let start = clock();
        found.clear();
        index.matching(event, &mut scratch, &mut found);
        let by_index = clock() - start;
        if slowest.is_empty() || alone.max(by_index) > longest {
            slowest = format!("{name}: {answer:?} in {alone:.2?}, by the index in {by_index:.2?}");
            longest = alone.max(by_index);
        }
    }
    (slowest, longest)
}

fn fields() -> Fields {
    let field = |(name, kind): (&str, FieldType)| Field::new(name.parse().expect("a name"), kind);
    let kinds = [
        ("title", FieldType::String),
        ("other", FieldType::String),
        ("at", FieldType::Timestamp),
        ("tags", FieldType::List),
        ("detail", FieldType::Map),
    ];
    Fields::new(kinds.map(field).into())
}

/// Events of the largest allowed size: long texts of several kinds, long lists, lists in lists.
fn events() -> Vec<(&'static str, Vec<Value>)> {
    let at = Value::Timestamp(Timestamp(1_700_000_000_000_000));
    let with = |title: String, other: &str, tags: Vec<Value>, detail: Value| {
        vec![Value::from(&*title), Value::from(other), at.clone(), Value::List(tags.into()), detail]
    };
    let numbers: Vec<Value> = (0..1_000).map(Value::from).collect();
    // A linear congruential generator is random enough for a search.
    let mixed = (0..TEXT_BYTES).scan(1_u32, |state, _| {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some(if *state >> 31 == 0 { 'a' } else { 'b' })
    });
    let mixed: String = mixed.collect();
    let texts: Vec<Value> = (0..1_000).map(|_| Value::from(&*"t".repeat(TEXT_BYTES / 1_000))).collect();
    let nested = (0..3).fold(Value::from("x"), |value, _| Value::List(vec![value; 40].into()));
    let people: Vec<Value> = (0..2_000)
        .map(|at| {
            let entries = (0..8).map(|key| (format!("k{key}").as_str().into(), Value::from(at * 8 + key)));
            Value::Map(entries.collect())
        })
        .collect();
    let detail = Value::Map([("people".into(), Value::List(people.into())), ("nested".into(), nested)].into());
    vec![
        ("same letters", with("a".repeat(TEXT_BYTES), &"(a?)".repeat(200), numbers.clone(), Value::Null)),
        ("random letters", with(mixed, r"(?i)[\pL\pN]{2}", texts, Value::Null)),
        ("many digits", with("1".repeat(TEXT_BYTES), "1", numbers.clone(), Value::Null)),
        ("many durations", with("1h".repeat(TEXT_BYTES / 2), "1h", numbers.clone(), Value::Null)),
        ("letters beyond ASCII", with("Ä".repeat(TEXT_BYTES / 2), "ä", numbers, Value::Null)),
        ("lists in lists", with("a".repeat(100), "a", vec![], detail)),
    ]
}

fn filters() -> Vec<(Dialect, &'static str, String)> {
    let list = format!("[{}]", vec!["1"; 200].join(","));
    let cel = [
        ("parentheses", "(".repeat(16_000)),
        ("long sum", format!("1{} > 0", "+1".repeat(8_000))),
        ("too long", format!("event.title == '{}'", "x".repeat(20_000))),
        ("macro in macro", format!("{list}.all(a, {list}.all(b, {list}.all(c, {list}.all(d, a + b + c + d > 0))))")),
        ("text that doubles", format!("'aa'{} == 'b'", ".replace('a', 'aa')".repeat(200))),
        ("bytes that double", format!("[event.title].map(a, a + a){}.size() > 0", ".map(a, a + a)".repeat(30))),
        ("list that doubles", format!("{list}.map(a, event.tags){}.size() > 0", ".map(a, a + a)".repeat(30))),
        ("regex too large", "event.title.matches('(((a{100}){100}){100}){100}')".to_owned()),
        ("regex, deep", format!("event.title.matches('{}a{}')", "(".repeat(5_000), ")".repeat(5_000))),
        ("regex, many classes", format!(r"event.title.matches(r'{}')", r"(?i:\pL)|".repeat(1_600))),
        ("regex, classes in classes", format!(r"event.title.matches(r'{}')", r"[\pL--[\pN&&\w]]".repeat(900))),
        ("regex, optional letters", format!("event.title.matches('^{}{}$')", "a?".repeat(1_500), "a".repeat(1_500))),
        ("regex, counted letter", "event.title.matches('b?a{3000}c')".to_owned()),
        ("regex, states that explode", "event.title.matches('a[ab]{1000}c')".to_owned()),
        ("regex, states, small", "event.title.matches('a[ab]{60}c')".to_owned()),
        ("regex, many", format!("{}false", "event.title.matches('a[ab]{20}c') || ".repeat(300))),
        ("regex, several", contained(60, |at| format!("event.title.matches('a[ab]{{3}}c{at}')"), " || ")),
        ("regex, several heavy", contained(60, |at| format!("event.title.matches('a[ab]{{30}}c{at}')"), " && ")),
        (
            "regex, several large",
            contained(25, |at| format!(r"event.title.matches(r'(?i:\pL)x{at}(?i:\pL{{2}})')"), " && "),
        ),
        ("regex of the event", "event.tags.all(t, !event.title.matches(event.other) || true)".to_owned()),
        ("regex of the event, text short", "event.tags.all(t, !string(t).matches(event.other) || true)".to_owned()),
        ("many contained", contained(450, |at| format!("event.title.contains('b{at}c')"), " || ")),
        ("many contained at once", contained(450, |at| format!("!event.title.contains('b{at}c')"), " && ")),
        ("many contained in any case", contained(400, |at| format!("event.title.contains_ci('Öb{at}c')"), " || ")),
        ("none contained in any case", contained(400, |at| format!("!event.title.contains_ci('Öb{at}c')"), " && ")),
        ("long needle in any case", format!("event.title.contains_ci('{}b')", "a".repeat(15_000))),
        ("split again and again", "event.tags.all(t, event.title.split('').size() >= 0)".to_owned()),
        ("split by a letter", "event.tags.all(t, event.title.split('a').size() >= 0)".to_owned()),
        ("reversed again and again", "event.tags.all(t, event.title.reverse() != '')".to_owned()),
        ("substrings", "event.tags.all(t, event.title.substring(0, 500000) != '')".to_owned()),
        ("last place of a text", "event.tags.all(t, event.title.lastIndexOf('aab') < 5000000)".to_owned()),
        ("durations", "event.tags.all(t, duration(event.title) > duration('1s') || true)".to_owned()),
        ("numbers of text", "event.tags.all(t, double(event.title) > 1.0 || true)".to_owned()),
        ("integers of text", "event.tags.all(t, int(event.title) > 1 || true)".to_owned()),
        ("times in zones", "event.tags.all(t, event.tags.all(u, event.at.getHours('Europe/Vienna') >= 0))".to_owned()),
        (
            "unknown zones",
            "event.tags.all(t, event.tags.all(u, event.at.getHours('No/' + string(u)) >= 0 || true))".to_owned(),
        ),
        ("formatted", "event.tags.all(t, '%.1000f'.format([1.5]) != '')".to_owned()),
        ("formatted as hexadecimal", "event.tags.all(t, '%x'.format([event.title]) != '')".to_owned()),
        ("quoted", "event.tags.all(t, strings.quote(event.title) != '')".to_owned()),
        ("base64", "event.tags.all(t, base64.encode(bytes(event.title)) != '')".to_owned()),
        ("equal texts", "event.tags.all(t, event.title + 'a' != event.title + 'b')".to_owned()),
        ("conversion to bytes", "event.tags.all(t, bytes(event.title) != b'')".to_owned()),
        ("maps of maps", "event.detail.people.all(a, event.detail.people.all(b, a != b || a == b))".to_owned()),
    ]
    .map(|(name, text)| (Dialect::Cel, name, text));
    let keys: Vec<String> = (0..2_000).map(|at| format!("k{at}:@")).collect();
    let jmespath = [
        ("brackets", "[?".repeat(8_000)),
        ("JSON in a literal", format!("`{}`", "[".repeat(10_000))),
        ("list that doubles", format!("tags{} | @ == @", " | [@, @]".repeat(60))),
        ("list that doubles, as text", format!("to_string(tags{}) == 'x'", " | [@, @]".repeat(60))),
        ("flattened", format!("tags{} == `1`", " | [@, @][]".repeat(30))),
        ("long texts sorted", format!("[title]{} | sort(@)", " | [@, @][]".repeat(11))),
        ("highest of long texts", format!("[title]{} | max(@)", " | [@, @][]".repeat(12))),
        ("sorted by long texts", format!("[title]{} | sort_by(@, &@)", " | [@, @][]".repeat(11))),
        ("longest by", format!("[title]{} | max_by(@, &@)", " | [@, @][]".repeat(12))),
        ("long texts within", format!("contains([title]{}, other)", " | [@, @][]".repeat(12))),
        ("texts joined", format!("join(title, [title]{})", " | [@, @][]".repeat(12))),
        ("every item as text", vec!["length(map(&to_string(@), tags)) > `1`"; 300].join(" && ")),
        ("an object of many names", format!("{{{}}}", keys.join(","))),
        ("many names for each item", format!("tags[*].{{{}}}", keys.join(","))),
        ("objects merged", format!("merge({{{}}}, @) | keys(@)", keys[..1_500].join(","))),
        ("items of items", "detail.nested[][][].{a: @, b: @} | sort_by(@, &a)".to_owned()),
        ("text reversed", vec!["reverse(title) == 'x'"; 600].join(" || ")),
        ("text to numbers", "tags[?to_number(title)]".to_owned()),
        ("text in text", format!("contains_ci(title, '{}')", "b".repeat(10_000))),
        ("many contained", contained(500, |at| format!("contains(title, 'b{at}c')"), " || ")),
        ("many contained in any case", contained(450, |at| format!("contains_ci(title, 'Öb{at}c')"), " || ")),
    ]
    .map(|(name, text)| (Dialect::Jmespath, name, text));
    let products: Vec<String> =
        (0..40).map(|at| format!(r#"{{"$or": [{{"title": ["a{at}"]}}, {{"other": ["b{at}"]}}]}}"#)).collect();
    let or_in_or = (0..15).fold(r#"{"title": ["a"]}"#.to_owned(), |inner, at| {
        format!(r#"{{"$or": [{inner}, {{"title": ["b{at}"]}}], "other": ["c{at}", "d{at}"]}}"#)
    });
    let people: Vec<String> = (0..8).map(|key| format!(r#""k{key}": [{{"numeric": [">=", 0]}}]"#)).collect();
    let never = people.join(", ").replace("\"k7\": [{\"numeric\": [\">=\", 0]}]", r#""k7": [-1]"#);
    let wide: Vec<String> = (0..3_000).map(|at| format!(r#""k{}": [{{"exists": {}}}]"#, at, at >= 8)).collect();
    let pattern = [
        ("braces", r#"{"a":"#.repeat(10_000)),
        ("too long", format!(r#"{{"title": ["{}"]}}"#, "x".repeat(70_000))),
        ("alternatives in alternatives", or_in_or),
        ("product of alternatives", format!(r#"{{"$or": [{}]}}"#, products.join(","))),
        ("stars", format!(r#"{{"title": [{{"wildcard": "{}c"}}]}}"#, "*a".repeat(20_000))),
        (
            "many stars",
            format!(r#"{{"title": [{}]}}"#, contained(2_000, |at| format!(r#"{{"wildcard": "*a*b{at}c*"}}"#), ",")),
        ),
        (
            "many excluded by stars",
            format!(
                r#"{{"title": [{{"anything-but": {{"wildcard": [{}]}}}}]}}"#,
                contained(3_000, |at| format!(r#""*a*b{at}c*""#), ",")
            ),
        ),
        (
            "many in any case",
            format!(
                r#"{{"title": [{}]}}"#,
                contained(1_500, |at| format!(r#"{{"equals-ignore-case": "Ö{at}"}}"#), ",")
            ),
        ),
        (
            "many prefixes in any case",
            format!(
                r#"{{"title": [{}]}}"#,
                contained(900, |at| format!(r#"{{"prefix": {{"equals-ignore-case": "Ö{at}"}}}}"#), ",")
            ),
        ),
        ("objects in lists", format!(r#"{{"detail": {{"people": {{{never}}}}}}}"#)),
        (
            "objects in lists, alternatives",
            format!(r#"{{"detail": {{"people": {{"$or": [{{{never}}}, {{{never}}}, {{{never}}}]}}}}}}"#),
        ),
        ("lists in lists", r#"{"detail": {"nested": ["y"], "people": {"k0": [-1]}}}"#.to_owned()),
        ("many fields of one object", format!(r#"{{"detail": {{"people": {{{}}}}}}}"#, wide.join(","))),
        (
            "many values",
            format!(r#"{{"detail": {{"nested": [{}]}}}}"#, contained(8_000, |at| format!("\"{at}\""), ",")),
        ),
    ]
    .map(|(name, text)| (Dialect::EventPattern, name, text));
    cel.into_iter().chain(jmespath).chain(pattern).collect()
}

fn contained(count: usize, each: impl Fn(usize) -> String, glue: &str) -> String {
    (0..count).map(each).collect::<Vec<_>>().join(glue)
}

fn segments() -> Vec<(&'static str, String, BTreeMap<String, Value>)> {
    let attributes = |value: Value| BTreeMap::from([("a".to_owned(), value)]);
    let long = attributes(Value::from(&*"Ä".repeat(30_000)));
    let many = attributes(Value::List((0..16_000).map(|at| Value::from(&*(at % 10).to_string())).collect()));
    let some = |test: fn(usize) -> String| format!("(|{})", contained(900, test, ""));
    vec![
        ("nested", format!("{}(a=1){}", "(!".repeat(5_000), ")".repeat(5_000)), long.clone()),
        ("many terms", format!("(|{})", "(a=1)".repeat(2_000)), long.clone()),
        ("stars", format!("(a={}b)", "*a".repeat(8_000)), attributes(Value::from(&*"a".repeat(60_000)))),
        ("a long value, many terms", some(|at| format!("(a=x{at})")), long.clone()),
        ("a long value, many parts", some(|at| format!("(a=*x{at}*y*)")), long.clone()),
        ("a long value, roughly", some(|at| format!("(a~=x{at})")), long),
        ("many values, many terms", some(|at| format!("(a=x{at})")), many.clone()),
        ("many values, many parts", some(|at| format!("(a=*x{at}*)")), many),
    ]
}
