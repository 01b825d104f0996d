//! Expressions that would block the matcher are rejected with their position, or stopped by their step limit. The
//! condition of a filter, which is tested without counting steps, never searches a text many times. `examples/worst_cases.rs`
//! measures the same.

use tocsin_matching::{
    eval_value::EvalError,
    filter::{Case, CompiledFilter, Condition, ValueTest, compile},
};
use tocsin_model::{
    field::{Field, FieldType, Fields},
    filter::{Dialect, Filter},
    value::Value,
};

const TEXT_BYTES: usize = 1_000_000;

fn fields() -> Fields {
    let field = |(name, kind): (&str, FieldType)| Field::new(name.parse().expect("a name"), kind);
    let kinds = [("title", FieldType::String), ("tags", FieldType::List), ("detail", FieldType::Map)];
    Fields::new(kinds.map(field).into())
}

fn event(letter: &str) -> [Value; 3] {
    let tags = (0..1_000).map(Value::from).collect::<Vec<_>>();
    let people = (0..2_000).map(|at| {
        Value::Map((0..8).map(|key| (format!("k{key}").as_str().into(), Value::from(at * 8 + key))).collect())
    });
    let detail = Value::Map([("people".into(), Value::List(people.collect()))].into());
    [Value::from(&*letter.repeat(TEXT_BYTES / letter.len())), Value::List(tags.into()), detail]
}

fn filter(dialect: Dialect, text: &str) -> Result<CompiledFilter, String> {
    compile(&Filter::new(dialect, text), &fields()).map_err(|problems| problems[0].to_string())
}

fn many(count: usize, each: impl Fn(usize) -> String, glue: &str) -> String {
    (0..count).map(each).collect::<Vec<_>>().join(glue)
}

#[test]
fn worst_case_filters_are_rejected_with_their_position() {
    let check = |dialect: Dialect, text: String, expected: &str| {
        let problem = filter(dialect, &text).expect_err(expected);
        assert!(problem.contains(expected), "{problem}");
    };
    let cel = |text: String, expected: &str| check(Dialect::Cel, text, expected);
    cel("(".repeat(16_000), "1:65: the expression nests deeper than 64 levels");
    cel(format!("1{} > 0", "+1".repeat(8_000)), "1:1: the expression is too deep");
    cel("event.title.matches('(((a{100}){100}){100}){100}')".to_owned(), "1:21: the regular expression is too large");
    cel(format!(r"event.title.matches(r'{}')", r"(?i:\pL)|".repeat(1_600)), "1:21: at most 32 classes");
    let patterns = many(65, |at| format!("event.title.matches('a+{at}')"), " || ");
    cel(patterns, ": at most 64 regular expressions fit into one expression");
    let classes = many(20, |_| r"event.title.matches(r'\w+ \d+')".to_owned(), " || ");
    cel(classes, r": at most 32 classes such as `\w` fit into the regular expressions of one expression");
    let jmespath = |text: String, expected: &str| check(Dialect::Jmespath, text, expected);
    jmespath("[?".repeat(8_000), "nested more than 64 deep");
    jmespath(format!("`{}`", "[".repeat(10_000)), "1:1: the literal is not JSON");
    let pattern = |text: String, expected: &str| check(Dialect::EventPattern, text, expected);
    pattern(r#"{"a":"#.repeat(10_000), "the pattern is nested deeper than 32 levels");
    pattern(format!(r#"{{"title": ["{}"]}}"#, "x".repeat(70_000)), "at most 65536 are allowed");
    let wide = many(3_000, |at| format!(r#""k{at}": [1]"#), ", ");
    pattern(format!(r#"{{"detail": {{{wide}}}}}"#), "the pattern asks for more than 256 fields");
}

#[test]
fn worst_case_filters_are_stopped_by_the_step_limit() {
    let list = format!("[{}]", vec!["1"; 200].join(","));
    let same = " | [@, @][]";
    let people = many(8, |key| format!(r#""k{key}": [{{"numeric": [">=", 0]}}]"#), ", ");
    let never = format!(r#"{people}, "k8": [-1]"#);
    let event_of = |letter: &str| event(letter);
    for (dialect, letter, text) in [
        (Dialect::Cel, "a", format!("{list}.all(a, {list}.all(b, {list}.all(c, a + b + c > 0)))")),
        (Dialect::Cel, "a", "event.title.matches('b?a{3000}c')".to_owned()),
        (Dialect::Cel, "a", "event.title.matches('a[ab]{200}c')".to_owned()),
        (Dialect::Cel, "a", "event.tags.all(t, !string(t).matches(event.title.substring(0, 100)))".to_owned()),
        (Dialect::Cel, "a", "event.title.split('').size() > 5".to_owned()),
        (Dialect::Cel, "a", "event.title.split('a').size() > 5".to_owned()),
        (Dialect::Cel, "a", "event.title.replace('a', 'ab') == 'x'".to_owned()),
        (Dialect::Cel, "1h", "duration(event.title) > duration('1s')".to_owned()),
        (Dialect::Cel, "ä", many(300, |at| format!("!event.title.contains_ci('Öb{at}c')"), " && ")),
        (Dialect::Cel, "a", many(300, |at| format!("!event.title.contains('b{at}c')"), " && ")),
        (Dialect::Jmespath, "a", format!("[title]{} | sort(@)", same.repeat(10))),
        (Dialect::Jmespath, "a", format!("[title]{} | max(@)", same.repeat(10))),
        (Dialect::Jmespath, "a", format!("[title]{} | min_by(@, &@)", same.repeat(10))),
        (Dialect::Jmespath, "a", format!("{{{}}}", many(1_900, |at| format!("k{at}:@"), ","))),
        (Dialect::EventPattern, "a", {
            let stars = many(2_000, |at| format!(r#"{{"wildcard": "*a*b{at}c*"}}"#), ",");
            format!(r#"{{"title": [{stars}]}}"#)
        }),
        (Dialect::EventPattern, "a", {
            let stars = many(3_000, |at| format!(r#""*a*b{at}c*""#), ",");
            format!(r#"{{"title": [{{"anything-but": {{"wildcard": [{stars}]}}}}]}}"#)
        }),
        (Dialect::EventPattern, "a", format!(r#"{{"detail": {{"people": {{{never}}}}}}}"#)),
    ] {
        let start = text.chars().take(60).collect::<String>();
        let filter = filter(dialect, &text).unwrap_or_else(|problem| panic!("{start}: {problem}"));
        assert_eq!(filter.holds(&event_of(letter)), Err(EvalError::Cost), "{start}");
    }
}

/// Counts how often a condition searches a text, and how often it lower-cases one.
fn passes(condition: &Condition) -> (usize, usize) {
    let (mut passes, mut foldings) = (0, 0);
    condition.visit(&mut |test| {
        let value_test = if let ValueTest::But(inner) = &test.value_test { inner } else { &test.value_test };
        match value_test {
            ValueTest::Contains(_, Case::Folded) | ValueTest::Folded(_) => foldings += 1,
            ValueTest::Prefix(_, Case::Folded) | ValueTest::Suffix(_, Case::Folded) => foldings += 1,
            ValueTest::Contains(..) | ValueTest::Wildcard(_) => passes += 1,
            // A heavy pattern may cost a pass for each of its states.
            ValueTest::Matches(pattern) => passes += if pattern.is_light() { 1 } else { 1_000 },
            _ => {}
        }
    });
    (passes, foldings)
}

#[test]
fn conditions_are_cheap_although_their_steps_are_not_counted() {
    let check = |dialect: Dialect, text: &str, exact: bool, expected: (usize, usize)| {
        let filter = filter(dialect, text).unwrap_or_else(|problem| panic!("{problem}"));
        assert_eq!((filter.is_exact(), passes(filter.condition())), (exact, expected), "{text}");
    };
    // Ordinary tests stay in the condition.
    check(Dialect::Cel, "event.title.matches('(?i)road (closure|repair)s? in [a-z]+')", true, (1, 0));
    check(Dialect::Cel, "event.title.contains_ci('kobe') || event.title.contains_ci('lima')", true, (0, 2));
    check(Dialect::EventPattern, r#"{"title": [{"wildcard": "a*b*c"}]}"#, true, (1, 0));
    // Of expensive tests, the condition keeps the parts that find the filter.
    check(Dialect::Cel, "event.title.matches('wildfire[ab]{60}')", false, (1, 0));
    check(Dialect::Cel, "event.title.matches('a[ab]{60}') || size(event.title) > 3", false, (0, 0));
    let none = many(300, |at| format!("!event.title.contains_ci('Öb{at}c')"), " && ");
    check(Dialect::Cel, &format!("event.title.contains('kobe') && {none}"), false, (1, 0));
    let every = many(300, |at| format!("event.title.contains('b{at}c')"), " && ");
    check(Dialect::Cel, &every, false, (1, 0));
    // Alternative texts are searched in a single pass.
    let some = many(300, |at| format!("contains_ci(title, 'Öb{at}c')"), " || ");
    check(Dialect::Jmespath, &some, false, (0, 300));
    let stars = many(100, |at| format!(r#"{{"wildcard": "a*b{at}*c"}}"#), ",");
    check(Dialect::EventPattern, &format!(r#"{{"title": [{stars}]}}"#), false, (100, 0));
}
