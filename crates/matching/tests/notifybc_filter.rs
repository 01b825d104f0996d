//! The filter dialect of NotifyBC: recorded results of its library, the compliance cases, and the conditions for the
//! index. Random tests print their seed; `TOCSIN_SEED` repeats it, `TOCSIN_CASES` runs more.

use std::path::{Path, PathBuf};

use fastrand::Rng;
use serde_json::{Value as Json, json};
use tocsin_matching::{
    eval_value::EvalError,
    filter::{
        CompiledFilter, EmptyEvent, compile, compile_with,
        index::{FilterIndex, FilterScratch},
        jmespath::{NotifybcFilter, Query},
    },
    user_functions::compile_functions,
};
use tocsin_model::{
    application::Function,
    field::{Field, FieldType, Fields, Row},
    filter::{Dialect, Filter},
    problem::{Code, Problem},
    value::Value,
};

fn testdata(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(below)
}

/// The class of a notification: its service and its data.
fn class() -> Fields {
    let field = |name: &str, kind: FieldType| Field::new(name.parse().expect("a name"), kind);
    Fields::new(vec![field("service", FieldType::String), field("data", FieldType::Map)])
}

fn row(data: &Json) -> Row {
    vec![Value::from("news"), Value::from(data.clone())]
}

fn filter(text: &str) -> Result<CompiledFilter, Vec<Problem>> {
    compile(&Filter::new(Dialect::Notifybc, text), &class())
}

/// The result of a filter; its condition and the filter without a class must agree.
fn matches(text: &str, data: &Json) -> bool {
    let compiled = filter(text).unwrap_or_else(|problems| panic!("{text}: {problems:?}"));
    let holds = compiled.holds(&row(data)) == Ok(true);
    assert_eq!(NotifybcFilter::compile(text).expect("it compiled").matches(data), holds, "{text} of {data}");
    check_condition(&compiled, text, &row(data), holds);
    holds
}

fn check_condition(compiled: &CompiledFilter, text: &str, row: &[Value], holds: bool) {
    if compiled.matches_empty().is_some_and(|empty| empty.holds(row)) {
        assert!(holds, "{text} of an event without data");
        return;
    }
    let condition = compiled.condition();
    let requested = condition.holds(row);
    assert!(requested || !holds, "{text} of {row:?}: {condition:?} is not necessary");
    assert!(holds || !requested || !compiled.is_exact(), "{text} of {row:?}: {condition:?} is not exact");
}

#[test]
fn s7_2_recorded_filters_decide_as_the_library_of_notifybc() {
    let text = std::fs::read_to_string(testdata("notifybc/filters.json")).expect("a file");
    let recorded: Json = serde_json::from_str(&text).expect("JSON");
    let data = recorded["data"].as_array().expect("a list");
    let mut wrong = Vec::new();
    let cases = recorded["filters"].as_array().expect("a list");
    for case in cases {
        let (text, expected) = (case[0].as_str().expect("a filter"), case[1].as_str().expect("a result"));
        let found = match filter(text) {
            Err(_) => "invalid".to_owned(),
            Ok(_) => data.iter().map(|data| if matches(text, data) { '1' } else { '0' }).collect(),
        };
        if found != expected {
            wrong.push(format!("{text}: {found}, not {expected}"));
        }
    }
    assert!(cases.len() > 1000);
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn s7_2_compliance_cases_pass_but_for_those_of_the_library() {
    // The cases in which the library differs from the specification, and so does this dialect. Where the library gives
    // undefined or NaN, JSON has null, as the specification.
    let mut expected = [
        ("boolean.json", "emptylist < nullvalue"),
        ("boolean.json", "emptylist < boolvalue"),
        ("boolean.json", "emptylist < one"),
        ("boolean.json", "one < boolvalue"),
        ("syntax.json", "[:::]"),
    ]
    .map(|(file, expression)| format!("{file}: {expression}"));
    let (mut count, mut different) = (0, Vec::new());
    for entry in std::fs::read_dir(testdata("jmespath")).expect("the cases are in the repository") {
        let path = entry.expect("a file").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a file that can be read");
        let suites: Vec<Json> = serde_json::from_str(&text).expect("a list of suites");
        for suite in suites {
            for case in suite["cases"].as_array().expect("a list of cases") {
                if case.get("bench").is_some() {
                    continue;
                }
                count += 1;
                let expression = case["expression"].as_str().expect("an expression");
                let found = Query::compile_for_notifybc(expression)
                    .map_err(|problem| problem.to_string())
                    .and_then(|query| query.search(&Value::from(suite["given"].clone())).map_err(|e| e.to_string()));
                let fits = match (found, case.get("result")) {
                    (Ok(found), Some(result)) => same(&found, &Value::from(result.clone())),
                    (Err(_), None) => true,
                    _ => false,
                };
                if !fits {
                    let file = path.file_name().expect("a name").to_string_lossy().into_owned();
                    different.push(format!("{file}: {expression}"));
                }
            }
        }
    }
    assert_eq!(count, 892);
    different.sort();
    expected.sort();
    assert_eq!(different, expected);
}

/// Equality in which 1 and 1.0 are one number.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Integer(left), Value::Number(right)) | (Value::Number(right), Value::Integer(left)) => {
            *left as f64 == *right
        }
        (Value::List(left), Value::List(right)) => {
            left.len() == right.len() && left.iter().zip(right.iter()).all(|(left, right)| same(left, right))
        }
        (Value::Map(left), Value::Map(right)) => {
            left.len() == right.len()
                && left.iter().all(|(key, value)| {
                    right.iter().any(|(other, right_value)| key == other && same(value, right_value))
                })
        }
        (left, right) => left == right,
    }
}

#[test]
fn s7_2_a_filter_is_not_applied_without_data() {
    for text in ["title == 'x'", "nope(title)", "`false`", "!contains(title, 'x')"] {
        assert!(matches(text, &json!({})), "{text}");
        assert!(matches(text, &Json::Null), "{text}");
        let compiled = filter(text).expect("a filter");
        assert_eq!(compiled.matches_empty(), Some(EmptyEvent::Map(1)));
    }
    assert!(!matches("title == 'x'", &json!({"title": "y"})));
    // A class without the field has no data that the filter could read.
    let fields = Fields::new(vec![Field::new("title".parse().expect("a name"), FieldType::String)]);
    let problems = compile(&Filter::new(Dialect::Notifybc, "title"), &fields).expect_err("no data");
    assert_eq!(problems[0].code, Code::UnknownName);
}

#[test]
fn equivalent_filters_of_jmespath_and_notifybc_are_different() {
    let compiled = |dialect: Dialect, text: &str| {
        compile(&Filter::new(dialect, text), &class()).expect("a filter").canonical().to_vec()
    };
    let notifybc = |text: &str| compiled(Dialect::Notifybc, text);
    assert_eq!(notifybc("contains_ci(title,'a')||n"), notifybc(" contains_ci( title , `a`) || n"));
    assert_eq!(notifybc("title == 'x'"), notifybc("(title) == 'x'"));
    // They differ for an event without data.
    assert_ne!(notifybc("title == 'x'"), compiled(Dialect::Jmespath, "data.title == 'x'"));
    assert_ne!(notifybc("length(title) > `1`"), notifybc("length(title) > `2`"));
}

#[test]
fn functions_of_the_application_are_called() {
    let function =
        Function { description: None, parameters: vec!["t".parse().expect("a name")], expression: "t == 'x'".into() };
    let functions = compile_functions(&[("is_x".parse().expect("a name"), function)].into_iter().collect());
    let functions = functions.expect("functions");
    let holds = |text: &str| {
        let compiled = compile_with(&Filter::new(Dialect::Notifybc, text), &class(), &functions).expect("a filter");
        compiled.holds(&row(&json!({"title": "x", "place": "y"})))
    };
    assert_eq!(holds("is_x(title)"), Ok(true));
    assert_eq!(holds("is_x(place) || is_x(title)"), Ok(true));
    assert_eq!(holds("is_x(place)"), Ok(false));
    assert_eq!(holds("is_x(title, place) || title"), Ok(false));
}

#[test]
fn expressions_are_bounded() {
    for text in [
        format!("{}a{}", "(".repeat(65), ")".repeat(65)),
        "[?".repeat(8_000),
        format!("a{}", " | @".repeat(4_000)),
        "x".repeat(20_000),
        "!".repeat(70) + "a",
        "&".repeat(70) + "a",
        "f(".repeat(70),
    ] {
        let problems = filter(&text).expect_err("a bomb");
        assert!(matches!(problems[0].code, Code::InvalidSyntax | Code::TooComplex | Code::TooLong), "{problems:?}");
        NotifybcFilter::compile(&text).expect_err("a bomb");
    }
    let items: Vec<Json> = (0..1000).map(|item| json!(item)).collect();
    let data = json!({"title": "a".repeat(60_000), "tags": items});
    for text in [
        format!("tags{} | @ == @", " | [@, @]".repeat(60)),
        format!("tags{} < 'x'", " | [@, @]".repeat(60)),
        format!("contains('a', tags{})", " | [@, @]".repeat(60)),
        format!("contains_ci(title, '{}')", "b".repeat(10_000)),
        "sort(tags) && ".repeat(40) + "title",
    ] {
        let compiled = filter(&text).expect("a filter within bounds");
        assert_eq!(compiled.holds(&row(&data)), Err(EvalError::Cost), "{}", &text[..30]);
        assert!(!NotifybcFilter::compile(&text).expect("a filter").matches(&data));
    }
}

fn random_data(rng: &mut Rng) -> Json {
    let any = |rng: &mut Rng| match rng.usize(0..9) {
        0 => Json::Null,
        1 => json!(rng.bool()),
        2 | 3 => json!(rng.i64(-1..3)),
        4 => json!([]),
        5 => json!({}),
        6 => json!(["a", 1, null]),
        _ => json!(*rng.choice(&["", "a", "ab", "AB", "1", "aba", "9007199254740993"]).expect("a text")),
    };
    let mut data = serde_json::Map::new();
    for name in ["title", "n", "tags", "obj"] {
        if rng.usize(0..3) > 0 {
            data.insert(name.to_owned(), any(rng));
        }
    }
    if rng.bool() {
        data.insert(
            "big".to_owned(),
            json!(*rng.choice(&[9_007_199_254_740_992i64, 9_007_199_254_740_993]).expect("one")),
        );
    }
    if rng.bool() {
        data.insert("tags".to_owned(), (0..rng.usize(0..4)).map(|_| any(rng)).collect());
    }
    if rng.bool() {
        data.insert("obj".to_owned(), json!({"x": any(rng), "y": any(rng)}));
    }
    Json::Object(data)
}

fn random_filter(rng: &mut Rng, depth: usize) -> String {
    let one = |rng: &mut Rng, of: &[&str]| (*rng.choice(of).expect("one of some")).to_owned();
    let path =
        |rng: &mut Rng| one(rng, &["title", "n", "tags", "obj", "obj.x", "obj.y", "missing", "*", "big", "tags[0]"]);
    let literal = |rng: &mut Rng| {
        one(rng, &["'a'", "'ab'", "''", "'A'", "`1`", "`1.0`", "`null`", "`true`", "`[]`", "`9007199254740992`", "'1'"])
    };
    if depth > 0 && rng.usize(0..4) > 0 {
        let mut sub = || random_filter(rng, depth - 1);
        let (left, right) = (sub(), sub());
        return match rng.usize(0..4) {
            0 => format!("!({left})"),
            1 | 2 => format!("({left}) && ({right})"),
            _ => format!("({left}) || ({right})"),
        };
    }
    let (place, value) = (path(rng), literal(rng));
    match rng.usize(0..12) {
        0 => place,
        1 | 2 => format!("{place} {} {value}", one(rng, &["==", "!="])),
        3 => format!("{place} {} {value}", one(rng, &["<", "<=", ">", ">="])),
        4 | 5 => {
            let function = one(rng, &["contains", "contains_ci", "starts_with", "ends_with"]);
            format!("{function}({place}, {value})")
        }
        6 => format!("contains(`[\"a\", 1, null, 9007199254740993]`, {place})"),
        7 => format!("contains(['a', 'ab'], {place})"),
        8 => format!("{place}[?@ {} {value}]", one(rng, &["==", "<", "!="])),
        9 => format!("nope({place})"),
        10 => format!("merge(obj, {place}).x"),
        _ => format!("length({place}) > `1`"),
    }
}

/// Calls with seeds: the requested one, or as many as requested.
fn with_seeds(usual: u64, case: impl Fn(u64)) {
    let number = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    match number("TOCSIN_SEED") {
        Some(seed) => case(seed),
        None => (0..number("TOCSIN_CASES").unwrap_or(usual)).for_each(case),
    }
}

#[test]
fn conditions_are_necessary_and_the_index_agrees() {
    with_seeds(300, |seed| {
        let mut rng = Rng::with_seed(seed);
        let filters: Vec<(String, CompiledFilter)> = (0..30)
            .map(|_| {
                let depth = rng.usize(0..3);
                let text = random_filter(&mut rng, depth);
                let compiled = filter(&text).unwrap_or_else(|problems| panic!("seed {seed}: {text}: {problems:?}"));
                (text, compiled)
            })
            .collect();
        let mut index = FilterIndex::new();
        for (number, (_, compiled)) in filters.iter().enumerate() {
            index.insert(number as u32, compiled);
        }
        let removed: Vec<bool> = filters.iter().map(|_| rng.u8(0..4) == 0).collect();
        for (number, (_, compiled)) in filters.iter().enumerate().filter(|(number, _)| removed[*number]) {
            index.remove(number as u32, compiled);
        }
        let mut scratch = FilterScratch::new();
        for round in 0..6 {
            let data = if round == 0 { json!({}) } else { random_data(&mut rng) };
            let row = row(&data);
            let mut expected = Vec::new();
            for (number, (text, compiled)) in filters.iter().enumerate() {
                let holds = compiled.holds(&row) == Ok(true);
                check_condition(compiled, &format!("seed {seed}: {text}"), &row, holds);
                if holds && !removed[number] {
                    expected.push(number as u32);
                }
            }
            let mut found = Vec::new();
            index.matching(&row, &mut scratch, &mut found);
            found.sort_unstable();
            let text = |numbers: &[u32]| numbers.iter().map(|at| filters[*at as usize].0.clone()).collect::<Vec<_>>();
            assert_eq!(text(&found), text(&expected), "seed {seed}: {data}");
        }
    });
}
