//! Values beside the fields of an event and a subscription: the chronicles of the event class, and the subscriber
//! columns.
//!
//! Expected values are computed here from all events so far and from the profile. For a filter that reads them, the
//! interpreter evaluates another spelling, in which all of them are fields of the event.

use std::collections::BTreeMap;

use fastrand::Rng;
use tocsin_model::{
    chronicle::{Chronicle, Window},
    field::{Field, FieldType, Fields, Row},
    id::Name,
    value::Value,
};

use crate::{
    ldap::Person,
    values::{any_number, event_fields, fields, name, one_of, spelled, text},
};

/// The values beside fields in a random world.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    pub chronicles: Vec<ChronicleShape>,
    /// Whether subscriber attributes are declared.
    pub attributes: bool,
}

/// A chronicle: the field of its key and the field of its values.
#[derive(Debug, Clone)]
pub struct ChronicleShape {
    by: Option<&'static str>,
    of: Option<&'static str>,
}

/// A column: its spelling in expressions, and as a field.
struct Column {
    ours: String,
    theirs: String,
    kind: FieldType,
}

const STATISTICS: [&str; 6] = ["last", "previous", "first", "low", "high", "count"];
const MOMENTS: [&str; 2] = ["before", "after"];

const ATTRIBUTES: [(&str, FieldType); 6] = [
    ("region", FieldType::String),
    ("limit", FieldType::Number),
    ("age", FieldType::Integer),
    ("flag", FieldType::Boolean),
    ("marks", FieldType::List),
    ("address", FieldType::Map),
];

/// The index of the attribute `region` in the subscriber columns.
pub const REGION_AT: usize = 3;

impl Surroundings {
    pub fn random(random: &mut Rng) -> Surroundings {
        if random.bool() {
            return Surroundings::default();
        }
        let followed = |random: &mut Rng| ChronicleShape {
            by: one_of(random, &[None, Some("s"), Some("b"), Some("i")]),
            of: one_of(random, &[None, Some("n"), Some("n"), Some("i"), Some("s"), Some("at"), Some("b")]),
        };
        let chronicles = (0..random.usize(0..3)).map(|_| followed(random)).collect();
        Surroundings { chronicles, attributes: random.bool() }
    }

    /// The chronicles of an event class.
    pub fn chronicles(&self) -> BTreeMap<Name, Chronicle> {
        let chronicle = |(at, followed): (usize, &ChronicleShape)| {
            let chronicle = Chronicle {
                description: None,
                by: followed.by.map(name).into_iter().collect(),
                of: followed.of.map(|field| format!("event.{field}")),
                when: None,
                time: None,
                window: Window::Always,
                reset: None,
                keys: 1_000,
            };
            (name(&format!("c{at}")), chronicle)
        };
        self.chronicles.iter().enumerate().map(chronicle).collect()
    }

    /// The attributes of an application.
    pub fn attributes(&self) -> Fields {
        fields(if self.attributes { &ATTRIBUTES } else { &[] })
    }

    fn columns(&self) -> Vec<Column> {
        let mut columns = Vec::new();
        for (at, followed) in self.chronicles.iter().enumerate() {
            for (statistic, kind) in followed.statistics() {
                columns.extend(MOMENTS.map(|moment| Column {
                    ours: format!("chronicle.c{at}.{statistic}.{moment}"),
                    theirs: format!("event.c{at}_{statistic}_{moment}"),
                    kind,
                }));
            }
        }
        if self.attributes {
            columns.extend(["id", "locale", "time_zone"].map(|part| Column {
                ours: format!("subscriber.{part}"),
                theirs: format!("event.p_{part}"),
                kind: FieldType::String,
            }));
            columns.extend(ATTRIBUTES.map(|(attribute, kind)| Column {
                ours: format!("subscriber.attributes.{attribute}"),
                theirs: format!("event.p_{attribute}"),
                kind,
            }));
        }
        columns
    }

    /// A class with all of them as fields, behind those of events.
    pub fn as_fields(&self) -> Fields {
        let columns = self.columns();
        let ours = columns.iter().map(|column| (column.theirs.trim_start_matches("event."), column.kind));
        let ours = fields(&ours.collect::<Vec<_>>());
        Fields::new(event_fields().iter().chain(ours.iter()).cloned().collect::<Vec<Field>>())
    }

    /// An expression that reads them as fields.
    pub fn spelled_as_fields(&self, expression: &str) -> String {
        let mut spelled = expression.to_owned();
        for column in self.columns() {
            spelled = spelled.replace(&column.ours, &column.theirs);
        }
        spelled
    }

    /// The chronicle values of an event after others.
    pub fn chronicled(&self, earlier: &[Row], event: &Row) -> Row {
        let mut row = Row::new();
        for followed in &self.chronicles {
            let is_same_key = |other: &&Row| followed.by.is_none_or(|by| value_of(other, by) == value_of(event, by));
            let taken = |other: &Row| match followed.of {
                None => Some(Value::Null),
                Some(of) => Some(value_of(other, of).clone()).filter(|value| !value.is_null()),
            };
            let before: Vec<Value> = earlier.iter().filter(is_same_key).filter_map(taken).collect();
            let after: Vec<Value> = before.iter().cloned().chain(taken(event)).collect();
            for (statistic, _) in followed.statistics() {
                row.push(statistic_of(statistic, &before));
                row.push(statistic_of(statistic, &after));
            }
        }
        row
    }

    /// The subscriber columns of a person.
    pub fn of(&self, person: &Person) -> Row {
        if !self.attributes {
            return Row::new();
        }
        let text = |text: &Option<String>| text.as_deref().map_or(Value::Null, Value::from);
        let profile = &person.profile;
        let parts = [Value::from(person.id.as_str()), text(&profile.locale), text(&profile.time_zone)];
        let attribute = |(attribute, kind): (&str, FieldType)| {
            profile.attributes.get(attribute).and_then(|value| taken_as(kind, value)).unwrap_or_default()
        };
        parts.into_iter().chain(ATTRIBUTES.map(attribute)).collect()
    }

    /// A random test of a column, if there is any. Rules may compare it with parameters too.
    pub fn random_atom(&self, random: &mut Rng, has_parameters: bool) -> Option<String> {
        let columns = self.columns();
        if columns.is_empty() {
            return None;
        }
        let Column { ours, kind, .. } = &columns[random.usize(0..columns.len())];
        let any = one_of(random, &["<", "<=", ">", ">=", "==", "!="]);
        let other = other(random, *kind, has_parameters);
        Some(match (kind, random.u8(0..8)) {
            (_, 0) => format!("{}has({ours})", one_of(random, &["", "!"])),
            (_, 1) => format!("{ours} {} null", one_of(random, &["==", "!="])),
            (FieldType::Boolean, _) => ours.clone(),
            (FieldType::List, 2 | 3) => format!("{ours}.exists(mark, mark == {other})"),
            (FieldType::List, _) => format!("{other} in {ours}"),
            (FieldType::Map, _) => format!("{ours}.City == {other}"),
            (FieldType::String, 2) => format!("event.s.contains_ci({ours})"),
            (FieldType::String, 3 | 4) => format!("{other} == {ours}"),
            // A crossing of a limit.
            (FieldType::Number | FieldType::Integer, 2 | 3) => format!("{ours} < {other} && {other} <= event.n"),
            (_, 4) => format!("{other} {any} {ours}"),
            _ => format!("{ours} {any} {other}"),
        })
    }
}

/// A random operand that can be compared with this type.
fn other(random: &mut Rng, kind: FieldType, has_parameters: bool) -> String {
    let of = |random: &mut Rng, event: &[&str], parameters: &[&str], literal: &dyn Fn(&mut Rng) -> String| match random
        .u8(0..3)
    {
        0 => literal(random),
        1 if has_parameters => format!("sub.{}", one_of(random, parameters)),
        _ => format!("event.{}", one_of(random, event)),
    };
    match kind {
        FieldType::Integer | FieldType::Number => {
            of(random, &["i", "n"], &["i", "j", "n", "m"], &|random| spelled(&any_number(random)))
        }
        FieldType::Timestamp => of(random, &["at"], &["at", "until"], &|random| {
            format!("timestamp('1970-01-01T00:00:0{}Z')", random.u8(0..4))
        }),
        _ => of(random, &["s", "t"], &["s", "t"], &|random| format!("'{}'", text(random))),
    }
}

impl ChronicleShape {
    fn statistics(&self) -> Vec<(&'static str, FieldType)> {
        let followed = self.of.map(|of| event_fields()[place_of(of)].kind);
        let kind = |statistic: &&'static str| match *statistic {
            "count" => Some(FieldType::Integer),
            "low" | "high" => followed.filter(|kind| *kind != FieldType::Boolean),
            _ => followed,
        };
        STATISTICS.iter().filter_map(|statistic| Some((*statistic, kind(statistic)?))).collect()
    }
}

fn place_of(field: &str) -> usize {
    event_fields().position(field).expect("a field of the class")
}

fn value_of<'a>(event: &'a Row, field: &str) -> &'a Value {
    &event[place_of(field)]
}

fn statistic_of(statistic: &str, taken: &[Value]) -> Value {
    let best = |is_better: fn(&Value, &Value) -> bool| {
        let better = |best: &'_ Value, other: &'_ Value| is_better(other, best);
        taken.iter().reduce(|best, other| if better(best, other) { other } else { best })
    };
    let found = match statistic {
        "count" => return Value::Integer(taken.len() as i64),
        "last" => taken.last(),
        "previous" => taken.len().checked_sub(2).map(|at| &taken[at]),
        "first" => taken.first(),
        "low" => best(is_less),
        "high" => best(|one, other| is_less(other, one)),
        _ => panic!("{statistic}"),
    };
    found.cloned().unwrap_or_default()
}

/// Whether a value is less than another of the same type.
fn is_less(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Integer(one), Value::Integer(other)) => one < other,
        (Value::Number(one), Value::Number(other)) => one < other,
        (Value::Text(one), Value::Text(other)) => one.chars().lt(other.chars()),
        (Value::Timestamp(one), Value::Timestamp(other)) => one.0 < other.0,
        _ => panic!("{one:?} and {other:?}"),
    }
}

/// An attribute converted to the declared type, if possible.
fn taken_as(kind: FieldType, value: &Value) -> Option<Value> {
    match (kind, value) {
        (FieldType::String, Value::Text(_))
        | (FieldType::Number, Value::Number(_))
        | (FieldType::Integer, Value::Integer(_))
        | (FieldType::Boolean, Value::Boolean(_))
        | (FieldType::List, Value::List(_))
        | (FieldType::Map, Value::Map(_)) => Some(value.clone()),
        (FieldType::Number, Value::Integer(integer)) => Some(Value::Number(*integer as f64)),
        // An integral number, as far as every integer has an exact double.
        (FieldType::Integer, Value::Number(number)) if number.trunc() == *number && number.abs() <= 2_f64.powi(53) => {
            Some(Value::Integer(*number as i64))
        }
        _ => None,
    }
}
