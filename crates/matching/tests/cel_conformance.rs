//! The conformance cases of the Common Expression Language, through our own reader, checker and interpreter.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::Value as Json;
use tocsin_matching::{
    check::{Scope, compile},
    datum::{Datum, List, Map},
    evaluate::evaluate_over,
};

/// What we decided differently, case by case. Listed so that nothing else can hide among the failures.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("basic/variables/unbound_is_runtime_error", UNKNOWN),
    ("parse/receiver_function_names/as", UNKNOWN),
    ("parse/receiver_function_names/break", UNKNOWN),
    ("parse/receiver_function_names/function", UNKNOWN),
    ("parse/receiver_function_names/if", UNKNOWN),
    ("parse/receiver_function_names/let", UNKNOWN),
    ("parse/receiver_function_names/package", UNKNOWN),
    ("parse/receiver_function_names/while", UNKNOWN),
    ("comparisons/gt_literal/not_gt_dyn_big_double_int", EXACT),
    ("comparisons/lte_literal/lte_dyn_big_double_int", EXACT),
    ("timestamps/timestamp_conversions/toString_timestamp_nanos", MICROSECONDS),
    ("timestamps/timestamp_arithmetic/add_time_to_duration_nanos_positive", MICROSECONDS),
    ("timestamps/timestamp_range/add_duration_nanos_over", MICROSECONDS),
    ("proto2/has/required", "there are no messages: events are records of their class"),
    ("type_deductions/type_parameters/multiple_parameters_generality", FUNCTIONS),
    ("type_deductions/type_parameters/multiple_parameters_parameterized_ovl_2", FUNCTIONS),
];

const UNKNOWN: &str = "an unknown name is refused on entry, also where evaluation would never ask for it";
const EXACT: &str = "an integer and a number compare by exact value, not after rounding the integer";
const MICROSECONDS: &str = "times are kept to the microsecond";
const FUNCTIONS: &str = "a scope cannot declare functions";

#[test]
fn at_least_98_of_100_cases_pass_and_the_others_are_known() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/cel/conformance.json");
    let text = std::fs::read_to_string(&path).expect("the cases are in the repository");
    let cases: Vec<Json> = serde_json::from_str(&text).expect("a list of cases");
    assert_eq!(cases.len(), 807);
    let mut exceptions: BTreeMap<&str, &str> = EXCEPTIONS.iter().copied().collect();
    assert!(exceptions.len() * 100 <= cases.len() * 2, "at most two of a hundred are exceptions");
    let mut wrong = Vec::new();
    for case in &cases {
        let part = |name: &str| case[name].as_str().expect("a part of the name");
        let name = format!("{}/{}/{}", part("file"), part("section"), part("name"));
        match (run(case), exceptions.remove(name.as_str())) {
            (Ok(()), None) | (Err(_), Some(_)) => {}
            (Ok(()), Some(_)) => wrong.push(format!("{name} is listed as an exception, but passes")),
            (Err(found), None) => wrong.push(format!("{name}: {}\n    {found}", part("expr"))),
        }
    }
    wrong.extend(exceptions.keys().map(|name| format!("{name} is listed as an exception, but is no case")));
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Whether a case gives what it must, or what it gives instead.
fn run(case: &Json) -> Result<(), String> {
    let source = case["expr"].as_str().expect("an expression");
    let bindings: Vec<(Arc<str>, Datum<'static>)> = match &case["bindings"] {
        Json::Object(bindings) => {
            bindings.iter().map(|(name, bound)| (name.as_str().into(), datum(&bound["value"]))).collect()
        }
        _ => Vec::new(),
    };
    let (variables, data) = bindings.into_iter().unzip();
    let must_fail = !case["evalError"].is_null();
    let expression = match compile(source, &Scope { variables, ..Scope::default() }) {
        Ok(expression) => expression,
        // What is refused on entry is never evaluated; that is an error too, only sooner.
        Err(_) if must_fail => return Ok(()),
        Err(problems) => return Err(problems[0].to_string()),
    };
    if case["checkOnly"] == true {
        return Ok(());
    }
    let expected = [&case["value"], &case["typedResult"]["result"]].into_iter().find(|value| !value.is_null());
    let expected = expected.map_or(Datum::Boolean(true), datum);
    match evaluate_over(&expression, data) {
        Ok(found) if !must_fail && same(&found, &expected) => Ok(()),
        Ok(found) => Err(format!("gives {found:?}")),
        Err(_) if must_fail => Ok(()),
        Err(trouble) => Err(format!("gives an error: {trouble}")),
    }
}

/// Whether two values are the same and of the same type. Unlike `==`, 1 is not 1.0, and NaN is NaN. The reader of the
/// cases may miss the nearest double by one.
fn same(left: &Datum<'_>, right: &Datum<'_>) -> bool {
    match (left, right) {
        (Datum::Number(left), Datum::Number(right)) => {
            left == right || (left.is_nan() && right.is_nan()) || (left - right).abs() <= f64::EPSILON * left.abs()
        }
        (Datum::List(left), Datum::List(right)) => {
            left.len() == right.len() && left.iter().zip(right.iter()).all(|(left, right)| same(&left, &right))
        }
        (Datum::Map(left), Datum::Map(right)) => {
            left.len() == right.len()
                && left.iter().all(|(key, value)| right.find(&key).is_some_and(|other| same(&value, &other)))
        }
        _ => left.type_name() == right.type_name() && tocsin_matching::datum::equal(left, right),
    }
}

/// Reads a value of the cases.
fn datum(json: &Json) -> Datum<'static> {
    let (kind, value) = json.as_object().and_then(|object| object.iter().next()).expect("one kind of value");
    let text = || value.as_str().expect("text");
    let items = |name: &str| value[name].as_array().map(Vec::as_slice).unwrap_or_default();
    match kind.as_str() {
        "nullValue" => Datum::Null,
        "boolValue" => Datum::Boolean(value.as_bool().expect("a boolean")),
        "int64Value" => Datum::Integer(text().parse().expect("an integer")),
        "uint64Value" => Datum::Unsigned(text().parse().expect("an integer without a sign")),
        "doubleValue" => {
            let number = value.as_f64().or_else(|| text().parse().ok());
            Datum::Number(number.expect("a number, or the name of one"))
        }
        "stringValue" => Datum::text(text()),
        "bytesValue" => Datum::bytes(BASE64_STANDARD.decode(text()).expect("base64")),
        "listValue" => Datum::List(List::Made(items("values").iter().map(datum).collect())),
        "mapValue" => {
            let entry = |entry: &Json| (datum(&entry["key"]), datum(&entry["value"]));
            Datum::Map(Map::Made(items("entries").iter().map(entry).collect()))
        }
        other => panic!("{other} is no kind of value"),
    }
}
