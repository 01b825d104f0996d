//! The classes of the random worlds, and random values for them: null, Unicode, long texts, integers without an exact
//! double, timestamps, lists and maps of any values.

use std::{cmp::Ordering, sync::LazyLock};

use fastrand::Rng;
use serde_json::{Value as Json, json};
use tocsin_model::{
    field::{Field, FieldType, Fields, Row},
    id::Name,
    time::Timestamp,
    value::Value,
};

pub fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// A text without regard to case: each character in lower case, both lower-case forms of sigma alike.
pub fn lower(text: &str) -> String {
    text.chars().flat_map(char::to_lowercase).map(|c| if c == 'ς' { 'σ' } else { c }).collect()
}

pub fn fields(list: &[(&str, FieldType)]) -> Fields {
    let field = |(text, kind): &(&str, FieldType)| Field::new(name(text), *kind);
    Fields::new(list.iter().map(field).collect())
}

pub fn event_fields() -> &'static Fields {
    static FIELDS: LazyLock<Fields> = LazyLock::new(|| {
        use FieldType::*;
        fields(&[
            ("s", String),
            ("t", String),
            ("i", Integer),
            ("n", Number),
            ("at", Timestamp),
            ("b", Boolean),
            ("tags", List),
            ("lat", Number),
            ("lon", Number),
            ("detail", Map),
        ])
    });
    &FIELDS
}

pub fn subscription_fields() -> &'static Fields {
    static FIELDS: LazyLock<Fields> = LazyLock::new(|| {
        use FieldType::*;
        fields(&[
            ("s", String),
            ("t", String),
            ("i", Integer),
            ("j", Integer),
            ("n", Number),
            ("m", Number),
            ("at", Timestamp),
            ("until", Timestamp),
            ("b", Boolean),
            ("tags", List),
            ("lat", Number),
            ("lon", Number),
            ("radius", Number),
        ])
    });
    &FIELDS
}

pub fn notification_fields() -> Fields {
    use FieldType::*;
    fields(&[("s", String), ("gap", Number), ("their", Integer), ("region", String)])
}

pub fn one_of<T: Clone>(random: &mut Rng, choices: &[T]) -> T {
    choices[random.usize(0..choices.len())].clone()
}

/// Longer than inline texts of the index, and than the longest indexed prefix.
const LONG: &str = "abcdefghijklmnopqrstuvwxyz-abcdefghijklmnopqrstuvwxyz-abcdefghijklmnopqrstuvwxyz-ÄÖÜ";

const TEXTS: [&str; 22] = [
    "", "a", "b", "A", "ab", "abc", "abcabc", "ba", "é", "É", "éa", "straße", "ΑΣ", "Σ", "ΑΣΑ", "ας", "İ", "10.0.0.1",
    "10.1.2.3", "::1", "a*b", LONG,
];

/// Mostly short and few, so that texts are equal.
pub fn text(random: &mut Rng) -> &'static str {
    if random.u8(0..4) > 0 { one_of(random, &TEXTS[..6]) } else { one_of(random, &TEXTS) }
}

const INTEGERS: [i64; 12] = [
    9_007_199_254_740_991,
    9_007_199_254_740_992,
    9_007_199_254_740_993,
    -9_007_199_254_740_992,
    -9_007_199_254_740_993,
    i64::MAX,
    i64::MAX - 1,
    i64::MIN,
    i64::MIN + 1,
    4_611_686_018_427_387_905,
    7,
    -7,
];
const NUMBERS: [f64; 10] = [
    -0.0,
    9_007_199_254_740_992.0,
    -9_007_199_254_740_994.0,
    9_223_372_036_854_775_808.0,
    -9_223_372_036_854_775_808.0,
    1e300,
    -1e300,
    -0.25,
    7.0,
    5e-324,
];

pub fn integer(random: &mut Rng) -> Value {
    Value::Integer(if random.u8(0..3) > 0 { random.i64(-3..5) } else { one_of(random, &INTEGERS) })
}

pub fn number(random: &mut Rng) -> Value {
    Value::Number(if random.u8(0..3) > 0 { f64::from(random.i32(-6..9)) / 2.0 } else { one_of(random, &NUMBERS) })
}

/// An integer or a number.
pub fn any_number(random: &mut Rng) -> Value {
    if random.bool() { integer(random) } else { number(random) }
}

/// The spelling in an expression. A number always has a point or an exponent.
pub fn spelled(number: &Value) -> String {
    match number {
        Value::Integer(integer) => integer.to_string(),
        Value::Number(number) => format!("{number:?}"),
        _ => panic!("{number:?} is no number"),
    }
}

fn scalar(random: &mut Rng) -> Value {
    match random.u8(0..10) {
        0 => Value::Null,
        1 => Value::Boolean(random.bool()),
        2..=4 => any_number(random),
        _ => Value::from(text(random)),
    }
}

fn list(random: &mut Rng, item: impl Fn(&mut Rng) -> Value) -> Value {
    let count = random.usize(0..4);
    Value::List((0..count).map(|_| item(random)).collect())
}

/// Sorted keys, since the other implementation of JMESPath sorts them.
fn map(random: &mut Rng, keys: &[&str], value: impl Fn(&mut Rng, &str) -> Value) -> Value {
    let mut entries = Vec::new();
    for key in keys {
        if random.u8(0..4) > 0 {
            entries.push(((*key).into(), value(random, key)));
        }
    }
    Value::Map(entries.into())
}

fn random_value(random: &mut Rng, field: &Field) -> Value {
    if random.u8(0..10) == 0 {
        return Value::Null;
    }
    match field.kind {
        FieldType::Boolean => Value::Boolean(random.bool()),
        FieldType::Integer => integer(random),
        FieldType::Number => match field.name.as_str() {
            "lat" => Value::Number(random.f64() * 182.0 - 91.0),
            "lon" => Value::Number(random.f64() * 400.0 - 200.0),
            "radius" => Value::Number(random.f64() * 12_000.0),
            _ => number(random),
        },
        FieldType::String => Value::from(text(random)),
        FieldType::Timestamp => Value::Timestamp(Timestamp(random.i64(-3..4) * 1_000_000)),
        FieldType::List => list(random, |random| match random.u8(0..16) {
            0 => list(random, scalar),
            1 => map(random, &["x", "y"], |random, _| scalar(random)),
            _ => scalar(random),
        }),
        FieldType::Map => map(random, &["list", "x", "y"], |random, key| match (key, random.u8(0..8)) {
            ("list", 1..) => list(random, |random| match random.u8(0..8) {
                0 => scalar(random),
                _ => map(random, &["x", "y"], |random, _| scalar(random)),
            }),
            ("x", 0) => list(random, scalar),
            ("x", 1) => map(random, &["x", "z"], |random, _| scalar(random)),
            _ => scalar(random),
        }),
    }
}

pub fn random_row(random: &mut Rng, fields: &Fields) -> Row {
    // Some rows have few values, and a few have none.
    let bare = random.u8(0..20) == 0;
    let value = |field| if bare && random.u8(0..8) > 0 { Value::Null } else { random_value(random, field) };
    fields.iter().map(value).collect()
}

/// The fields with a value, as JSON.
pub fn as_json(row: &[Value]) -> Json {
    let fields = event_fields();
    let present = fields.iter().zip(row).filter(|(_, value)| !value.is_null());
    Json::Object(present.map(|(field, value)| (field.name.to_string(), Json::from(value.clone()))).collect())
}

/// Compares JSON numbers by their exact values: first the integral parts, then the fractions.
pub fn compare_exactly(left: &serde_json::Number, right: &serde_json::Number) -> Ordering {
    let parts = |number: &serde_json::Number| match number.as_i64() {
        Some(integer) => (i128::from(integer), 0.0),
        None => {
            let double = number.as_f64().expect("a double");
            // Beyond 128 bits, a double is larger than all integers, and compares by its value.
            let whole = if double.abs() < 1e38 { double.trunc() } else { 1e38_f64.copysign(double) };
            (whole as i128, double - whole)
        }
    };
    let (left, right) = (parts(left), parts(right));
    left.0.cmp(&right.0).then(left.1.partial_cmp(&right.1).expect("JSON knows no NaN"))
}

/// Replaces each number by its rank among all numbers of the worlds, so that an implementation with doubles compares
/// exactly.
pub fn ranked(value: &Json) -> Json {
    match value {
        Json::Number(number) => {
            let ranks = RANKS.with(|ranks| {
                let at = ranks.binary_search_by(|other| compare_exactly(other, number));
                // Other numbers lie between two ranks; no filter has them.
                at.map_or_else(|at| 2 * at, |at| 2 * at + 1)
            });
            json!(ranks)
        }
        Json::Array(items) => items.iter().map(ranked).collect(),
        Json::Object(entries) => {
            Json::Object(entries.iter().map(|(key, value)| (key.clone(), ranked(value))).collect())
        }
        other => other.clone(),
    }
}

thread_local! {
    static RANKS: Vec<serde_json::Number> = {
        let integers = (-3..5).chain(INTEGERS).map(Value::Integer);
        let numbers = (-6..9).map(|half| f64::from(half) / 2.0).chain(NUMBERS).map(Value::Number);
        let mut all: Vec<serde_json::Number> = integers
            .chain(numbers)
            .filter_map(|value| match Json::from(value) {
                Json::Number(number) => Some(number),
                _ => None,
            })
            .collect();
        all.sort_by(compare_exactly);
        all.dedup_by(|left, right| compare_exactly(left, right).is_eq());
        all
    };
}
