//! JSON paths of properties: the singular queries of JSONPath (RFC 9535), which select at most one value.
//! Values are read in one pass, and numbers stay exact; crates: docs/decisions/0042.

use std::{collections::HashMap, fmt, str::FromStr};

use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

use crate::exact_json::{Exact, ExactError};

/// Most steps of a path.
const STEPS_MAX: usize = 32;

/// A path to one value: `$.order.lines[0]['unit price']`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPath(Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Member(String),
    /// From the end if negative.
    Item(i64),
}

/// A text that is not a singular path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a path to one value: {what}")]
pub struct JsonPathError {
    /// The text.
    pub text: String,
    /// The problem.
    pub what: &'static str,
}

impl JsonPath {
    /// Values at several paths in a JSON text, in one pass; other values are skipped. Of duplicate names the last
    /// counts.
    ///
    /// # Errors
    /// The text is not JSON, or a number there exceeds a double.
    pub fn find_each(paths: &[&JsonPath], text: &[u8]) -> serde_json::Result<Vec<Option<Value>>> {
        let mut found = vec![None; paths.len()];
        let requested: Vec<PathTail<'_>> = paths.iter().enumerate().map(|(at, path)| (at, &path.0[..])).collect();
        let mut reader = serde_json::Deserializer::from_slice(text);
        Seek { requested: &requested, found: &mut found }.deserialize(&mut reader)?;
        reader.end()?;
        Ok(found)
    }

    /// As `find_each`, for a text with numbers that exceed a double: a value that contains one is not found.
    ///
    /// # Errors
    /// The text is not JSON.
    pub fn find_each_exact(paths: &[&JsonPath], text: &[u8]) -> Result<Vec<Option<Value>>, ExactError> {
        let exact = Exact::read(text)?;
        let value = |found: &Exact| serde_json::from_str(&found.to_string()).ok();
        Ok(paths.iter().map(|path| follow_exact(&path.0, &exact).and_then(value)).collect())
    }

    /// Replaces the value, at each duplicate name. Returns whether anything was replaced.
    pub fn replace(&self, body: &mut Exact, with: &Exact) -> bool {
        replace(&self.0, body, with)
    }

    /// The value in a JSON text, as written.
    ///
    /// # Errors
    /// The text is not JSON.
    pub fn find_written<'a>(&self, text: &'a str) -> serde_json::Result<Option<&'a RawValue>> {
        let whole: &RawValue = serde_json::from_str(text)?;
        let below = |value: &'a RawValue, step: &Step| match step {
            Step::Member(name) => {
                serde_json::from_str::<HashMap<String, &'a RawValue>>(value.get()).ok()?.get(name).copied()
            }
            Step::Item(at) => {
                let items: Vec<&'a RawValue> = serde_json::from_str(value.get()).ok()?;
                items.get(place(*at, items.len())?).copied()
            }
        };
        Ok(self.0.iter().try_fold(whole, below))
    }
}

fn replace(steps: &[Step], value: &mut Exact, with: &Exact) -> bool {
    let Some((step, rest)) = steps.split_first() else {
        value.clone_from(with);
        return true;
    };
    match (step, value) {
        (Step::Member(name), Exact::Object(members)) => {
            let named = members.iter_mut().filter(|(known, _)| is_named(known, name));
            named.fold(false, |found, (_, value)| replace(rest, value, with) || found)
        }
        (Step::Item(at), Exact::List(items)) => {
            let at = place(*at, items.len());
            at.and_then(|at| items.get_mut(at)).is_some_and(|item| replace(rest, item, with))
        }
        _ => false,
    }
}

fn is_named(literal: &str, name: &str) -> bool {
    serde_json::from_str::<String>(literal).is_ok_and(|known| known == name)
}

/// The value at these steps in JSON with numbers that a double cannot hold.
fn follow_exact<'a>(steps: &[Step], value: &'a Exact) -> Option<&'a Exact> {
    steps.iter().try_fold(value, |value, step| match (step, value) {
        (Step::Member(name), Exact::Object(members)) => {
            members.iter().rev().find(|(known, _)| is_named(known, name)).map(|(_, value)| value)
        }
        (Step::Item(at), Exact::List(items)) => items.get(place(*at, items.len())?),
        _ => None,
    })
}

/// The value at these steps.
fn value_at<'a>(steps: &[Step], value: &'a Value) -> Option<&'a Value> {
    steps.iter().try_fold(value, |value, step| match (step, value) {
        (Step::Member(name), Value::Object(members)) => members.get(name),
        (Step::Item(at), Value::Array(items)) => items.get(place(*at, items.len())?),
        _ => None,
    })
}

/// Index of a path, and its remaining steps.
type PathTail<'a> = (usize, &'a [Step]);

/// Extracts the wanted values during parsing.
struct Seek<'a> {
    requested: &'a [PathTail<'a>],
    found: &'a mut [Option<Value>],
}

impl Seek<'_> {
    fn take(self, value: &Value) {
        for (at, steps) in self.requested {
            self.found[*at] = value_at(steps, value).cloned();
        }
    }
}

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        if self.requested.iter().any(|(_, steps)| steps.is_empty()) {
            self.take(&Value::deserialize(from)?);
            return Ok(());
        }
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seek<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(requested) = members.next_key_seed(Below(self.requested))? {
            requested.iter().for_each(|(at, _)| self.found[*at] = None);
            members.next_value_seed(Seek { requested: &requested, found: &mut *self.found })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        if self.requested.is_empty() {
            while items.next_element_seed(Seek { requested: &[], found: &mut *self.found })?.is_some() {}
            return Ok(());
        }
        let mut all = Vec::new();
        while let Some(item) = items.next_element()? {
            all.push(item);
        }
        self.take(&Value::Array(all));
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// Reads a member name, and returns the paths below it.
struct Below<'a>(&'a [PathTail<'a>]);

impl<'de, 'a> DeserializeSeed<'de> for Below<'a> {
    type Value = Vec<PathTail<'a>>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for Below<'a> {
    type Value = Vec<PathTail<'a>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a member")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        let below = self.0.iter().filter_map(|(at, steps)| match steps {
            [Step::Member(member), rest @ ..] if member == name => Some((*at, rest)),
            _ => None,
        });
        Ok(below.collect())
    }
}

/// Index of an item, counted from the end if negative.
fn place(at: i64, length: usize) -> Option<usize> {
    usize::try_from(if at < 0 { at + i64::try_from(length).ok()? } else { at }).ok()
}

impl FromStr for JsonPath {
    type Err = JsonPathError;

    fn from_str(text: &str) -> Result<JsonPath, JsonPathError> {
        let wrong = |what| JsonPathError { text: text.to_owned(), what };
        let mut rest = text.strip_prefix('$').ok_or_else(|| wrong("it begins with `$`"))?;
        let mut steps = Vec::new();
        while !rest.is_empty() {
            let step;
            (step, rest) = read_step(rest).map_err(wrong)?;
            steps.push(step);
            if steps.len() > STEPS_MAX {
                return Err(wrong("it has more than 32 steps"));
            }
        }
        Ok(JsonPath(steps))
    }
}

fn read_step(rest: &str) -> Result<(Step, &str), &'static str> {
    const EITHER: &str = "a step is `.name`, `['name']` or `[0]`";
    if let Some(rest) = rest.strip_prefix('.') {
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let is_plain = name.chars().all(|c| c.is_alphanumeric() || c == '_' || !c.is_ascii());
        if name.is_empty() || !is_plain || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err("a name with other characters than letters, digits and `_` is written `['so-so']`");
        }
        return Ok((Step::Member(name.to_owned()), rest));
    }
    let rest = rest.strip_prefix('[').ok_or(EITHER)?;
    let quote = rest.chars().next().filter(|c| matches!(c, '\'' | '"'));
    if let Some(quote) = quote {
        let (name, rest) = read_quoted(&rest[1..], quote)?;
        return Ok((Step::Member(name), rest.strip_prefix(']').ok_or(EITHER)?));
    }
    let (number, rest) = rest.split_once(']').ok_or("`[` without `]`")?;
    let at = number.parse().map_err(|_| "only `[0]` and `['name']` lead to one value")?;
    Ok((Step::Item(at), rest))
}

fn read_quoted(rest: &str, quote: char) -> Result<(String, &str), &'static str> {
    let mut name = String::new();
    let mut characters = rest.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '\\' => match characters.next() {
                Some((_, escaped @ ('\'' | '"' | '\\' | '/'))) => name.push(escaped),
                _ => return Err("`\\` stands before a quote or another `\\`"),
            },
            c if c == quote => return Ok((name, &rest[at + 1..])),
            c => name.push(c),
        }
    }
    Err("a quote is not closed")
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("$")?;
        self.0.iter().try_for_each(|step| match step {
            Step::Item(at) => write!(f, "[{at}]"),
            Step::Member(name) => write!(f, "['{}']", name.replace('\\', "\\\\").replace('\'', "\\'")),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_leads_to_one_value() {
        let body = json!({"order": {"id": 7, "lines": [{"unit price": 3}, {"a'b": 4}]}, "größe": "x"});
        for (path, expected) in [
            ("$.order.id", json!(7)),
            ("$['order'].lines[0]['unit price']", json!(3)),
            ("$.order.lines[-1]['a\\'b']", json!(4)),
            ("$.größe", json!("x")),
            ("$.order.lines[2]", json!(null)),
            ("$.order.id.more", json!(null)),
        ] {
            let read: JsonPath = path.parse().expect(path);
            assert_eq!(value_at(&read.0, &body).cloned().unwrap_or_default(), expected, "{path}");
            let mut exact = Exact::read(body.to_string().as_bytes()).expect("JSON");
            let found = follow_exact(&read.0, &exact).map_or("null".to_owned(), Exact::to_string);
            assert_eq!(found, expected.to_string(), "{path}");
            assert_eq!(read.replace(&mut exact, &Exact::Literal("1".into())), !expected.is_null(), "{path}");
            let text = body.to_string();
            let written = read.find_written(&text).expect("it is JSON").map_or("null", |found| found.get());
            assert_eq!(written, expected.to_string(), "{path}");
            assert_eq!(read.to_string().parse(), Ok(read), "{path}");
        }
        for wrong in ["", "order", "$order", "$.", "$..id", "$.*", "$[*]", "$[0", "$['a", "$.a-b", "$[1:2]", "$.1a"] {
            assert!(wrong.parse::<JsonPath>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn several_paths_in_one_pass_equal_single_lookups() {
        let paths: Vec<JsonPath> = ["$", "$.a", "$.a.b", "$.a[1]", "$.a[-1].b", "$['a'].b.c", "$.c"]
            .map(|path| path.parse().expect(path))
            .into();
        let all: Vec<&JsonPath> = paths.iter().collect();
        let (without_whole, deep) = (&all[1..], "[".repeat(200) + &"]".repeat(200));
        for text in [
            r#"{"a": {"b": {"c": 1}}, "c": [true, null, -2, 1.5e3, "x"]}"#,
            r#"{"a": [1, {"b": 2}], "c": "long enough"}"#,
            r#"{"a": {"b": 1}, "a": {"x": 2}, "c": 1, "c": null}"#,
            r#"{"a": {"b": 1}, "a": 3}"#,
            r#"{"\u0061": {"b": "\ud83d\ude00"}}"#,
            "17",
            "[]",
            r#"{"x": "\ud800"}"#,
            r#"{"x": 1e999}"#,
            r#"{"a": 1} and more"#,
            r#"{"a": 1"#,
            "",
            &deep,
        ] {
            for requested in [&all[..], without_whole, &all[2..3], &[]] {
                let whole = serde_json::from_str::<Value>(text).ok();
                let expected = whole
                    .map(|whole| requested.iter().map(|path| value_at(&path.0, &whole).cloned()).collect::<Vec<_>>());
                assert_eq!(JsonPath::find_each(requested, text.as_bytes()).ok(), expected, "{text}");
            }
        }
        let no_text = b"{\"x\": \"\xff\", \"a\": 1}";
        assert!(JsonPath::find_each(without_whole, no_text).is_err());
    }
}
