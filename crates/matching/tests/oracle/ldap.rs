//! Random subscribers and LDAP filters over them, with an independent evaluator by RFC 4511: a tree, three truth
//! values, and plain comparisons.

use std::{cmp::Ordering, fmt::Write};

use fastrand::Rng;
use serde_json::Value as Json;
use tocsin_model::{
    id::{Name, SubscriberId},
    ldap::{Entry, LdapFilter, Truth},
    subscriber::Profile,
    time::Timestamp,
    value::Value,
};

use crate::values::{any_number, compare_exactly, name, one_of, spelled, text};

/// A subscriber as input of filters.
#[derive(Debug, Clone)]
pub struct Person {
    pub id: SubscriberId,
    pub profile: Profile,
    pub channels: Vec<Name>,
    pub created_at: Timestamp,
}

impl Person {
    pub fn random(random: &mut Rng, number: usize) -> Person {
        let mut profile = Profile { enabled: random.u8(0..4) > 0, ..Profile::default() };
        profile.locale = random.bool().then(|| one_of(random, &["de-AT", "en", "EN"]).to_owned());
        for key in ["Name", "name", "age", "Tags", "address", "flag"] {
            if random.u8(0..3) > 0 {
                profile.attributes.insert(key.to_owned(), attribute(random, 2));
            }
        }
        // Attributes that are compared with events too.
        for key in ["region", "limit", "marks"] {
            let value = match (random.u8(0..8), key) {
                (0, _) => continue,
                (1, _) => attribute(random, 2),
                (_, "region") => Value::from(text(random)),
                (_, "limit") => any_number(random),
                _ => (0..random.usize(0..4)).map(|_| Value::from(text(random))).collect::<Vec<_>>().into_list(),
            };
            profile.attributes.insert(key.to_owned(), value);
        }
        let channels = ["mail", "web"].into_iter().filter(|_| random.bool()).map(name).collect();
        let id = format!("{}{number}", one_of(random, &["p", "q", "P"])).parse().expect("an id");
        Person { id, profile, channels, created_at: Timestamp(random.i64(0..4) * 1_000_000) }
    }

    pub fn entry(&self) -> Entry<'_> {
        Entry {
            id: &self.id,
            profile: &self.profile,
            channels: self.channels.iter().collect(),
            created_at: self.created_at,
        }
    }

    /// The values of an attribute, each as text and type.
    fn values(&self, asked: &str) -> Vec<Value> {
        let asked = asked.to_lowercase();
        let text = |text: &Option<String>| text.iter().map(|text| Value::from(text.as_str())).collect();
        match asked.as_str() {
            "enabled" => vec![Value::Boolean(self.profile.enabled)],
            "locale" => text(&self.profile.locale),
            "time_zone" => text(&self.profile.time_zone),
            "created_at" => vec![Value::Timestamp(self.created_at)],
            "channel" => self.channels.iter().map(|channel| Value::from(channel.as_str())).collect(),
            asked => {
                let mut found = Vec::new();
                for (key, value) in &self.profile.attributes {
                    let key = key.to_lowercase();
                    if key == asked {
                        spread(value, &mut found);
                    } else if let Some(inner) = asked.strip_prefix(&format!("{key}.")) {
                        within(value, inner, &mut found);
                    }
                }
                found
            }
        }
    }
}

fn attribute(random: &mut Rng, depth: u8) -> Value {
    match random.u8(0..if depth == 0 { 8 } else { 11 }) {
        0 => Value::Null,
        1 => Value::Boolean(random.bool()),
        2 | 3 => any_number(random),
        8 | 9 => (0..random.usize(0..3)).map(|_| attribute(random, depth - 1)).collect::<Vec<_>>().into_list(),
        10 => Value::Map([("City".into(), attribute(random, depth - 1))].into()),
        _ => words(random).as_str().into(),
    }
}

trait IntoList {
    fn into_list(self) -> Value;
}

impl IntoList for Vec<Value> {
    fn into_list(self) -> Value {
        Value::List(self.into())
    }
}

/// A word or two, with insignificant spaces.
fn words(random: &mut Rng) -> String {
    let word = |random: &mut Rng| one_of(random, &["a", "A", "ab", "Vienna", "é", "É", "straße", "x-y", "b", "12"]);
    match random.u8(0..5) {
        0 => format!("{} {}", word(random), word(random)),
        1 => format!(" {}  {} ", word(random), word(random)),
        2 => text(random).to_owned(),
        _ => word(random).to_owned(),
    }
}

/// A list has its items as values, null has none.
fn spread(value: &Value, found: &mut Vec<Value>) {
    match value {
        Value::Null => {}
        Value::List(items) => items.iter().for_each(|item| spread(item, found)),
        value => found.push(value.clone()),
    }
}

/// A map is entered by its keys, also inside a list.
fn within(value: &Value, asked: &str, found: &mut Vec<Value>) {
    match value {
        Value::List(items) => items.iter().for_each(|item| within(item, asked, found)),
        Value::Map(entries) => {
            for (key, value) in entries.iter() {
                let key = key.to_lowercase();
                if key == asked {
                    spread(value, found);
                } else if let Some(inner) = asked.strip_prefix(&format!("{key}.")) {
                    within(value, inner, found);
                }
            }
        }
        _ => {}
    }
}

/// A filter as a tree.
#[derive(Debug, Clone)]
pub enum Filter {
    And(Vec<Filter>),
    Or(Vec<Filter>),
    Not(Box<Filter>),
    Item(&'static str, ValueTest),
}

#[derive(Debug, Clone)]
pub enum ValueTest {
    Present,
    Equal(String),
    AtLeast(String),
    AtMost(String),
    About(String),
    /// The parts between the stars.
    Parts(Vec<String>),
    Exactly(String),
    IntegerIs(i64),
    AllBits(i64),
}

const NAMES: [&str; 11] =
    ["name", "NAME", "age", "tags", "address.city", "flag", "locale", "channel", "missing", "enabled", "created_at"];

impl Filter {
    /// A random valid filter, parsed and as a tree.
    pub fn random(random: &mut Rng, depth: u32) -> (LdapFilter, Filter) {
        loop {
            let filter = Filter::random_tree(random, depth);
            if let Ok(read) = LdapFilter::parse(&filter.to_string()) {
                return (read, filter);
            }
        }
    }

    fn random_tree(random: &mut Rng, depth: u32) -> Filter {
        let several = |random: &mut Rng| {
            let count = if random.u8(0..20) == 0 { 0 } else { random.usize(1..4) };
            (0..count).map(|_| Filter::random_tree(random, depth - 1)).collect()
        };
        match random.u8(0..if depth == 0 { 4 } else { 10 }) {
            4..=6 => Filter::And(several(random)),
            7 | 8 => Filter::Or(several(random)),
            9 => Filter::Not(Box::new(Filter::random_tree(random, depth - 1))),
            _ if random.u8(0..8) == 0 => Filter::id(random),
            _ => Filter::Item(one_of(random, &NAMES), ValueTest::random(random)),
        }
    }

    /// A test of the id, which is compared character by character.
    fn id(random: &mut Rng) -> Filter {
        let id = format!("{}{}", one_of(random, &["p", "q", "P"]), random.u8(0..4));
        let value_test = match random.u8(0..5) {
            0 => ValueTest::AtLeast(id),
            1 => ValueTest::AtMost(id),
            2 => ValueTest::Parts(vec![one_of(random, &["p", "P", "q"]).to_owned(), String::new()]),
            _ => ValueTest::Equal(id),
        };
        Filter::Item("id", value_test)
    }

    pub fn evaluate(&self, person: &Person) -> Truth {
        match self {
            Filter::And(parts) => parts.iter().map(|part| part.evaluate(person)).min().unwrap_or(Truth::True),
            Filter::Or(parts) => parts.iter().map(|part| part.evaluate(person)).max().unwrap_or(Truth::False),
            Filter::Not(part) => match part.evaluate(person) {
                Truth::True => Truth::False,
                Truth::Undefined => Truth::Undefined,
                Truth::False => Truth::True,
            },
            Filter::Item("id", value_test) => Truth::of(value_test.of_id(person.id.as_str())),
            Filter::Item(name, value_test) => {
                let values = person.values(name);
                values
                    .iter()
                    .map(|value| value_test.of(value).map_or(Truth::Undefined, Truth::of))
                    .max()
                    .unwrap_or(Truth::False)
            }
        }
    }
}

impl ValueTest {
    fn random(random: &mut Rng) -> ValueTest {
        let value = |random: &mut Rng| match random.u8(0..10) {
            0..=2 => spelled(&any_number(random)),
            3 => one_of(random, &["TRUE", "false"]).to_owned(),
            4 => format!("1970010100000{}Z", random.u8(0..4)),
            5 => one_of(random, &["mail", "de-at", "EN"]).to_owned(),
            _ => words(random),
        };
        match random.u8(0..16) {
            0 | 1 => ValueTest::Present,
            2 => ValueTest::AtLeast(value(random)),
            3 => ValueTest::AtMost(value(random)),
            4 => ValueTest::About(value(random)),
            5 | 6 => {
                let part = |random: &mut Rng| one_of(random, &["", "a", "B", "é", "vi", "nn", "ss"]).to_owned();
                let mut parts: Vec<String> = (0..random.usize(2..4)).map(|_| part(random)).collect();
                let inner = parts.len() - 1;
                parts[1..inner].iter_mut().filter(|part| part.is_empty()).for_each(|part| *part = "a".to_owned());
                // `*` alone is a presence test.
                if parts.iter().all(String::is_empty) { ValueTest::Present } else { ValueTest::Parts(parts) }
            }
            7 => ValueTest::Exactly(words(random)),
            8 => ValueTest::IntegerIs(random.i64(-3..4)),
            9 => ValueTest::AllBits(random.i64(0..4)),
            _ => ValueTest::Equal(value(random)),
        }
    }

    fn of_id(&self, id: &str) -> bool {
        match self {
            ValueTest::Equal(other) => id == other,
            ValueTest::AtLeast(other) => id >= other.as_str(),
            ValueTest::AtMost(other) => id <= other.as_str(),
            ValueTest::Parts(parts) => id.starts_with(&parts[0]),
            value_test => panic!("{value_test:?}"),
        }
    }

    /// Whether the test is true of a value; `None` if it is undefined.
    fn of(&self, value: &Value) -> Option<bool> {
        match self {
            ValueTest::Present => Some(true),
            ValueTest::Equal(other) => equals(value, other),
            ValueTest::AtLeast(other) => order(value, other).map(Ordering::is_ge),
            ValueTest::AtMost(other) => order(value, other).map(Ordering::is_le),
            ValueTest::About(other) => match value {
                Value::Text(text) if !letters(other).is_empty() => Some(letters(text) == letters(other)),
                value => equals(value, other),
            },
            ValueTest::Parts(parts) => match value {
                Value::Text(text) => Some(has_parts(&folded(text), parts)),
                _ => None,
            },
            ValueTest::Exactly(other) => match value {
                Value::Text(text) => Some(single_spaced(text) == single_spaced(other)),
                _ => None,
            },
            ValueTest::IntegerIs(other) => match Json::from(value.clone()) {
                Json::Number(number) => Some(compare_exactly(&number, &(*other).into()).is_eq()),
                _ => None,
            },
            ValueTest::AllBits(bits) => match value {
                Value::Integer(integer) => Some(integer & bits == *bits),
                _ => None,
            },
        }
    }
}

fn equals(value: &Value, other: &str) -> Option<bool> {
    match value {
        Value::Boolean(value) => match other.to_lowercase().as_str() {
            "true" => Some(*value),
            "false" => Some(!*value),
            _ => None,
        },
        value => order(value, other).map(Ordering::is_eq),
    }
}

fn order(value: &Value, other: &str) -> Option<Ordering> {
    match value {
        Value::Text(text) => Some(folded(text).cmp(&folded(other))),
        Value::Integer(_) | Value::Number(_) => match (Json::from(value.clone()), serde_json::from_str(other).ok()?) {
            // A JSON number has no spaces around it.
            (Json::Number(one), Json::Number(other_number)) if other.trim() == other => {
                Some(compare_exactly(&one, &other_number))
            }
            _ => None,
        },
        Value::Timestamp(time) => {
            let second = other.strip_prefix("1970010100000")?.strip_suffix('Z')?.parse::<i64>().ok()?;
            Some(time.0.cmp(&(second * 1_000_000)))
        }
        _ => None,
    }
}

/// Runs of spaces count as one, leading and trailing ones are ignored.
fn single_spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Case folding for the letters that occur here.
fn folded(text: &str) -> String {
    single_spaced(text).to_lowercase().replace('ß', "ss").replace('ς', "σ")
}

/// Letters and digits, without case and accents.
fn letters(text: &str) -> String {
    let plain = folded(text).replace('é', "e").replace('ä', "a").replace('ö', "o").replace('ü', "u");
    plain.replace('\u{307}', "").chars().filter(|letter| letter.is_alphanumeric()).collect()
}

fn has_parts(text: &str, parts: &[String]) -> bool {
    let parts: Vec<String> = parts.iter().map(|part| folded(part)).collect();
    let [first, middle @ .., last] = parts.as_slice() else { panic!("at least one star") };
    let Some(mut rest) = text.strip_prefix(first.as_str()) else { return false };
    for part in middle {
        let Some((_, behind)) = rest.split_once(part.as_str()) else { return false };
        rest = behind;
    }
    rest.ends_with(last.as_str())
}

/// The notation of RFC 4515.
impl std::fmt::Display for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |sign: char, parts: &[Filter], f: &mut std::fmt::Formatter<'_>| {
            write!(f, "({sign}")?;
            parts.iter().try_for_each(|part| write!(f, "{part}"))?;
            f.write_char(')')
        };
        match self {
            Filter::And(parts) => list('&', parts, f),
            Filter::Or(parts) => list('|', parts, f),
            Filter::Not(part) => write!(f, "(!{part})"),
            Filter::Item(name, value_test) => match value_test {
                ValueTest::Present => write!(f, "({name}=*)"),
                ValueTest::Equal(value) => write!(f, "({name}={})", escaped(value)),
                ValueTest::AtLeast(value) => write!(f, "({name}>={})", escaped(value)),
                ValueTest::AtMost(value) => write!(f, "({name}<={})", escaped(value)),
                ValueTest::About(value) => write!(f, "({name}~={})", escaped(value)),
                ValueTest::Parts(parts) => {
                    let parts: Vec<String> = parts.iter().map(|part| escaped(part)).collect();
                    write!(f, "({name}={})", parts.join("*"))
                }
                ValueTest::Exactly(value) => write!(f, "({name}:caseExactMatch:={})", escaped(value)),
                ValueTest::IntegerIs(value) => write!(f, "({name}:integerMatch:={value})"),
                ValueTest::AllBits(value) => write!(f, "({name}:1.2.840.113556.1.4.803:={value})"),
            },
        }
    }
}

fn escaped(value: &str) -> String {
    let mut out = String::new();
    for letter in value.chars() {
        match letter {
            '*' | '(' | ')' | '\\' => write!(out, "\\{:02x}", letter as u32).expect("a string takes everything"),
            letter => out.push(letter),
        }
    }
    out
}
