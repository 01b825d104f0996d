//! Shapes of definition nodes. One table of shapes serves the checks, their messages, and the JSON Schema.

use std::time::Duration;

use serde_json::{Map, Value as Json, json};

use super::{
    PROBLEMS_MAX,
    document::{Kind, Node, join},
    duration::{parse_duration, write_duration},
};
use crate::{
    chronicle::NAME_CHARS_MAX,
    id::Name,
    problem::{Code, Problem, closest},
};

/// Permitted form of a node.
pub enum Shape {
    /// Text.
    Text,
    /// A name.
    Name,
    /// `true` or `false`.
    Boolean,
    /// A whole number.
    Integer {
        /// The smallest.
        least: i64,
        /// The largest value.
        most: i64,
    },
    /// A number, whole or not.
    Number {
        /// The smallest.
        least: f64,
        /// The largest.
        most: f64,
    },
    /// A duration.
    Duration {
        /// The shortest.
        least: Duration,
        /// The longest.
        most: Duration,
    },
    /// `10%` or `10`.
    Percent,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any YAML value.
    Any,
    /// A mapping with these keys.
    Object(&'static [Key]),
    /// A mapping with freely chosen names.
    Entries {
        /// Kind of the names.
        keys: Keys,
        /// Shape of each value.
        of: &'static Shape,
        /// Most entries.
        most: usize,
    },
    /// A list.
    List {
        /// Shape of each item.
        of: &'static Shape,
        /// Most items.
        most: usize,
    },
    /// One of these, distinguished by being a scalar, a list or a mapping.
    Either(&'static [&'static Shape]),
}

/// Kind of the keys of a mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// A class, rule, channel or source.
    Names,
    /// A field; must be an identifier in expressions.
    Fields,
    /// A field of a notification, which is a variable in templates.
    NotificationFields,
    /// A function; must be an identifier in expressions.
    Functions,
    /// A chronicle; must be an identifier in expressions, and prefixes the names of its values.
    Chronicles,
    /// Checked elsewhere.
    Free,
}

/// One key of an object.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Its shape.
    pub shape: &'static Shape,
    /// Whether it must be given.
    pub required: bool,
    /// Its description, for the schema.
    pub about: &'static str,
}

/// A key that may be left out.
pub const fn optional(name: &'static str, shape: &'static Shape, about: &'static str) -> Key {
    Key { name, shape, required: false, about }
}

/// A key that must be given.
pub const fn required(name: &'static str, shape: &'static Shape, about: &'static str) -> Key {
    Key { name, shape, required: true, about }
}

/// Reserved words that cannot name a class or a rule.
const RESERVED_NAMES: [&str; 12] = [
    "event",
    "sub",
    "subscriber",
    "subscription",
    "notification",
    "device",
    "true",
    "false",
    "null",
    "in",
    "base",
    "all",
];
/// Words that cannot name a field, because `event.in` is not an expression.
const RESERVED_FIELDS: [&str; 4] = ["true", "false", "null", "in"];
/// Variables and keywords of templates.
const RESERVED_NOTIFICATION_FIELDS: [&str; 18] = [
    "event",
    "sub",
    "subscriber",
    "device",
    "notification",
    "self",
    "loop",
    "super",
    "caller",
    "none",
    "None",
    "True",
    "False",
    "not",
    "and",
    "or",
    "if",
    "is",
];

const NAME_HINT: &str = "a name is a letter, then up to 63 letters, digits, `_` or `-`";
const FUNCTION_HINT: &str = "the name of a function is a letter, then up to 63 letters, digits or `_`";
const CHRONICLE_HINT: &str = "the name of a chronicle is a letter, then up to 39 letters, digits or `_`";
const FIELD_HINT: &str = "the name of a field is a letter, then up to 63 letters, digits or `_`";

/// A mapping or list with more than this many times the permitted entries ends the check: later stages compare entries
/// with each other.
const OVERSIZE: usize = 4;

/// Checks a node and all below it. Returns whether later stages may read it: no mapping or list is far too large.
pub fn check(shape: &Shape, root: &Node, problems: &mut Vec<Problem>) -> bool {
    let mut checker = Checker { problems, hints: PROBLEMS_MAX, is_oversized: false };
    checker.node(shape, root, "");
    !checker.is_oversized
}

struct Checker<'a> {
    problems: &'a mut Vec<Problem>,
    /// The unknown words that are still compared with the known ones. No more problems are reported than these.
    hints: usize,
    /// Whether a mapping or list is far too large.
    is_oversized: bool,
}

impl Checker<'_> {
    fn node(&mut self, shape: &Shape, node: &Node, path: &str) {
        match (shape, &node.kind) {
            (Shape::Either(shapes), _) => match shapes.iter().find(|shape| shape.takes(node)) {
                Some(shape) => self.node(shape, node, path),
                None => self.wrong_type(shape, node, path),
            },
            (Shape::Object(keys), Kind::Map(_) | Kind::Null) => self.object(keys, node, path),
            (_, _) if !shape.takes(node) => self.wrong_type(shape, node, path),
            (Shape::Entries { keys, of, most }, _) => self.entries(*keys, of, *most, node, path),
            (Shape::List { of, most }, Kind::List(items)) => {
                self.at_most(*most, items.len(), node, path);
                for (at, item) in items.iter().enumerate() {
                    self.node(of, item, &format!("{path}[{at}]"));
                }
            }
            (Shape::Integer { least, most }, Kind::Integer(value)) if !(least..=most).contains(&value) => {
                let problem = node.problem(Code::OutOfRange, path, format!("is {value}")).param("value", *value);
                let problem = problem.param("least", *least).param("most", *most);
                self.problems.push(problem.hint(format!("give {least} to {most}")));
            }
            (Shape::Number { least, most }, _)
                if number(node).is_some_and(|value| !(least..=most).contains(&&value)) =>
            {
                let given = number(node).unwrap_or_default();
                let problem = node.problem(Code::OutOfRange, path, format!("is {given}")).param("value", given);
                let problem = problem.param("least", *least).param("most", *most);
                self.problems.push(problem.hint(format!("give {least} to {most}")));
            }
            (Shape::Name, Kind::Text { text, .. }) if text.parse::<Name>().is_err() => {
                let problem = node.problem(Code::InvalidFormat, path, format!("`{}` is not a name", shown(text)));
                self.problems.push(problem.param("format", "name").hint(NAME_HINT));
            }
            (Shape::Duration { least, most }, Kind::Text { text, .. }) => {
                self.duration(text, *least, *most, node, path)
            }
            (Shape::Percent, _) if percent(node).is_none() => {
                let problem =
                    node.problem(Code::InvalidFormat, path, "is not a percentage").param("format", "percentage");
                self.problems.push(problem.hint("give `0%` to `100%`"));
            }
            (Shape::Choice(words), Kind::Text { text, .. }) if !words.contains(&text.as_str()) => {
                let problem = node.problem(Code::UnknownValue, path, format!("`{}` is not known here", shown(text)));
                self.unknown(problem, text, words, "give");
            }
            _ => {}
        }
    }

    fn object(&mut self, keys: &[Key], node: &Node, path: &str) {
        for entry in node.entries() {
            let path = join(path, &shown(&entry.key));
            let Some(key) = keys.iter().find(|key| key.name == entry.key) else {
                let problem = Problem::new(Code::UnknownMember, path, "is not known here");
                let names: Vec<&str> = keys.iter().map(|key| key.name).collect();
                self.unknown(problem.position(entry.line, entry.column), &entry.key, &names, "here you can give");
                continue;
            };
            // An optional key without a value is ignored, and a required one is reported as missing.
            if entry.value.kind != Kind::Null {
                self.node(key.shape, &entry.value, &path);
            }
        }
        for key in keys.iter().filter(|key| key.required && node.entry(key.name).is_none()) {
            let given = node.entries().iter().find(|entry| entry.key == key.name);
            let (line, column) = given.map_or((node.line, node.column), |entry| (entry.line, entry.column));
            let problem = Problem::new(Code::Required, join(path, key.name), "is missing");
            let problem = problem.param("expected", key.shape.noun()).hint(format!("give {}", key.shape.noun()));
            self.problems.push(problem.position(line, column));
        }
    }

    /// Reports an unknown word, with the known ones as long as the problem may be shown.
    fn unknown(&mut self, problem: Problem, wrong: &str, known: &[&str], otherwise: &str) {
        let Some(left) = self.hints.checked_sub(1) else {
            self.problems.push(problem);
            return;
        };
        self.hints = left;
        let hint = match closest(wrong, known.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("{otherwise} {}", listed(known)),
        };
        self.problems.push(problem.known(wrong, known.iter().copied()).hint(hint));
    }

    fn entries(&mut self, keys: Keys, of: &Shape, most: usize, node: &Node, path: &str) {
        self.at_most(most, node.entries().len(), node, path);
        for entry in node.entries() {
            let path = join(path, &shown(&entry.key));
            if let Some((message, hint)) = keys.key_problem(&entry.key) {
                self.problems.push(
                    Problem::new(Code::InvalidFormat, &path, message)
                        .param("format", "name")
                        .hint(hint)
                        .position(entry.line, entry.column),
                );
            }
            self.node(of, &entry.value, &path);
        }
    }

    fn duration(&mut self, text: &str, least: Duration, most: Duration, node: &Node, path: &str) {
        match parse_duration(text) {
            Err(message) => {
                let problem = node.problem(Code::InvalidFormat, path, format!("`{}` {message}", shown(text)));
                let problem = problem.param("format", "duration");
                self.problems.push(problem.hint("give a number and its unit, such as `90s`, `1h30m` or `7d`"));
            }
            Ok(duration) if !(least..=most).contains(&duration) => {
                let [given, least, most] = [duration, least, most].map(write_duration);
                let problem = node.problem(Code::OutOfRange, path, format!("is {given}")).param("value", given);
                let hint = format!("give {least} to {most}");
                self.problems.push(problem.param("least", least).param("most", most).hint(hint));
            }
            Ok(_) => {}
        }
    }

    fn wrong_type(&mut self, shape: &Shape, node: &Node, path: &str) {
        let problem = node.problem(Code::WrongType, path, format!("should be {}, not {}", shape.noun(), node.noun()));
        let problem = problem.param("expected", shape.noun());
        let hint = match (shape, &node.kind) {
            (Shape::Text | Shape::Name | Shape::Choice(_), Kind::Boolean(_) | Kind::Integer(_) | Kind::Number(_)) => {
                Some("put it in quotes if it is meant to be text")
            }
            (Shape::Boolean, Kind::Text { .. }) => Some("write `true` or `false`, without quotes"),
            (Shape::Integer { .. } | Shape::Number { .. }, Kind::Text { .. }) => Some("write digits, without quotes"),
            (Shape::Duration { .. }, Kind::Integer(_) | Kind::Number(_)) => {
                Some("give the unit as well, such as `90s`, `1h30m` or `7d`")
            }
            _ => None,
        };
        self.problems.push(match hint {
            Some(hint) => problem.hint(hint),
            None => problem,
        });
    }

    fn at_most(&mut self, most: usize, count: usize, node: &Node, path: &str) {
        self.is_oversized |= count > most.saturating_mul(OVERSIZE);
        if count > most {
            let problem = node.problem(Code::TooMany, path, format!("has {count} entries")).param("given", count);
            self.problems.push(problem.param("limit", most).hint(format!("at most {most} are allowed")));
        }
    }
}

impl Shape {
    /// Whether a node has the right kind; its value may still be invalid.
    fn takes(&self, node: &Node) -> bool {
        match self {
            Shape::Any => true,
            Shape::Text | Shape::Name | Shape::Duration { .. } | Shape::Choice(_) => {
                matches!(node.kind, Kind::Text { .. })
            }
            Shape::Boolean => matches!(node.kind, Kind::Boolean(_)),
            Shape::Integer { .. } => matches!(node.kind, Kind::Integer(_)),
            Shape::Number { .. } => number(node).is_some(),
            Shape::Percent => matches!(node.kind, Kind::Text { .. } | Kind::Integer(_)),
            Shape::Object(_) => matches!(node.kind, Kind::Map(_) | Kind::Null),
            Shape::Entries { .. } => matches!(node.kind, Kind::Map(_)),
            Shape::List { .. } => matches!(node.kind, Kind::List(_)),
            Shape::Either(shapes) => shapes.iter().any(|shape| shape.takes(node)),
        }
    }

    fn noun(&self) -> String {
        match self {
            Shape::Text => "text".to_owned(),
            Shape::Name => "a name".to_owned(),
            Shape::Boolean => "`true` or `false`".to_owned(),
            Shape::Integer { .. } => "an integer".to_owned(),
            Shape::Number { .. } => "a number".to_owned(),
            Shape::Duration { .. } => "a duration".to_owned(),
            Shape::Percent => "a percentage".to_owned(),
            Shape::Choice(words) => listed(words),
            Shape::Any => "a value".to_owned(),
            Shape::Object(_) | Shape::Entries { .. } => "a mapping".to_owned(),
            Shape::List { .. } => "a list".to_owned(),
            Shape::Either(shapes) => shapes.iter().map(|shape| shape.noun()).collect::<Vec<_>>().join(" or "),
        }
    }

    fn schema(&self) -> Json {
        match self {
            Shape::Text => json!({ "type": "string" }),
            Shape::Name => json!({ "type": "string", "pattern": Keys::Names.pattern() }),
            Shape::Boolean => json!({ "type": "boolean" }),
            Shape::Integer { least, most } => json!({ "type": "integer", "minimum": least, "maximum": most }),
            Shape::Number { least, most } => json!({ "type": "number", "minimum": least, "maximum": most }),
            Shape::Duration { least, most } => {
                let bound = |bound: &Duration| write_duration(*bound);
                json!({
                    "type": "string",
                    "description": format!("A number and its unit, such as `90s`, `1h30m` or `7d`: {} to {}.", bound(least), bound(most)),
                })
            }
            Shape::Percent => json!({ "anyOf": [
                { "type": "string", "pattern": "^(100|[0-9]{1,2})%$" },
                { "type": "integer", "minimum": 0, "maximum": 100 },
            ] }),
            Shape::Choice(words) => json!({ "enum": words }),
            Shape::Any => json!({}),
            Shape::Object(keys) => {
                let property = |key: &Key| {
                    let mut schema = key.shape.schema();
                    let detail = schema["description"].as_str().map(|detail| format!(" {detail}")).unwrap_or_default();
                    schema["description"] = json!(format!("{}{detail}", key.about));
                    (key.name.to_owned(), schema)
                };
                let properties: Map<String, Json> = keys.iter().map(property).collect();
                let required: Vec<&str> = keys.iter().filter(|key| key.required).map(|key| key.name).collect();
                let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
                if !required.is_empty() {
                    schema["required"] = json!(required);
                }
                schema
            }
            Shape::Entries { keys, of, most } => {
                let mut schema =
                    json!({ "type": "object", "additionalProperties": of.schema(), "maxProperties": most });
                if *keys != Keys::Free {
                    schema["propertyNames"] = json!({ "pattern": keys.pattern() });
                }
                schema
            }
            Shape::List { of, most } => json!({ "type": "array", "items": of.schema(), "maxItems": most }),
            Shape::Either(shapes) => json!({ "anyOf": shapes.iter().map(|shape| shape.schema()).collect::<Vec<_>>() }),
        }
    }
}

impl Keys {
    fn pattern(self) -> &'static str {
        match self {
            Keys::Names => "^[A-Za-z][A-Za-z0-9_-]{0,63}$",
            Keys::Fields | Keys::NotificationFields | Keys::Functions => "^[A-Za-z][A-Za-z0-9_]{0,63}$",
            Keys::Chronicles => "^[A-Za-z][A-Za-z0-9_]{0,39}$",
            Keys::Free => "",
        }
    }

    /// The problem of a key, and a hint.
    pub fn key_problem(self, key: &str) -> Option<(String, String)> {
        let is_name = key.parse::<Name>().is_ok();
        let (message, hint) = match self {
            Keys::Free => return None,
            Keys::Names if !is_name => ("is not a name", NAME_HINT),
            Keys::Names if RESERVED_NAMES.contains(&key) => ("is a reserved word", "choose another name"),
            Keys::Fields | Keys::NotificationFields if !is_name => ("is not the name of a field", FIELD_HINT),
            Keys::Functions if !is_name => ("is not the name of a function", FUNCTION_HINT),
            Keys::Chronicles if !is_name || key.len() > NAME_CHARS_MAX => {
                ("is not the name of a chronicle", CHRONICLE_HINT)
            }
            Keys::Fields | Keys::NotificationFields | Keys::Functions | Keys::Chronicles if key.contains('-') => {
                return Some((
                    "would read as a subtraction in expressions".to_owned(),
                    format!("call it `{}`", key.replace('-', "_")),
                ));
            }
            Keys::Fields | Keys::NotificationFields | Keys::Functions | Keys::Chronicles
                if RESERVED_FIELDS.contains(&key) =>
            {
                ("is a reserved word of expressions", "choose another name")
            }
            Keys::NotificationFields if RESERVED_NOTIFICATION_FIELDS.contains(&key) => {
                ("has another meaning in templates", "choose another name")
            }
            _ => return None,
        };
        Some((message.to_owned(), hint.to_owned()))
    }
}

/// The number in a node, whole or not.
pub fn number(node: &Node) -> Option<f64> {
    match node.kind {
        Kind::Integer(number) => Some(number as f64),
        Kind::Number(number) => Some(number),
        _ => None,
    }
}

/// The percentage in a node.
pub fn percent(node: &Node) -> Option<u8> {
    let number: u8 = match &node.kind {
        Kind::Integer(number) => u8::try_from(*number).ok()?,
        Kind::Text { text, .. } => text.strip_suffix('%')?.trim_end().parse().ok()?,
        _ => return None,
    };
    (number <= 100).then_some(number)
}

/// The complete schema with its head.
pub fn json_schema(shape: &Shape, title: &str, description: &str) -> Json {
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "description": description,
    });
    if let (Json::Object(head), Json::Object(body)) = (&mut schema, shape.schema()) {
        head.extend(body);
    }
    schema
}

/// A list of words for a sentence.
pub fn listed(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        Some((only, _)) => only.clone(),
        None => "nothing".to_owned(),
    }
}

/// A value for a message: shortened and on one line.
pub fn shown(text: &str) -> String {
    let mut shown: String = text
        .chars()
        .take(80)
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect();
    if text.chars().nth(80).is_some() {
        shown.push('…');
    }
    shown
}
