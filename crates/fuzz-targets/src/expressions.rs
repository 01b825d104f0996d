//! Predicates: CEL, JMESPath, event patterns, filters of NotifyBC. They are compiled for events of a class and evaluated on one.

use tocsin_matching::filter::{
    compile,
    jmespath::{NotifybcFilter, Query},
};
use tocsin_model::{
    field::{FieldType, Fields},
    filter::{Dialect, Filter},
    value::Value,
};

fn fields() -> Fields {
    crate::fields(&[
        ("text", FieldType::String),
        ("number", FieldType::Number),
        ("count", FieldType::Integer),
        ("flag", FieldType::Boolean),
        ("when", FieldType::Timestamp),
        ("list", FieldType::List),
        ("map", FieldType::Map),
        ("data", FieldType::Map),
    ])
}

fn event(fields: &Fields) -> Vec<Value> {
    let json = br#"{"text": "Stra\u00dfe", "number": 1.5, "count": 7, "flag": true, "when": "2026-11-26T10:00:00Z",
        "list": [1, "a", null, {"b": [2]}], "map": {"a": {"b": "c"}, "n": -3},
        "data": {"title": "Stra\u00dfe", "n": 7, "s": "7", "tags": ["a", 1, null, {"b": [2]}], "o": {"x": null}}}"#;
    fields.row_from_json(json).expect("an event of the class").to_vec()
}

/// Compiles and evaluates. Compiling gives the same normal form each time.
fn check(dialect: Dialect, input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let fields = fields();
    let filter = Filter::new(dialect, text);
    let Ok(compiled) = compile(&filter, &fields) else { return };
    let event = event(&fields);
    let holds = compiled.holds(&event).ok();
    // The condition that the index answers is never narrower than the filter.
    assert!(holds != Some(true) || compiled.condition().holds(&event), "the index would miss {text:?}");
    if compiled.is_exact() {
        assert!(
            holds.is_none() || holds == Some(compiled.condition().holds(&event)),
            "the index would answer {text:?} otherwise"
        );
    }
    let again = compile(&filter, &fields).expect("it was compiled before");
    assert_eq!(again.canonical(), compiled.canonical());
}

/// A filter in CEL.
pub(crate) fn cel(input: &[u8]) {
    check(Dialect::Cel, input);
}

/// A filter in JMESPath, and a query that gives a value.
pub(crate) fn jmespath(input: &[u8]) {
    check(Dialect::Jmespath, input);
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(query) = Query::compile(text) {
        let value: Value = serde_json::from_str(r#"{"a": [1, {"b": "c"}, [[]]], "d": null, "e": -0.5}"#).expect("JSON");
        let _ = query.search(&value);
    }
}

/// A filter of NotifyBC, for a class and for a data object alone.
pub(crate) fn notifybc(input: &[u8]) {
    check(Dialect::Notifybc, input);
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(filter) = NotifybcFilter::compile(text) {
        let fields = fields();
        let event = event(&fields);
        let data = &event[fields.iter().position(|field| field.name.as_str() == "data").expect("a field")];
        let compiled = compile(&Filter::new(Dialect::Notifybc, text), &fields).expect("its syntax is valid");
        assert_eq!(filter.matches(&serde_json::Value::from(data.clone())), compiled.holds(&event) == Ok(true));
    }
}

/// An event pattern.
pub(crate) fn event_pattern(input: &[u8]) {
    check(Dialect::EventPattern, input);
}
