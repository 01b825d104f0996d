use std::{
    fmt,
    io::{BufRead, Read},
};

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tocsin_model::problem::{Code, Problem};

use super::{
    item::{Item, PositionedItem},
    text::{Text, too_long, unreadable},
};

/// Deepest nesting of a document, as in the item parser.
const DEPTH_MAX: usize = 127;

/// Checks that a text is one JSON document (RFC 8259), without duplicate names in the objects on the path to the items.
pub(super) fn examine(text: Text, path: &str) -> Result<(), Problem> {
    let path = names_of(path);
    let mut reader = serde_json::Deserializer::from_reader(DepthLimitedReader { text, depth: Depth::default() });
    Along(&path).deserialize(&mut reader).and_then(|()| reader.end()).map_err(|error| {
        let mut message = error.to_string();
        if let Some(at) = message.rfind(" at line ") {
            message.truncate(at);
        }
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let problem = Problem::syntax("json", "", format!("is not a JSON document: {message}"));
        if error.line() > 0 { problem.position(number(error.line()), number(error.column())) } else { problem }
    })
}

/// The names of a path.
fn names_of(path: &str) -> Vec<String> {
    let path = path.strip_prefix('$').unwrap_or(path);
    path.split(['.', '/']).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Skips a value. On the path to the items, duplicate names are an error, since one of the members would be lost.
struct Along<'p>(&'p [String]);

impl<'de> DeserializeSeed<'de> for Along<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.0 {
            [] => IgnoredAny::deserialize(deserializer).map(drop),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Along<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (mut is_there, name) = (false, &self.0[0]);
        while let Some(key) = map.next_key::<String>()? {
            match (key == *name, is_there) {
                (true, true) => return Err(A::Error::custom(format!("`{name}` is given twice"))),
                (true, false) => map.next_value_seed(Along(&self.0[1..]))?,
                (false, _) => drop(map.next_value::<IgnoredAny>()?),
            }
            is_there |= key == *name;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
}

/// Tracks the nesting depth of a text.
#[derive(Default)]
struct Depth {
    depth: usize,
    in_text: bool,
    escaped: bool,
}

impl Depth {
    fn take(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_text => self.escaped = true,
            b'"' => self.in_text = !self.in_text,
            _ if self.in_text => {}
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}

/// A reader that limits the nesting depth: skipping values takes a byte per level.
struct DepthLimitedReader {
    text: Text,
    depth: Depth,
}

impl Read for DepthLimitedReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.text.read(buffer)?;
        for byte in &buffer[..count] {
            self.depth.take(*byte);
            if self.depth.depth > DEPTH_MAX {
                return Err(std::io::Error::other(format!("nested deeper than {DEPTH_MAX} levels")));
            }
        }
        Ok(count)
    }
}

/// The elements of the array at a path, or the single value there. The text is valid JSON.
pub(super) struct Elements {
    text: Text,
    path: Vec<String>,
    bytes_max: usize,
    state: State,
    number: u64,
}

#[derive(PartialEq)]
enum State {
    Before,
    Inside,
    Ended,
}

/// The error for a truncated document.
const ENDS_EARLY: &str = "ends early";

impl Elements {
    pub fn new(text: Text, path: &str, bytes_max: usize) -> Elements {
        Elements { text, path: names_of(path), bytes_max, state: State::Before, number: 0 }
    }

    /// Moves to the value at the path. Returns whether it is an array, which is entered.
    fn find(&mut self) -> Result<bool, Problem> {
        for name in std::mem::take(&mut self.path) {
            if self.peek()? != b'{' {
                return Err(Problem::new(Code::Required, "", format!("has no `{name}`, where its items should be")));
            }
            self.text.consume(1);
            if !self.enter(&name)? {
                return Err(Problem::new(Code::Required, "", format!("has no `{name}`, where its items should be")));
            }
        }
        let is_array = self.peek()? == b'[';
        if is_array {
            self.text.consume(1);
        }
        Ok(is_array)
    }

    /// Moves to the value of a member of the current object. The first of duplicate names is used.
    fn enter(&mut self, name: &str) -> Result<bool, Problem> {
        loop {
            match self.peek()? {
                b'}' => return Ok(false),
                b',' => self.text.consume(1),
                _ => {
                    let mut key = Vec::new();
                    self.value(Some(&mut key))?;
                    self.peek()?;
                    self.text.consume(1);
                    self.peek()?;
                    let key: String =
                        serde_json::from_slice(&key).map_err(|_| Problem::syntax("json", "", "has a broken name"))?;
                    if key == name {
                        return Ok(true);
                    }
                    self.value(None)?;
                }
            }
        }
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Result<u8, Problem> {
        loop {
            let bytes = self.text.fill_buf().map_err(|error| unreadable(&error))?;
            let Some(first) = bytes.first().copied() else {
                return Err(Problem::syntax("json", "", ENDS_EARLY));
            };
            if !first.is_ascii_whitespace() {
                return Ok(first);
            }
            self.text.consume(1);
        }
    }

    /// Reads a value, into `out` if it is given.
    fn value(&mut self, mut out: Option<&mut Vec<u8>>) -> Result<(), Problem> {
        let mut depth = Depth::default();
        let mut length = 0;
        loop {
            let bytes = self.text.fill_buf().map_err(|error| unreadable(&error))?;
            if bytes.is_empty() {
                // A number at the end of the document ends with it.
                return if length > 0 && depth.depth == 0 {
                    Ok(())
                } else {
                    Err(Problem::syntax("json", "", ENDS_EARLY))
                };
            }
            let mut taken = 0;
            let mut done = false;
            for byte in bytes {
                let is_bare = depth.depth == 0 && !depth.in_text;
                if is_bare && (byte.is_ascii_whitespace() || matches!(byte, b',' | b':' | b']' | b'}')) {
                    done = true;
                    break;
                }
                depth.take(*byte);
                taken += 1;
                if depth.depth == 0 && !depth.in_text && matches!(byte, b'"' | b'}' | b']') {
                    done = true;
                    break;
                }
            }
            length += taken;
            if let Some(out) = out.as_deref_mut() {
                // One byte above the item limit marks it as too long; the rest is skipped.
                let room = (self.bytes_max + 1).saturating_sub(out.len());
                out.extend_from_slice(&bytes[..taken.min(room)]);
            }
            self.text.consume(taken);
            if done {
                return Ok(());
            }
        }
    }

    fn element(&mut self) -> Result<Option<PositionedItem>, Problem> {
        if self.state == State::Before {
            self.state = if self.find()? { State::Inside } else { State::Ended };
            if self.state == State::Ended {
                return self.take().map(Some);
            }
        }
        if self.peek()? == b',' {
            self.text.consume(1);
            self.peek()?;
        }
        if self.peek()? == b']' {
            self.state = State::Ended;
            return Ok(None);
        }
        self.take().map(Some)
    }

    fn take(&mut self) -> Result<PositionedItem, Problem> {
        let mut bytes = Vec::new();
        self.value(Some(&mut bytes))?;
        let item = match bytes.len() > self.bytes_max {
            true => Item::Unreadable { problem: too_long(self.bytes_max), text: bytes },
            false => Item::Json(bytes),
        };
        Ok(PositionedItem { line: None, item })
    }
}

impl Iterator for Elements {
    type Item = Result<PositionedItem, Problem>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.state == State::Ended {
            return None;
        }
        let element = self.element().transpose();
        self.number += 1;
        if matches!(element, Some(Err(_))) {
            self.state = State::Ended;
        }
        let at = self.number - 1;
        element.map(|found| found.map_err(|problem| Problem { path: format!("[{at}]"), ..problem }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Format, Layout, layout, of_text};
    use super::*;

    fn check(path: &str, text: &str, expected: &str) {
        let found = of_text(&layout(Format::Json, path), text.as_bytes());
        let shown: Vec<String> = found
            .into_iter()
            .map(|found| match found {
                Ok(PositionedItem { item: Item::Json(bytes), .. }) => String::from_utf8(bytes).expect("text"),
                Ok(other) => panic!("{other:?}"),
                Err(problem) => format!("! {problem}"),
            })
            .collect();
        assert_eq!(shown.join(" | "), expected, "{text}");
    }

    #[test]
    fn elements_of_an_array_are_items() {
        check("", r#" [1, "a,]\"", {"b": [1, 2]} ,[] ] "#, r#"1 | "a,]\"" | {"b": [1, 2]} | []"#);
        check("", "{\"a\": 1}", "{\"a\": 1}");
        check("", "7", "7");
        check("", "[]", "");
        check("", "\u{feff}[1]", "1");
        check("features", r#"{"type": "x", "features": [{"a": 1}, {"a": 2}], "rest": [3]}"#, r#"{"a": 1} | {"a": 2}"#);
        check("a.b", r#"{"a.b": 1, "a": {"x": "}", "\u0062": [true]}}"#, "true");
        check("a", "[1]", "! [0]: has no `a`, where its items should be");
        check("a", r#"{"b": 1}"#, "! [0]: has no `a`, where its items should be");
    }

    #[test]
    fn a_duplicate_list_of_items_is_rejected() {
        for twice in [r#"{"a": {"b": [1]}, "a": {"b": [2]}}"#, r#"{"a": {"b": [1], "\u0062": [2]}}"#] {
            let found = of_text(&layout(Format::Json, "a.b"), twice.as_bytes());
            assert!(matches!(&found[..], [Err(problem)] if problem.message.ends_with("is given twice")), "{found:?}");
        }
        check("a.b", r#"{"x": 1, "x": 2, "a": {"y": 1, "y": 1, "b": [{"z": 1, "z": 2}]}}"#, r#"{"z": 1, "z": 2}"#);
        check("a.b", r#"{"b": [1e400], "c": null, "a": {"b": [1]}}"#, "1");
    }

    #[test]
    fn invalid_json_is_reported_before_the_first_item() {
        for wrong in ["", "[1,]", "{\"a\": 1", "[1] x", "[1][2]", "{'a': 1}", "nul", "[1", "\"\u{1}\""] {
            let found = of_text(&layout(Format::Json, ""), wrong.as_bytes());
            assert!(
                matches!(&found[..], [Err(problem)] if problem.message.starts_with("is not a JSON doc")),
                "{wrong}"
            );
        }
        let deep = "[".repeat(200) + &"]".repeat(200);
        let found = of_text(&layout(Format::Json, ""), deep.as_bytes());
        assert!(found[0].as_ref().expect_err("deep").message.contains("nested deeper than 127"), "{found:?}");
    }

    #[test]
    fn d_a_long_item_takes_no_memory_and_others_follow() {
        let layout = Layout { item_bytes_max: 10, ..layout(Format::Json, "") };
        let found = of_text(&layout, format!("[1, \"{}\", 2]", "x".repeat(1_000_000)).as_bytes());
        let Ok(PositionedItem { item: Item::Unreadable { problem, text }, .. }) = &found[1] else {
            panic!("{found:?}")
        };
        assert!(problem.message.contains("longer than 10 bytes") && text.len() == 11);
        assert!(matches!(&found[2], Ok(PositionedItem { item: Item::Json(bytes), .. }) if bytes == b"2"));
    }
}
