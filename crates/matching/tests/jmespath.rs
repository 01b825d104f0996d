//! JMESPath filters: the compliance cases, another implementation as a second opinion, and the semantics of NotifyBC's
//! filters. Random tests print their seed; `TOCSIN_SEED` repeats it, `TOCSIN_CASES` runs more.

use std::path::Path;

use fastrand::Rng;
use serde_json::{Value as Json, json};
use tocsin_matching::{
    eval_value::EvalError,
    filter::{
        CompiledFilter, compile, compile_with,
        index::{FilterIndex, FilterScratch},
        jmespath::Query,
    },
    user_functions::{UserFunctions, compile_functions},
};
use tocsin_model::{
    application::Function,
    field::{Field, FieldType, Fields, Row},
    filter::{Dialect, Filter},
    problem::Problem,
    value::Value,
};

/// Calls with seeds: the requested one, or as many as requested.
fn with_seeds(usual: u64, case: impl Fn(u64)) {
    let number = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    match number("TOCSIN_SEED") {
        Some(seed) => case(seed),
        None => (0..number("TOCSIN_CASES").unwrap_or(usual)).for_each(case),
    }
}

#[test]
fn every_compliance_case_passes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/jmespath");
    let (mut count, mut wrong) = (0, Vec::new());
    for entry in std::fs::read_dir(folder).expect("the cases are in the repository") {
        let path = entry.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("a file that can be read");
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let suites: Vec<Json> = serde_json::from_str(&text).expect("a list of suites");
        for suite in suites {
            for case in suite["cases"].as_array().expect("a list of cases") {
                if case.get("bench").is_some() {
                    continue;
                }
                count += 1;
                let expression = case["expression"].as_str().expect("an expression");
                let found = search(expression, &suite["given"]);
                let fits = match (&found, case.get("result")) {
                    (Ok(found), Some(expected)) => equal_numerically(found, expected),
                    (Err(_), None) => true,
                    _ => false,
                };
                if !fits {
                    wrong.push(format!("{}: {expression}\n    {found:?}\n    {case}", path.display()));
                }
            }
        }
    }
    assert_eq!(count, 892);
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}

fn search(expression: &str, given: &Json) -> Result<Json, String> {
    let query = Query::compile(expression).map_err(|problem| problem.to_string())?;
    query.search(&Value::from(given.clone())).map(Json::from).map_err(|error| error.to_string())
}

/// Equality in which 1 and 1.0 are one number.
fn equal_numerically(left: &Json, right: &Json) -> bool {
    match (left, right) {
        (Json::Number(left), Json::Number(right)) => left.as_f64() == right.as_f64(),
        (Json::Array(left), Json::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| equal_numerically(left, right))
        }
        (Json::Object(left), Json::Object(right)) => {
            left.len() == right.len()
                && left.iter().all(|(key, left)| right.get(key).is_some_and(|right| equal_numerically(left, right)))
        }
        (left, right) => left == right,
    }
}

/// Random JSON with sorted keys, since the other implementation sorts them.
fn random_json(rng: &mut Rng, depth: usize) -> Json {
    match rng.usize(0..if depth == 0 { 8 } else { 12 }) {
        0 => Json::Null,
        1 => json!(rng.bool()),
        2 | 3 => json!(rng.i64(-3..6)),
        4 => json!(rng.i64(-3..6) as f64 + 0.5),
        5 => json!(""),
        6 | 7 => json!(*rng.choice(&["a", "b", "ab", "Ab", "1", "é"]).expect("a text")),
        8 | 9 => (0..rng.usize(0..4)).map(|_| random_json(rng, depth - 1)).collect(),
        _ => {
            let mut object = serde_json::Map::new();
            for key in ["a", "b", "c", "d"] {
                if rng.bool() {
                    object.insert(key.to_owned(), random_json(rng, depth - 1));
                }
            }
            Json::Object(object)
        }
    }
}

/// A random expression that avoids the known differences: the mean of an empty list (null here, an error there), the
/// number of digits in `to_string` (`1` here, `1.0` there), the order of keys of results, and the equality of 1 and 1.0
/// (one number here, two there), which affects rounding and sums.
fn random_query(rng: &mut Rng, depth: usize) -> String {
    if depth == 0 {
        return match rng.usize(0..8) {
            0 => "@".to_owned(),
            1 => format!("`{}`", random_json(rng, 1)).replace('\\', "\\\\"),
            2 => "'ab'".to_owned(),
            _ => (*rng.choice(&["a", "b", "c", "\"d\"", "x"]).expect("a name")).to_owned(),
        };
    }
    let sub = |rng: &mut Rng| random_query(rng, depth - 1);
    let name = |rng: &mut Rng| (*rng.choice(&["a", "b", "c", "d"]).expect("a name")).to_owned();
    match rng.usize(0..26) {
        0 => format!("({}).{}", sub(rng), name(rng)),
        1 => format!("({})[{}]", sub(rng), rng.i64(-3..3)),
        2 => format!("{} || {}", sub(rng), sub(rng)),
        3 => format!("{} && {}", sub(rng), sub(rng)),
        4 => format!("!({})", sub(rng)),
        5 | 6 => {
            let comparison = rng.choice(&["==", "!=", "<", "<=", ">", ">="]).expect("a comparison");
            format!("({}) {comparison} ({})", sub(rng), sub(rng))
        }
        7 => format!("({})[*].{}", sub(rng), name(rng)),
        8 => format!("({}).*", sub(rng)),
        9 => format!("({})[]", sub(rng)),
        10 => format!("({})[?{}]", sub(rng), sub(rng)),
        11 => {
            let bound = |rng: &mut Rng| if rng.bool() { rng.i64(-4..5).to_string() } else { String::new() };
            let (start, stop) = (bound(rng), bound(rng));
            let step = *rng.choice(&["", ":1", ":2", ":-1", ":-2"]).expect("a step");
            format!("({})[{start}:{stop}{step}]", sub(rng))
        }
        12 => format!("[{}, {}]", sub(rng), sub(rng)),
        13 => format!("{{a: {}, b: {}}}", sub(rng), sub(rng)),
        14 => format!("({}) | ({})", sub(rng), sub(rng)),
        15 => format!("contains({}, {})", sub(rng), sub(rng)),
        16 => {
            let function = rng.choice(&["starts_with", "ends_with"]).expect("a function");
            format!("{function}({}, {})", sub(rng), sub(rng))
        }
        17 => {
            let function = rng
                .choice(&["length", "max", "min", "reverse", "sort", "to_array", "type", "keys", "values", "to_number"])
                .expect("a function");
            format!("{function}({})", sub(rng))
        }
        18 => format!("map(&{}, {})", sub(rng), sub(rng)),
        19 => {
            let function = rng.choice(&["sort_by", "max_by", "min_by"]).expect("a function");
            format!("{function}({}, &{})", sub(rng), sub(rng))
        }
        20 => format!("not_null({}, {})", sub(rng), sub(rng)),
        21 => format!("join(',', {})", sub(rng)),
        22 => format!("{}.{}.{}", name(rng), name(rng), name(rng)),
        23 => format!("({})[].{} | [{}]", sub(rng), name(rng), rng.i64(-2..2)),
        24 => format!("{} || {} && {}", sub(rng), sub(rng), sub(rng)),
        _ => format!("({})[*].[{}, {}]", sub(rng), sub(rng), sub(rng)),
    }
}

#[test]
fn another_implementation_agrees() {
    with_seeds(1500, |seed| {
        let mut rng = Rng::with_seed(seed);
        let given = random_json(&mut rng, 3);
        let depth = rng.usize(0..4);
        let expression = random_query(&mut rng, depth);
        let ours = search(&expression, &given);
        let theirs = jmespath::compile(&expression)
            .map_err(|error| error.to_string())
            .and_then(|query| query.search(&given).map_err(|error| error.to_string()))
            .map(|found| serde_json::to_value(&*found).expect("a value is JSON"));
        let agree = match (&ours, &theirs) {
            (Ok(ours), Ok(theirs)) => equal_numerically(ours, theirs),
            (Err(_), Err(_)) => true,
            _ => false,
        };
        assert!(agree, "seed {seed}: {expression}\n  of {given}\n  ours:   {ours:?}\n  theirs: {theirs:?}");
    });
}

/// An event class; the first field is required on request.
fn class(required: bool) -> Fields {
    let fields = [
        ("title", FieldType::String),
        ("place", FieldType::String),
        ("magnitude", FieldType::Number),
        ("depth", FieldType::Integer),
        ("felt", FieldType::Boolean),
        ("at", FieldType::Timestamp),
        ("tags", FieldType::List),
        ("detail", FieldType::Map),
    ];
    let field = |(at, (name, kind)): (usize, (&str, FieldType))| Field {
        name: name.parse().expect("a name"),
        kind,
        required: required && at == 0,
        default: Value::Null,
        description: None,
    };
    Fields::new(fields.into_iter().enumerate().map(field).collect())
}

fn row(fields: &Fields, event: &Json) -> Row {
    let values = event.as_object().expect("an object").iter();
    fields.row(values.map(|(name, value)| (name, Value::from(value.clone())))).expect("an event of the class")
}

fn filter(text: &str, fields: &Fields) -> Result<CompiledFilter, Vec<Problem>> {
    compile_with(&Filter::new(Dialect::Jmespath, text), fields, &functions())
}

/// Functions of an application.
fn functions() -> UserFunctions {
    let function = |name: &str, parameters: &[&str], expression: &str| {
        let parameters = parameters.iter().map(|name| name.parse().expect("a name")).collect();
        (name.parse().expect("a name"), Function { description: None, parameters, expression: expression.to_owned() })
    };
    let functions = [
        function("urgent", &["text"], "text.contains_ci('ab') || text.startsWith('x')"),
        function("either", &["value", "one", "other"], "value == one || value == other"),
        function("at_most", &["value", "most"], "!(value > most)"),
        function("in_january", &["time"], "time.getMonth() == 0"),
        function("absent", &["value"], "value == null"),
        function("any_short", &["list"], "list.exists(item, size(item) < 2)"),
        function("maybe", &["value"], "value == 1 ? null : value == 2"),
        function("doubled", &["value"], "value + value"),
        function("made", &["value"], "[value, [duration('90s'), b'a', 1u, optional.of(2)], {'k': double('NaN')}]"),
        function("seven", &[], "7"),
    ];
    compile_functions(&functions.into_iter().collect()).expect("functions")
}

/// Whether a filter matches an event, by its evaluator; its condition must agree.
fn matches(text: &str, event: &Json) -> bool {
    let fields = class(true);
    let filter = filter(text, &fields).unwrap_or_else(|problems| panic!("{text}: {problems:?}"));
    let mut event = event.clone();
    event.as_object_mut().expect("an object").entry("title").or_insert(json!("a title"));
    let row = row(&fields, &event);
    let holds = filter.holds(&row).expect("no more steps than allowed");
    let asked = filter.condition().holds(&row);
    assert!(asked || !holds, "{text} of {event}: {:?} is not necessary", filter.condition());
    assert!(holds || !asked || !filter.is_exact(), "{text} of {event}: {:?} is not exact", filter.condition());
    holds
}

#[test]
fn notifybc_filters_keep_their_meaning() {
    let load = "contains_ci(title,'vancouver') || contains_ci(title,'victoria')";
    assert!(matches(load, &json!({"title": "Power out in VICTORIA"})));
    assert!(matches(load, &json!({"title": "North Vancouver"})));
    assert!(!matches(load, &json!({"title": "Kelowna"})));
    // The examples of its documentation, of {"province": "BC", "city": "Victoria"}.
    let event = json!({"title": "Victoria", "place": "BC"});
    for text in [
        "place == 'BC'",
        "contains(place,'B')",
        "contains_ci(place,'b')",
        "(contains(place,'BC') || contains_ci(place,'b')) && title == 'Victoria' ",
    ] {
        assert!(matches(text, &event), "{text}");
    }
    // An error is no match, also below `!`.
    assert!(!matches("contains_ci(place, 'b')", &json!({})));
    assert!(!matches("!contains_ci(place, 'b')", &json!({})));
    assert!(!matches("contains_ci(place, 'b') || title", &json!({})));
    assert!(matches("title || contains_ci(place, 'b')", &json!({})));
    assert!(matches("!(place && contains_ci(place, 'b'))", &json!({})));
    // `contains_ci` is false if either text is empty.
    assert!(!matches("contains_ci(title, '')", &json!({})));
    assert!(matches("!contains_ci(title, '')", &json!({})));
    // Characters, not bytes.
    assert!(matches("contains_ci(title, 'MÜNCHEN')", &json!({"title": "Bahnhof München"})));
    // A text contains its own parts, also where lower case would depend on what follows: final sigma.
    assert!(matches("contains_ci(title, 'ΟΔΟΣ')", &json!({"title": "ΟΔΟΣΑ"})));
    assert!(matches("contains_ci(title, 'Σ')", &json!({"title": "ΑΣ"})));
    assert!(matches("contains_ci(title, 'οδοσ')", &json!({"title": "ΟΔΟΣ"})));
    // Text between backticks, as in older filters.
    assert!(matches("place == `BC`", &event));
}

#[test]
fn an_event_without_data_matches_every_filter() {
    let holds = |required: bool, text: &str, event: Json| {
        let fields = class(false);
        let row = row(&fields, &event);
        let filter = filter(text, &class(required)).expect("a filter");
        assert_eq!(filter.matches_empty().is_some(), !required);
        filter.holds(&row).expect("few steps")
    };
    for text in ["place == 'BC'", "contains_ci(title, 'x')", "`false`", "tags[?@ == 'x']"] {
        assert!(holds(false, text, json!({})), "{text}");
        assert!(!holds(false, text, json!({"magnitude": 1})), "{text}");
        // If a field is required, there is no event without data.
        assert!(!holds(true, text, json!({})), "{text}");
    }
}

#[test]
fn missing_null_types_and_large_integers() {
    let event = json!({
        "magnitude": 5.5, "depth": 9_007_199_254_740_993i64, "felt": false, "at": "2026-11-21T09:30:00Z",
        "tags": ["sea", null, 7], "detail": {"city": "Wien", "empty": "", "none": null, "count": 0, "deep": {"x": 1}}
    });
    for (text, expected) in [
        // Missing is null, and null equals only null.
        ("place == null", true),
        ("detail.nothing == `null`", true),
        ("detail.none == null", true),
        ("detail.city.more == `null`", true),
        ("place != 'x'", true),
        ("place == ''", false),
        ("!place", true),
        ("detail.none < `1` || magnitude < `6`", true),
        // Truth of values.
        ("felt", false),
        ("detail.empty", false),
        ("detail.count", true),
        ("magnitude && tags && detail && at", true),
        // Ordering is for numbers; for other values the result is null, which is not true.
        ("detail.city > `1`", false),
        ("!(detail.city > `1`)", true),
        ("detail.count >= `0`", true),
        ("magnitude >= `5.5` && magnitude < `5.6`", true),
        // Integers keep all digits.
        ("depth == `9007199254740993`", true),
        ("depth == `9007199254740992`", false),
        ("depth > `9007199254740992`", true),
        ("depth == `9007199254740992.0`", false),
        ("magnitude == `5.50`", true),
        // Values of different types are unequal.
        ("detail.count == '0'", false),
        ("detail.count == `false`", false),
        ("detail.count != '0'", true),
        // Lists.
        ("contains(tags, 'sea')", true),
        ("contains(tags, `7.0`)", true),
        ("contains(tags, `null`)", true),
        ("contains(tags, 'se')", false),
        ("tags[?@ == 'sea']", true),
        ("tags[?@ == 'lake']", false),
        ("tags[?@ > `6`]", true),
        ("tags[0] == 'sea'", true),
        ("length(tags) == `3`", true),
        ("contains(['Wien', 'Graz'], detail.city)", true),
        ("contains(`[\"Wien\", null]`, detail.nothing)", true),
        ("contains(['Graz'], detail.city)", false),
        // A timestamp is text.
        ("at == '2026-11-21T09:30:00Z'", true),
        ("at == '2026-11-21T10:30:00+01:00'", false),
        ("starts_with(at, '2026-11')", true),
        ("type(at) == 'string'", true),
        // An error anywhere is no match.
        ("detail.city && length(detail.count) > `0`", false),
        ("felt && length(detail.count) > `0`", false),
        ("!(felt && length(detail.count) > `0`)", true),
        ("tags[?starts_with(@, 's')]", false),
        // `@` holds the fields that have a value.
        ("contains(keys(@), 'felt')", true),
        ("contains(keys(@), 'place')", false),
        ("@.detail.city == 'Wien'", true),
        ("detail | city == 'Wien'", true),
        ("to_string(magnitude) == '5.5' && to_string(detail.count) == '0'", true),
    ] {
        // `null` by itself is a field name, so the shorthand above is spelled out.
        let text = text.replace("== null", "== `null`");
        assert_eq!(matches(&text, &event), expected, "{text}");
    }
}

#[test]
fn expressions_that_cannot_work_are_rejected_with_a_position() {
    let check = |text: &str, expected: &str| {
        let problems = filter(text, &class(true)).expect_err(text);
        assert_eq!(problems[0].to_string(), expected, "{text}");
    };
    check("contain_ci(title, 'x')", "1:1: there is no function `contain_ci`; did you mean `contains_ci`?");
    check("title ==\n  'x' && plce == 'y'", "2:10: the event class has no field `plce`; did you mean `place`?");
    check("title = 'x'", "1:7: `=` is not part of the language; write `==` to compare");
    check("a === 'b'", "1:5: `=` is not part of the language; write `==` to compare");
    check("title == 'x", "1:10: the text has no end; close it with `'`");
    check("title == `[1`", "1:10: the literal is not JSON: EOF while parsing a list");
    check("magnitude > 5", "1:13: a number stands between backticks; write `` `5` ``");
    check(
        "magnitude > '5'",
        "1:13: `>` orders numbers only, and `'5'` is text; write the number between backticks: `` `5` ``",
    );
    check(
        "magnitude == '5'",
        "1:1: `magnitude` is a number and `'5'` is text; they are never equal; write the number between backticks: `` `5` ``",
    );
    check("at > '2026'", "1:1: `>` orders numbers only, and `at` is text; a filter in CEL can order text and times");
    check(
        "contains_ci(magnitude, 'x')",
        "1:13: `contains_ci` does not take `magnitude`, a number; it is `contains_ci(text, text)`",
    );
    check("contains_ci(title)", "1:1: `contains_ci` does not take 1 arguments; write `contains_ci(text, text)`");
    check("sort_by(tags, x)", "1:15: an expression that begins with `&` should stand here; write `&name`");
    check("title == 'x'] | [?`true`", "1:13: `]` is not expected here; this bracket was never opened");
    check("(title", "1:7: `)` should stand here to close the parenthesis, not the end");
    check("", "1:1: the end is not expected here; the expression is not complete");
    check(
        "!detail.closed",
        "1:8: `!` takes `detail` alone here, so `.` would be asked of true or false; write `!(detail....)`",
    );
    check("tags[0:1:0]", "1:5: the step of a slice cannot be zero");
    check("title + 'x'", "1:7: `+` is not part of the language; there is no arithmetic; a filter in CEL has it");
}

#[test]
fn functions_of_the_application_are_called() {
    let event = json!({
        "title": "xy", "magnitude": 2.5, "depth": 4, "at": "2026-01-31T23:30:00Z", "tags": ["abc", "d"],
        "detail": {"n": 1, "at": "2026-01-31T23:30:00Z"}
    });
    for (text, expected) in [
        ("urgent(title)", true),
        ("urgent('CAB')", true),
        ("!urgent('c')", true),
        ("either(magnitude, `2.5`, `3`)", true),
        ("either(place, 'a', 'b')", false),
        ("!either(place, 'a', 'b')", true),
        ("at_most(depth, `4`) && !at_most(depth, `3.5`)", true),
        // A field is a timestamp in CEL, text below a field is not.
        ("in_january(at)", true),
        ("in_january(detail.at)", false),
        ("!in_january(detail.at)", false),
        // A missing value is null, and null is an error where CEL defines it.
        ("absent(place) && absent(detail.nothing)", true),
        ("urgent(place)", false),
        ("!urgent(place)", false),
        ("title == 'xy' || urgent(place)", true),
        ("tags[?urgent(@)]", true),
        ("any_short(tags)", true),
        // The result is an ordinary value.
        ("doubled(depth) == `8` && doubled(title) == 'xyxy'", true),
        ("doubled('')", false),
        ("sort_by(tags, &doubled(@))[0] == 'abc'", true),
        ("seven() > `6`", true),
        ("to_string(made('x')) == '[\"x\",[90,\"YQ==\",1,2],{\"k\":null}]'", true),
        ("maybe(detail.n)", false),
        ("!maybe(detail.n)", true),
    ] {
        assert_eq!(matches(text, &event), expected, "{text}");
    }
    let check = |text: &str, expected: &str| {
        let problems = filter(text, &class(true)).expect_err(text);
        assert_eq!(problems[0].to_string(), expected, "{text}");
    };
    check("urgnt(title)", "1:1: there is no function `urgnt`; did you mean `urgent`?");
    check("title && urgent()", "1:10: `urgent` does not take 0 arguments; write `urgent(text)`");
    // The index tests the function's condition.
    let exact = |text: &str| filter(text, &class(true)).expect("a filter").is_exact();
    assert!(exact("urgent(title) && either(place, 'a', `null`) && at_most(magnitude, `3`)"));
    assert!(!exact("doubled(title)"));
}

#[test]
fn worst_case_filters_are_rejected_or_stopped() {
    let fields = class(true);
    for (text, expected) in [
        ("[".repeat(100_000), "the expression has 100000 bytes, at most 16384 are allowed"),
        ("(".repeat(16_000), "nested more than 64 deep"),
        ("!".repeat(16_000), "nested more than 64 deep"),
        ("[?".repeat(8_000), "nested more than 64 deep"),
        (format!("title{}", ".a".repeat(8_000)), "too complex"),
        (format!("tags{}", "[0]".repeat(5_000)), "too complex"),
        (format!("tags{}", "[*]".repeat(5_000)), "nested more than 64 deep"),
        (format!("title{}", " | @".repeat(4_000)), "too complex"),
        (format!("`{}`", "[".repeat(10_000)), "is not JSON"),
    ] {
        let problems = filter(&text, &fields).expect_err("a bomb");
        assert!(problems[0].to_string().contains(expected), "{:?}", problems[0]);
    }
    let items: Vec<Json> = (0..1000).map(|item| json!(item)).collect();
    let event = row(&fields, &json!({"title": "a".repeat(60_000), "tags": items, "detail": {"a": {"a": {"a": 1}}}}));
    for text in [
        // Doubles the value at every step.
        format!("tags{} | @ == @", " | [@, @]".repeat(60)),
        format!("to_string(tags{}) == 'x'", " | [@, @]".repeat(60)),
        format!("tags{} == `1`", " | [@, @][]".repeat(30)),
        vec!["length(map(&to_string(@), tags)) > `1`"; 100].join(" && "),
        format!("contains_ci(title, '{}')", "b".repeat(10_000)),
    ] {
        let filter = filter(&text, &fields).expect("a filter within bounds");
        assert_eq!(filter.holds(&event), Err(EvalError::Cost), "{}", &text[..40]);
    }
    // A condition is not much larger than its filter, however many values its parts may miss.
    let many: Vec<String> = (0..400).map(|at| format!("length(detail.k{at}) > `1`")).collect();
    let many = filter(&many.join(" || "), &fields).expect("a filter");
    assert!(!many.is_exact() && many.canonical().len() < 64 * 1024);
    assert!(format!("{:?}", many.condition()).len() < 256 * 1024);
    // A filter within the limits is accepted.
    let event = row(&fields, &json!({"title": "a".repeat(100), "detail": {"a": {"a": {"a": 1}}}}));
    let long = vec!["contains_ci(title, 'x')"; 600].join(" || ");
    assert_eq!(filter(&long, &fields).expect("a filter").holds(&event), Ok(false));
    let high = format!("detail{}", ".a".repeat(120));
    assert_eq!(filter(&high, &fields).expect("a filter").holds(&event), Ok(false));
    let deep = format!("{}title{}", "(".repeat(63), ")".repeat(63));
    assert_eq!(filter(&deep, &fields).expect("a filter").holds(&event), Ok(true));
}

fn random_event(rng: &mut Rng) -> Json {
    let mut event = serde_json::Map::new();
    let text = |rng: &mut Rng| json!(*rng.choice(&["", "a", "ab", "AB", "b", "xaby"]).expect("a text"));
    let any = |rng: &mut Rng| match rng.usize(0..7) {
        0 => Json::Null,
        1 => json!(rng.bool()),
        2 => json!(rng.i64(-1..3)),
        3 => json!([]),
        4 => json!({}),
        5 => json!(["a", 1]),
        _ => text(rng),
    };
    for name in ["title", "place"] {
        if rng.usize(0..4) > 0 {
            event.insert(name.to_owned(), text(rng));
        }
    }
    for name in ["magnitude", "depth"] {
        if rng.usize(0..3) > 0 {
            event.insert(name.to_owned(), json!(rng.i64(-1..4)));
        }
    }
    if rng.bool() {
        event.insert("felt".to_owned(), json!(rng.bool()));
    }
    if rng.bool() {
        event.insert("at".to_owned(), json!(format!("2026-01-0{}T00:00:00Z", rng.u8(1..3))));
    }
    if rng.usize(0..3) > 0 {
        event.insert("tags".to_owned(), (0..rng.usize(0..4)).map(|_| any(rng)).collect());
    }
    if rng.usize(0..3) > 0 {
        let keys = ["x", "y"].into_iter().filter(|_| rng.bool()).collect::<Vec<_>>();
        event.insert("detail".to_owned(), keys.into_iter().map(|key| (key.to_owned(), any(rng))).collect());
    }
    Json::Object(event)
}

fn random_filter(rng: &mut Rng, depth: usize) -> String {
    let one = |rng: &mut Rng, of: &[&str]| (*rng.choice(of).expect("one of some")).to_owned();
    if depth > 0 && rng.usize(0..4) > 0 {
        let sub = |rng: &mut Rng| random_filter(rng, depth - 1);
        return match rng.usize(0..3) {
            0 => format!("!({})", sub(rng)),
            more => {
                let parts: Vec<String> = (0..rng.usize(2..4)).map(|_| sub(rng)).collect();
                format!("({})", parts.join(if more == 1 { " && " } else { " || " }))
            }
        };
    }
    let text_fields = ["title", "place"];
    let dynamic = ["detail.x", "detail.y", "detail.x.z", "tags.x"];
    let texts = ["'a'", "'ab'", "''", "'B'"];
    match rng.usize(0..22) {
        19 | 20 => {
            let place = one(rng, &["title", "magnitude", "at", "tags", "felt", "detail.x", "'ab'", "`1`", "`null`"]);
            match rng.usize(0..7) {
                0 => format!("urgent({place})"),
                1 => format!("either({place}, 'a', {})", one(rng, &["'ab'", "`1`", "title", "`null`"])),
                2 => format!("at_most({place}, {})", one(rng, &["`1`", "depth", "'a'"])),
                3 => format!("in_january({place})"),
                4 => format!("absent({place})"),
                5 => format!("maybe({place})"),
                _ => format!("any_short({place}) || doubled({place}) == `2`"),
            }
        }
        0 => one(rng, &["title", "magnitude", "felt", "at", "tags", "detail", "detail.x", "`0`", "''", "@"]),
        1 => format!("{} {} {}", one(rng, &text_fields), one(rng, &["==", "!="]), one(rng, &texts)),
        2 | 3 => {
            let comparison = one(rng, &["==", "!=", "<", "<=", ">", ">="]);
            let number = one(rng, &["`0`", "`1`", "`1.0`", "`2.5`"]);
            let place = one(rng, &["magnitude", "depth", "detail.x", "detail.y"]);
            if rng.bool() { format!("{place} {comparison} {number}") } else { format!("{number} {comparison} {place}") }
        }
        4 => {
            let literal = one(rng, &["'a'", "''", "`1`", "`null`", "`true`", "`false`", "`[]`", "`{}`"]);
            format!("{} {} {literal}", one(rng, &dynamic), one(rng, &["==", "!="]))
        }
        5 => format!("{} {} `null`", one(rng, &["title", "at", "tags", "felt", "detail"]), one(rng, &["==", "!="])),
        6 => format!("felt {} {}", one(rng, &["==", "!="]), one(rng, &["`true`", "`false`"])),
        7 => format!("at {} '{}'", one(rng, &["==", "!="]), one(rng, &["2026-01-01T00:00:00Z", "2026-01-01", "x"])),
        8 | 9 => {
            let function = one(rng, &["contains", "contains_ci", "starts_with", "ends_with"]);
            let place = one(rng, &["title", "place", "at", "detail.x"]);
            format!("{function}({place}, {})", one(rng, &texts))
        }
        10 | 11 => {
            let literal = one(rng, &["'a'", "''", "`1`", "`null`", "`true`", "`[]`", "`{}`"]);
            format!("contains({}, {literal})", one(rng, &["tags", "detail.x", "detail.y", "title"]))
        }
        12 => {
            let list = one(rng, &["['a', 'b']", "`[1, 2]`", "`[\"a\", null]`", "`[]`", "`[[], 1]`"]);
            format!("contains({list}, {})", one(rng, &["title", "magnitude", "detail.x", "at", "detail"]))
        }
        13 => {
            let asked = one(
                rng,
                &[
                    "@ == 'a'",
                    "@ == `1`",
                    "@ != 'a'",
                    "@ > `0`",
                    "`1` >= @",
                    "@ == 'a' || @ == `1`",
                    "@",
                    "contains_ci(@, 'A')",
                    "starts_with(@, 'a')",
                    "@ == 'a' && @ == `1`",
                    "@ == `null`",
                ],
            );
            format!("{}[?{asked}]", one(rng, &["tags", "detail.x"]))
        }
        14 => format!("length({}) {} `1`", one(rng, &["title", "tags", "detail.x"]), one(rng, &["==", ">", "<"])),
        15 => format!("contains({}, {})", one(rng, &text_fields), one(rng, &text_fields)),
        16 => format!("title {} place", one(rng, &["==", "!="])),
        17 => one(
            rng,
            &[
                "tags[0] == 'a'",
                "not_null(title, place)",
                "type(detail.x) == 'string'",
                "abs(magnitude) > `1`",
                "sum(tags) > `0`",
                "max(tags)",
                "keys(detail)",
                "tags[*].x",
                "title | length(@)",
                "join(',', tags)",
                "[title, place]",
                "{a: title}",
                "length(not_null(title, 'ab')) == `2`",
                "contains('xab', title)",
            ],
        ),
        _ => format!("starts_with({}, {})", one(rng, &["title", "detail.x"]), one(rng, &text_fields)),
    }
}

#[test]
fn conditions_are_necessary_and_exact_ones_are_sufficient() {
    let exact = std::cell::Cell::new(0u32);
    let all = std::cell::Cell::new(0u32);
    with_seeds(1500, |seed| {
        let mut rng = Rng::with_seed(seed);
        let fields = class(rng.bool());
        let depth = rng.usize(0..4);
        let text = random_filter(&mut rng, depth);
        let filter = match filter(&text, &fields) {
            Ok(filter) => filter,
            Err(problems) => panic!("seed {seed}: {text}: {problems:?}"),
        };
        all.set(all.get() + 1);
        exact.set(exact.get() + u32::from(filter.is_exact()));
        for _ in 0..12 {
            let mut event = random_event(&mut rng);
            if fields[0].required {
                event.as_object_mut().expect("an object").entry("title").or_insert(json!("ab"));
            }
            let row = row(&fields, &event);
            let holds = filter.holds(&row).expect("few steps");
            if filter.matches_empty().is_some() && row.iter().all(Value::is_null) {
                assert!(holds, "seed {seed}: {text} of an event without any value");
                continue;
            }
            let asked = filter.condition().holds(&row);
            assert!(asked || !holds, "seed {seed}: {text}\n  of {event}: {:?} is not necessary", filter.condition());
            let exact = filter.is_exact();
            assert!(
                holds || !asked || !exact,
                "seed {seed}: {text}\n  of {event}: {:?} is not exact",
                filter.condition()
            );
        }
    });
    if all.get() > 1000 {
        assert!(exact.get() * 3 > all.get(), "{} of {} are exact", exact.get(), all.get());
    }
}

#[test]
fn the_index_agrees_with_the_evaluator() {
    with_seeds(60, |seed| {
        let mut rng = Rng::with_seed(seed);
        let fields = class(rng.bool());
        let filters: Vec<(String, CompiledFilter)> = (0..40)
            .map(|_| {
                let depth = rng.usize(0..3);
                let text = random_filter(&mut rng, depth);
                let filter =
                    filter(&text, &fields).unwrap_or_else(|problems| panic!("seed {seed}: {text}: {problems:?}"));
                (text, filter)
            })
            .collect();
        let mut index = FilterIndex::new();
        for (number, (_, filter)) in filters.iter().enumerate() {
            index.insert(number as u32, filter);
        }
        // Some are removed again.
        let gone: Vec<bool> = filters.iter().map(|_| rng.u8(0..4) == 0).collect();
        for (number, (_, filter)) in filters.iter().enumerate().filter(|(number, _)| gone[*number]) {
            index.remove(number as u32, filter);
        }
        let mut scratch = FilterScratch::new();
        for round in 0..8 {
            let mut event = if round == 0 { json!({}) } else { random_event(&mut rng) };
            if fields[0].required {
                event.as_object_mut().expect("an object").entry("title").or_insert(json!("ab"));
            }
            let row = row(&fields, &event);
            let mut found = Vec::new();
            index.matching(&row, &mut scratch, &mut found);
            found.sort_unstable();
            let holds = |number: &u32| !gone[*number as usize] && filters[*number as usize].1.holds(&row) == Ok(true);
            let expected: Vec<u32> = (0..filters.len() as u32).filter(holds).collect();
            let text = |numbers: &[u32]| numbers.iter().map(|at| filters[*at as usize].0.clone()).collect::<Vec<_>>();
            assert_eq!(text(&found), text(&expected), "seed {seed}: {event}");
        }
    });
}

#[test]
fn equivalent_filters_are_equal() {
    let canonical = |dialect: Dialect, text: &str| {
        compile(&Filter::new(dialect, text), &class(true)).expect("a filter").canonical().to_vec()
    };
    let jmespath = |text: &str| canonical(Dialect::Jmespath, text);
    let load = jmespath("contains_ci(title,'vancouver') || contains_ci(title,'victoria')");
    assert_eq!(load, jmespath("contains_ci(title, 'VICTORIA')||contains_ci( \"title\" , `\"Vancouver\"`)"));
    assert_eq!(
        load,
        canonical(Dialect::Cel, "contains_ci(event.title, 'victoria') || event.title.contains_ci('vancouver')")
    );
    assert_eq!(
        jmespath("magnitude >= `5` && depth < `10`"),
        canonical(Dialect::Cel, "event.depth < 10 && event.magnitude >= 5.0")
    );
    assert_eq!(jmespath("length(title) > `3`"), jmespath("length( title )>`3`"));
    assert_ne!(jmespath("length(title) > `3`"), jmespath("length(title) > `4`"));
    // An earlier operand may prevent an error of a later one, so the order counts.
    assert_ne!(
        jmespath("length(tags) > `3` || length(title) > `3`"),
        jmespath("length(title) > `3` || length(tags) > `3`")
    );
}
