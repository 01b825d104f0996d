//! The conformance cases of the Common Expression Language, run through our parser, checker and interpreter.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::Value as Json;
use tocsin_matching::{
    check::{Scope, compile},
    eval_value::{EvalValue, List, Map},
    evaluate::evaluate_over,
};

/// Cases where we deviate on purpose, listed so that no other failure is hidden.
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

/// Runs a case; the error is the deviating result.
fn run(case: &Json) -> Result<(), String> {
    let source = case["expr"].as_str().expect("an expression");
    let bindings: Vec<(Arc<str>, EvalValue<'static>)> = match &case["bindings"] {
        Json::Object(bindings) => {
            bindings.iter().map(|(name, bound)| (name.as_str().into(), eval_value(&bound["value"]))).collect()
        }
        _ => Vec::new(),
    };
    let (variables, data) = bindings.into_iter().unzip();
    let must_fail = !case["evalError"].is_null();
    let expression = match compile(source, &Scope { variables, ..Scope::default() }) {
        Ok(expression) => expression,
        // An expression that is rejected at compile time is never evaluated, which counts as an error.
        Err(_) if must_fail => return Ok(()),
        Err(problems) => return Err(problems[0].to_string()),
    };
    if case["checkOnly"] == true {
        return Ok(());
    }
    let expected = [&case["value"], &case["typedResult"]["result"]].into_iter().find(|value| !value.is_null());
    let expected = expected.map_or(EvalValue::Boolean(true), eval_value);
    match evaluate_over(&expression, data) {
        Ok(found) if !must_fail && same(&found, &expected) => Ok(()),
        Ok(found) => Err(format!("gives {found:?}")),
        Err(_) if must_fail => Ok(()),
        Err(error) => Err(format!("gives an error: {error}")),
    }
}

/// Whether two values are identical and of the same type. Unlike `==`, 1 is not 1.0, and NaN equals NaN. The parser of
/// the cases may be off by one in the last place of a double.
fn same(left: &EvalValue<'_>, right: &EvalValue<'_>) -> bool {
    match (left, right) {
        (EvalValue::Number(left), EvalValue::Number(right)) => {
            left == right || (left.is_nan() && right.is_nan()) || (left - right).abs() <= f64::EPSILON * left.abs()
        }
        (EvalValue::List(left), EvalValue::List(right)) => {
            left.len() == right.len() && left.iter().zip(right.iter()).all(|(left, right)| same(&left, &right))
        }
        (EvalValue::Map(left), EvalValue::Map(right)) => {
            left.len() == right.len()
                && left.iter().all(|(key, value)| right.find(&key).is_some_and(|other| same(&value, &other)))
        }
        _ => left.type_name() == right.type_name() && tocsin_matching::eval_value::equal(left, right),
    }
}

/// Reads a value of the cases.
fn eval_value(json: &Json) -> EvalValue<'static> {
    let (kind, value) = json.as_object().and_then(|object| object.iter().next()).expect("one kind of value");
    let text = || value.as_str().expect("text");
    let items = |name: &str| value[name].as_array().map(Vec::as_slice).unwrap_or_default();
    match kind.as_str() {
        "nullValue" => EvalValue::Null,
        "boolValue" => EvalValue::Boolean(value.as_bool().expect("a boolean")),
        "int64Value" => EvalValue::Integer(text().parse().expect("an integer")),
        "uint64Value" => EvalValue::Unsigned(text().parse().expect("an integer without a sign")),
        "doubleValue" => {
            let number = value.as_f64().or_else(|| text().parse().ok());
            EvalValue::Number(number.expect("a number, or the name of one"))
        }
        "stringValue" => EvalValue::text(text()),
        "bytesValue" => EvalValue::bytes(BASE64_STANDARD.decode(text()).expect("base64")),
        "listValue" => EvalValue::List(List::Owned(items("values").iter().map(eval_value).collect())),
        "mapValue" => {
            let entry = |entry: &Json| (eval_value(&entry["key"]), eval_value(&entry["value"]));
            EvalValue::Map(Map::Owned(items("entries").iter().map(entry).collect()))
        }
        other => panic!("{other} is no kind of value"),
    }
}
