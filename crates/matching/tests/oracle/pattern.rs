//! Random event patterns, and a matcher that implements their documentation literally. A pattern becomes alternatives
//! without `$or`, each a list of fields with their tests; an event becomes leaves. An alternative matches if there is a
//! leaf for each of its fields, those below one list of objects in the same object.

use std::{net::IpAddr, rc::Rc};

use fastrand::Rng;
use serde_json::{Map, Value as Json, json};
use tocsin_matching::filter::compile;
use tocsin_model::{
    filter::{Dialect, Filter},
    time::Timestamp,
};

use crate::{
    ldap::Person,
    values::{any_number, compare_exactly, event_fields, lower, one_of, text},
    world::{Event, OwnFilter},
};

pub fn random_filter(random: &mut Rng, depth: u32) -> Option<OwnFilter> {
    let pattern = random_pattern(random, depth);
    let filter = Filter::new(Dialect::EventPattern, pattern.to_string());
    // Patterns that can never match are rejected.
    compile(&filter, event_fields()).ok()?;
    let alternatives = alternatives(&pattern, &[]);
    let holds = move |event: &Event, _: &Person| alternatives.iter().any(|demands| fits(demands, event));
    Some(OwnFilter { filter, holds: Rc::new(holds) })
}

/// A leaf of an event, with the items of lists that contain it.
#[derive(Debug, Clone)]
pub struct Leaf {
    path: Vec<String>,
    value: Json,
    /// Each list by its path, and the index of the item.
    items: Vec<(String, usize)>,
}

/// All leaves of an event.
pub fn leaves(event: &Json) -> Vec<Leaf> {
    let mut found = Vec::new();
    collect(event, &mut Vec::new(), String::new(), &mut Vec::new(), &mut found);
    found
}

fn collect(value: &Json, path: &mut Vec<String>, at: String, items: &mut Vec<(String, usize)>, found: &mut Vec<Leaf>) {
    match value {
        Json::Object(entries) => {
            for (key, value) in entries {
                path.push(key.clone());
                collect(value, path, format!("{at}/{key}"), items, found);
                path.pop();
            }
        }
        Json::Array(list) => {
            for (place, item) in list.iter().enumerate() {
                // Scalars of one list are values of one field.
                let is_inner = item.is_array() || item.is_object();
                if is_inner {
                    items.push((at.clone(), place));
                }
                collect(item, path, format!("{at}/{place}"), items, found);
                if is_inner {
                    items.pop();
                }
            }
        }
        leaf => found.push(Leaf { path: path.clone(), value: leaf.clone(), items: items.clone() }),
    }
}

/// A field and its accepted values.
type Demand = (Vec<String>, Vec<Json>);

fn alternatives(pattern: &Json, above: &[String]) -> Vec<Vec<Demand>> {
    let mut all: Vec<Vec<Demand>> = vec![Vec::new()];
    for (key, value) in pattern.as_object().expect("a pattern is an object") {
        let path = [above, std::slice::from_ref(key)].concat();
        let more: Vec<Vec<Demand>> = match value {
            Json::Array(patterns) if key == "$or" => {
                patterns.iter().flat_map(|pattern| alternatives(pattern, above)).collect()
            }
            Json::Array(values) => vec![vec![(path, values.clone())]],
            inner => alternatives(inner, &path),
        };
        all =
            all.iter().flat_map(|left| more.iter().map(move |right| [left.clone(), right.clone()].concat())).collect();
    }
    all
}

fn fits(demands: &[Demand], event: &Event) -> bool {
    find_leaves(demands, event.leaves(), &mut Vec::new())
}

fn find_leaves<'a>(demands: &[Demand], leaves: &'a [Leaf], chosen: &mut Vec<&'a Leaf>) -> bool {
    let [(path, values), others @ ..] = demands else { return true };
    if values.iter().any(|value| *value == json!({"exists": false}))
        && !leaves.iter().any(|leaf| leaf.path == *path)
        && find_leaves(others, leaves, chosen)
    {
        return true;
    }
    for leaf in leaves.iter().filter(|leaf| leaf.path == *path) {
        let together = |other: &&Leaf| {
            let same =
                |(list, place): &(String, usize)| other.items.iter().all(|(theirs, at)| theirs != list || at == place);
            leaf.items.iter().all(same)
        };
        if values.iter().any(|value| accepts(value, leaf)) && chosen.iter().all(together) {
            chosen.push(leaf);
            if find_leaves(others, leaves, chosen) {
                return true;
            }
            chosen.pop();
        }
    }
    false
}

/// Whether a leaf passes one test of a pattern.
fn accepts(asked: &Json, leaf: &Leaf) -> bool {
    let Json::Object(test) = asked else { return equals(asked, leaf) };
    let (name, given) = test.iter().next().expect("one test");
    let text = leaf.value.as_str();
    match name.as_str() {
        "exists" => *given == json!(true),
        "anything-but" => match given {
            Json::Object(inner) => {
                let (name, given) = inner.iter().next().expect("one test");
                !many(given).iter().any(|given| accepts(&json!({name: given}), leaf))
            }
            given => !many(given).iter().any(|value| equals(value, leaf)),
        },
        "prefix" | "suffix" => {
            let ends = |text: &str, part: &str| match name.as_str() {
                "prefix" => text.get(..part.len()) == Some(part),
                _ => text.len() >= part.len() && text.get(text.len() - part.len()..) == Some(part),
            };
            match &given["equals-ignore-case"] {
                Json::String(part) => text.is_some_and(|text| ends(&lower(text), &lower(part))),
                _ => text.is_some_and(|text| ends(text, given.as_str().expect("text"))),
            }
        }
        "equals-ignore-case" => {
            let given = lower(given.as_str().expect("text"));
            text.is_some_and(|text| lower(text) == given)
        }
        "wildcard" => {
            let pattern: Vec<char> = given.as_str().expect("text").chars().collect();
            text.is_some_and(|text| wildcard(&pattern, &text.chars().collect::<Vec<char>>()))
        }
        "numeric" => {
            let Json::Number(value) = &leaf.value else { return false };
            given.as_array().expect("comparisons").chunks(2).all(|pair| {
                let Json::Number(other) = &pair[1] else { panic!("{given}") };
                let order = compare_exactly(value, other);
                match pair[0].as_str() {
                    Some("=") => order.is_eq(),
                    Some("<") => order.is_lt(),
                    Some("<=") => order.is_le(),
                    Some(">") => order.is_gt(),
                    Some(">=") => order.is_ge(),
                    other => panic!("{other:?}"),
                }
            })
        }
        "cidr" => text.is_some_and(|text| is_within(text, given.as_str().expect("text"))),
        other => panic!("{other}"),
    }
}

fn many(given: &Json) -> Vec<Json> {
    given.as_array().cloned().unwrap_or_else(|| vec![given.clone()])
}

fn equals(asked: &Json, leaf: &Leaf) -> bool {
    match (asked, &leaf.value) {
        (Json::Number(one), Json::Number(other)) => compare_exactly(one, other).is_eq(),
        // A timestamp field of the class compares timestamps.
        (Json::String(one), Json::String(other)) if leaf.path == ["at"] => {
            one.parse::<Timestamp>().expect("an instant") == other.parse::<Timestamp>().expect("an instant")
        }
        (one, other) => one == other,
    }
}

fn wildcard(pattern: &[char], text: &[char]) -> bool {
    match pattern {
        [] => text.is_empty(),
        ['*', rest @ ..] => (0..=text.len()).any(|from| wildcard(rest, &text[from..])),
        ['\\', plain, rest @ ..] | [plain, rest @ ..] => text.first() == Some(plain) && wildcard(rest, &text[1..]),
    }
}

fn is_within(text: &str, network: &str) -> bool {
    let (first, bits) = network.split_once('/').expect("a network");
    let bits_of = |address: IpAddr| match address {
        IpAddr::V4(address) => format!("4{:032b}", address.to_bits()),
        IpAddr::V6(address) => format!("6{:0128b}", address.to_bits()),
    };
    let first = bits_of(first.parse().expect("an address"));
    let length = 1 + bits.parse::<usize>().expect("a number of bits");
    text.parse::<IpAddr>().is_ok_and(|address| bits_of(address).get(..length) == first.get(..length))
}

fn random_pattern(random: &mut Rng, depth: u32) -> Json {
    let mut pattern = Map::new();
    for _ in 0..random.usize(1..4) {
        if depth > 0 && random.u8(0..4) == 0 {
            let count = random.usize(2..4);
            pattern.insert("$or".to_owned(), (0..count).map(|_| random_pattern(random, depth - 1)).collect());
            continue;
        }
        let (key, value) = match random.u8(0..12) {
            0..=2 => (one_of(random, &["s", "t"]), values(random, text_value)),
            3 | 4 => (one_of(random, &["i", "n"]), values(random, number_value)),
            5 => ("at", values(random, instant_value)),
            6 => ("b", json!([random.bool()])),
            7 | 8 => ("tags", values(random, any_value)),
            _ => ("detail", below(random, depth)),
        };
        pattern.insert(key.to_owned(), value);
    }
    Json::Object(pattern)
}

/// Tests below the map.
fn below(random: &mut Rng, depth: u32) -> Json {
    let mut pattern = Map::new();
    for _ in 0..random.usize(1..3) {
        let (key, value) = match random.u8(0..8) {
            0..=2 => ("x", values(random, any_value)),
            3 => ("y", values(random, any_value)),
            4 => ("x", json!({"z": values(random, any_value)})),
            5 if depth > 0 => {
                let count = random.usize(2..4);
                ("$or", (0..count).map(|_| below(random, depth - 1)).collect())
            }
            _ => {
                let mut item = Map::new();
                for key in ["x", "y"] {
                    if random.u8(0..3) > 0 || item.is_empty() {
                        item.insert(key.to_owned(), values(random, any_value));
                    }
                }
                ("list", Json::Object(item))
            }
        };
        pattern.insert(key.to_owned(), value);
    }
    Json::Object(pattern)
}

fn values(random: &mut Rng, value: impl Fn(&mut Rng) -> Json) -> Json {
    let count = if random.u8(0..3) > 0 { 1 } else { random.usize(2..5) };
    (0..count)
        .map(|_| match random.u8(0..12) {
            0 => json!({"exists": random.bool()}),
            _ => value(random),
        })
        .collect()
}

fn any_value(random: &mut Rng) -> Json {
    match random.u8(0..9) {
        0 => one_of(random, &[Json::Null, json!(true), json!(false)]),
        1..=3 => number_value(random),
        _ => text_value(random),
    }
}

fn full_text(random: &mut Rng) -> &'static str {
    loop {
        let text = text(random);
        if !text.is_empty() {
            return text;
        }
    }
}

fn text_value(random: &mut Rng) -> Json {
    let text = full_text(random);
    let wild =
        |random: &mut Rng| one_of(random, &["a*", "*b", "a*c", "*b*", "a*b*c", "*", "é*", "a\\*b", "ab", "*.*.*"]);
    match random.u8(0..16) {
        0 | 1 => json!({"prefix": text}),
        2 => json!({"suffix": text}),
        3 => json!({"prefix": {"equals-ignore-case": text}}),
        4 => json!({"suffix": {"equals-ignore-case": text}}),
        5 => json!({"equals-ignore-case": text}),
        6 | 7 => json!({"wildcard": wild(random)}),
        8 => json!({"anything-but": text}),
        9 => json!({"anything-but": [text, full_text(random)]}),
        10 => {
            let name = one_of(random, &["prefix", "suffix", "equals-ignore-case"]);
            json!({"anything-but": {name: [text, full_text(random)]}})
        }
        11 => json!({"anything-but": {"wildcard": wild(random)}}),
        12 => json!({"cidr": one_of(random, &["10.0.0.0/8", "10.0.0.0/31", "0.0.0.0/0", "::/64", "10.0.0.1/32"])}),
        _ => json!(crate::values::text(random)),
    }
}

fn number_value(random: &mut Rng) -> Json {
    let number = |random: &mut Rng| Json::from(any_number(random));
    match random.u8(0..8) {
        0 | 1 => json!({"numeric": [one_of(random, &["<", "<=", ">", ">=", "="]), number(random)]}),
        2 | 3 => {
            let (low, high) = (number(random), number(random));
            json!({"numeric": [one_of(random, &[">", ">="]), low, one_of(random, &["<", "<="]), high]})
        }
        4 => json!({"anything-but": number(random)}),
        5 => json!({"anything-but": [number(random), number(random)]}),
        _ => number(random),
    }
}

fn instant_value(random: &mut Rng) -> Json {
    let second = random.u8(0..4);
    let instant = json!(match random.u8(0..2) {
        0 => format!("1970-01-01T00:00:0{second}Z"),
        _ => format!("1970-01-01T01:00:0{second}+01:00"),
    });
    if random.u8(0..4) == 0 { json!({"anything-but": instant}) } else { instant }
}
