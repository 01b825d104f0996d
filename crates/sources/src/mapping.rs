//! Maps an item to a row of the event class: by field names, or by configured paths.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use serde_json::{Value as Json, value::RawValue};
use tocsin_model::{
    field::{FieldType, Fields, Row},
    problem::{Code, Problem},
    value::Value,
};

use crate::items::{Cell, Element, Item};

/// The byte-order mark of UTF-8.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// The mapping of items to rows.
pub(crate) struct Mapping {
    fields: Fields,
    /// The path of each field; empty: items use the field names.
    paths: Vec<(usize, Path)>,
}

/// A pointer to one value of an item.
pub(crate) struct Pointer(Path);

/// A value that a pointer finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PointedValue {
    /// A text, as in CSV, in XML and in JSON strings.
    Text(String),
    /// Another JSON value, in JSON.
    Json(String),
}

impl PointedValue {
    /// The value without its type.
    pub fn text(&self) -> &str {
        let (PointedValue::Text(text) | PointedValue::Json(text)) = self;
        text
    }
}

impl Pointer {
    /// From a checked path.
    pub fn new(path: &str) -> Option<Pointer> {
        parse_path(path).ok().map(Pointer)
    }

    /// The value; `None` for null and for a missing one.
    pub fn value(&self, item: &Item) -> Option<PointedValue> {
        match item {
            Item::Json(bytes) => json_value(self.0.in_raw_json(serde_json::from_slice(bytes).ok()?)?),
            Item::Texts(json) => match self.0.in_json(json)? {
                Json::Null => None,
                Json::String(text) => Some(PointedValue::Text(text.clone())),
                other => Some(PointedValue::Json(other.to_string())),
            },
            Item::Cells { names, cells } => {
                let text = self.0.in_cells(names, cells)?.text().ok().flatten()?;
                Some(PointedValue::Text(text.to_owned()))
            }
            Item::Xml(element) => self.0.in_element(element).map(PointedValue::Text),
            Item::Unreadable { .. } => None,
        }
    }
}

/// The value of a JSON text. Integers keep all their digits.
fn json_value(raw: &RawValue) -> Option<PointedValue> {
    let is_integer = |text: &str| text != "-0" && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    if is_integer(raw.get()) {
        return Some(PointedValue::Json(raw.get().to_owned()));
    }
    match serde_json::from_str(raw.get()).ok()? {
        Json::Null => None,
        Json::String(text) => Some(PointedValue::Text(text)),
        other => Some(PointedValue::Json(other.to_string())),
    }
}

/// The problem of a path in an option.
pub(crate) fn path_problem(option: &str, path: &str) -> Option<Problem> {
    let message = parse_path(path).err()?;
    Some(
        Problem::new(Code::InvalidFormat, option, message)
            .param("format", "path")
            .hint("such as `id`, `properties.updated`, `@id`"),
    )
}

/// A path to a value in an item.
#[derive(Debug, Clone, PartialEq)]
struct Path(Vec<Segment>);

#[derive(Debug, Clone, PartialEq)]
enum Segment {
    /// A name: of a member, a column, an element.
    Name(Arc<str>),
    /// An attribute of an element.
    Attribute(Arc<str>),
    /// An item of a list by its index, from 0.
    Index(usize),
}

impl Mapping {
    /// From checked paths.
    pub fn new(fields: &Fields, paths: &BTreeMap<String, String>) -> Mapping {
        let parse = |(field, path): (&String, &String)| Some((fields.position(field)?, parse_path(path).ok()?));
        Mapping { fields: fields.clone(), paths: paths.iter().filter_map(parse).collect() }
    }

    /// The configured paths, or each field's own name, for items with more members than the class has.
    pub fn or_names(fields: &Fields, given: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        match given.is_empty() {
            true => fields.iter().map(|field| (field.name.to_string(), field.name.to_string())).collect(),
            false => given.clone(),
        }
    }

    /// The columns that a record must have: those of the paths, or of the required fields.
    pub fn names(&self) -> Vec<String> {
        match self.paths.is_empty() {
            true => {
                let required = self.fields.iter().filter(|field| field.required && field.default.is_null());
                required.map(|field| field.name.to_string()).collect()
            }
            false => self.paths.iter().map(|(_, path)| path.shown()).collect(),
        }
    }

    /// Problems of field paths, at `fields.name`.
    pub fn problems(fields: &Fields, paths: &BTreeMap<String, String>) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (field, path) in paths {
            let at = format!("fields.{field}");
            if fields.position(field).is_none() {
                problems.push(Problem { path: at.clone(), ..fields.unknown(field) });
            }
            if let Err(message) = parse_path(path) {
                problems.push(
                    Problem::new(Code::InvalidFormat, at, message)
                        .param("format", "path")
                        .hint("such as `properties.mag`, `geometry.coordinates[0]`, `$`"),
                );
            }
        }
        let forgotten = fields.iter().filter(|field| {
            !paths.is_empty() && field.required && field.default.is_null() && !paths.contains_key(field.name.as_str())
        });
        problems.extend(forgotten.map(|field| {
            Problem::new(Code::Required, "fields", format!("`{}` is required by the class and has no path", field.name))
        }));
        problems
    }

    /// Maps an item.
    ///
    /// # Errors
    /// All problems, by field.
    pub fn row(&self, item: &Item) -> Result<Row, Vec<Problem>> {
        match item {
            Item::Unreadable { problem, .. } => Err(vec![problem.clone()]),
            // Some programs write a byte-order mark before each message.
            Item::Json(bytes) if bytes.starts_with(BOM) => self.row(&Item::Json(bytes[BOM.len()..].to_vec())),
            Item::Json(bytes) if bytes.trim_ascii().is_empty() => {
                Err(vec![Problem::new(Code::Empty, "", "is empty, and should be a JSON value")])
            }
            Item::Json(bytes) if self.paths.is_empty() => self.fields.row_from_json(bytes),
            Item::Json(bytes) => {
                let json: Json = serde_json::from_slice(bytes).map_err(|error| vec![not_json(&error)])?;
                if !self.paths.iter().any(|(_, path)| path.may_match(&json)) {
                    let found = if json.is_array() { "a list" } else { "a single value or null" };
                    let problem =
                        Problem::new(Code::WrongType, "", format!("is {found}, which no path of `fields` matches"));
                    return Err(vec![problem.hint("an item is an object; the path `$` is the item itself")]);
                }
                self.row_by(|path, _| Some(Value::from(path.in_json(&json)?.clone())))
            }
            Item::Cells { names, cells } if self.paths.is_empty() => {
                check_cells(names.iter().map(String::as_str).zip(cells))?;
                let named = names.iter().zip(cells);
                let value = |name: &str, cell: &Cell| match cell {
                    Cell::Text(text) => self.by_name(name, text),
                    _ => Value::Null,
                };
                self.fields.row(named.map(|(name, cell)| (name, value(name, cell))))
            }
            Item::Cells { names, cells } => {
                let unknown = |path: &Path| !path.in_names(names);
                if let Some((at, path)) = self.paths.iter().find(|(_, path)| unknown(path)) {
                    let message = format!("refers to the column `{}`, which does not exist", path.shown());
                    let problem = Problem::new(Code::UnknownReference, self.fields[*at].name.as_str(), message);
                    return Err(vec![problem.param("kind", "column")]);
                }
                let mapped =
                    |(at, path): &(usize, Path)| Some((self.fields[*at].name.as_str(), path.in_cells(names, cells)?));
                check_cells(self.paths.iter().filter_map(mapped))?;
                self.row_by(|path, kind| match path.in_cells(names, cells)? {
                    Cell::Text(text) => Some(kind.read_text(text)),
                    _ => None,
                })
            }
            Item::Xml(element) if self.paths.is_empty() => {
                self.fields.row(element.leaves().map(|(name, text)| (name, self.by_name(name, &text))))
            }
            Item::Xml(element) => self.row_by(|path, kind| Some(kind.read_text(&path.in_element(element)?))),
            Item::Texts(json) => self.row_by(|path, kind| match path.in_json(json)? {
                Json::String(text) => Some(kind.read_text(text)),
                other => Some(Value::from(other.clone())),
            }),
        }
    }

    fn row_by(&self, find: impl Fn(&Path, FieldType) -> Option<Value>) -> Result<Row, Vec<Problem>> {
        let named = self.paths.iter().filter_map(|(at, path)| {
            let field = &self.fields[*at];
            Some((field.name.as_str(), find(path, field.kind)?))
        });
        self.fields.row(named)
    }

    /// The value of a text, by the type of the field with its name; unknown names are left to the class check.
    fn by_name(&self, name: &str, text: &str) -> Value {
        match self.fields.position(name) {
            Some(at) => self.fields[at].kind.read_text(text),
            None => Value::from(text),
        }
    }
}

/// Checks for cells that are not valid field values.
fn check_cells<'a>(mut named: impl Iterator<Item = (&'a str, &'a Cell)>) -> Result<(), Vec<Problem>> {
    match named.find_map(|(name, cell)| Some((name, cell.text().err()?))) {
        Some((name, reason)) => Err(vec![Problem::new(Code::WrongType, name, reason)]),
        None => Ok(()),
    }
}

fn not_json(error: &serde_json::Error) -> Problem {
    let mut message = error.to_string();
    if let Some(at) = message.rfind(" at line ") {
        message.truncate(at);
    }
    Problem::syntax("json", "", format!("is not JSON: {message}"))
}

/// Parses `a.b[0].c`, `a/b/@c`, `["a.b"]`; `$` and `.` are the item itself.
fn parse_path(text: &str) -> Result<Path, String> {
    let mut segments = Vec::new();
    let mut rest = text.strip_prefix('$').unwrap_or(text);
    if matches!(rest, "" | ".") {
        return if text.is_empty() { Err("is empty".to_owned()) } else { Ok(Path(segments)) };
    }
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let end = inner.find(']').ok_or("has `[` without `]`")?;
            let (inside, after) = (&inner[..end], &inner[end + 1..]);
            segments.push(match inside.strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
                Some(name) => Segment::Name(name.into()),
                None => Segment::Index(inside.parse().map_err(|_| format!("`[{inside}]` is not a number or a name"))?),
            });
            rest = after;
            continue;
        }
        rest = rest.strip_prefix(['.', '/']).unwrap_or(rest);
        let end = rest.find(['.', '/', '[']).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        segments.push(match name.strip_prefix('@') {
            _ if matches!(name, "" | "@") => return Err("has a part without a name".to_owned()),
            Some(attribute) => Segment::Attribute(attribute.into()),
            None => Segment::Name(name.into()),
        });
        rest = after;
    }
    Ok(Path(segments))
}

impl Path {
    /// Whether the path can match a value in an item of this type.
    fn may_match(&self, json: &Json) -> bool {
        match self.0.first() {
            None => true,
            Some(Segment::Index(_)) => json.is_array(),
            Some(Segment::Name(_) | Segment::Attribute(_)) => json.is_object(),
        }
    }

    fn in_json<'a>(&self, json: &'a Json) -> Option<&'a Json> {
        self.0.iter().try_fold(json, |json, segment| match segment {
            Segment::Name(name) | Segment::Attribute(name) => json.get(&**name),
            Segment::Index(at) => json.get(at),
        })
    }

    /// The value at the path, as it is written.
    fn in_raw_json<'a>(&self, json: &'a RawValue) -> Option<&'a RawValue> {
        self.0.iter().try_fold(json, |json, segment| match segment {
            Segment::Name(name) | Segment::Attribute(name) => {
                let members: HashMap<String, &RawValue> = serde_json::from_str(json.get()).ok()?;
                members.get(&**name).copied()
            }
            Segment::Index(at) => {
                let elements: Vec<&RawValue> = serde_json::from_str(json.get()).ok()?;
                elements.get(*at).copied()
            }
        })
    }

    /// The name of the column, if it is a single name. Column names are arbitrary, so the whole path is tried as one
    /// name.
    fn shown(&self) -> String {
        let shown = self.0.iter().map(|segment| match segment {
            Segment::Name(name) => name.to_string(),
            Segment::Attribute(name) => format!("@{name}"),
            Segment::Index(at) => format!("[{at}]"),
        });
        shown.collect::<Vec<_>>().join(".")
    }

    fn in_names(&self, names: &[String]) -> bool {
        let shown = self.shown();
        names.contains(&shown)
    }

    fn in_cells<'a>(&self, names: &[String], cells: &'a [Cell]) -> Option<&'a Cell> {
        let shown = self.shown();
        let at = names.iter().position(|name| *name == shown)?;
        cells.get(at)
    }

    fn in_element(&self, element: &Element) -> Option<String> {
        let mut element = element;
        let mut segments = self.0.iter().peekable();
        while let Some(segment) = segments.next() {
            match segment {
                Segment::Attribute(name) => return element.attribute(name).map(str::to_owned),
                Segment::Name(name) => {
                    let at = match segments.peek() {
                        Some(Segment::Index(at)) => {
                            let at = *at;
                            segments.next();
                            at
                        }
                        _ => 0,
                    };
                    element = element.children_of(name).nth(at)?;
                }
                Segment::Index(at) => element = element.children.get(*at)?,
            }
        }
        Some(element.whole_text().into_owned())
    }
}

#[cfg(test)]
mod tests {
    use tocsin_model::field::Field;

    use super::*;

    fn fields(of: &[(&str, FieldType)]) -> Fields {
        let field = |(name, kind): &(&str, FieldType)| Field::new(name.parse().expect("a name"), *kind);
        Fields::new(of.iter().map(field).collect())
    }

    #[test]
    fn paths_lead_into_json() {
        let json = r#"{"id": "us7", "properties": {"mag": 6.1, "a.b": 1}, "geometry": {"coordinates": [10, 20.5]}}"#;
        let check = |path: &str, expected: &str| {
            let path = parse_path(path).expect("a path");
            let json: Json = serde_json::from_str(json).expect("JSON");
            assert_eq!(path.in_json(&json).map(ToString::to_string).unwrap_or_default(), expected);
        };
        check("id", "\"us7\"");
        check("$.properties.mag", "6.1");
        check("properties/mag", "6.1");
        check("geometry.coordinates[1]", "20.5");
        check("properties[\"a.b\"]", "1");
        check("geometry.coordinates[2]", "");
        check("properties.mag.x", "");
        assert_eq!(parse_path("$"), Ok(Path(Vec::new())));
        for wrong in ["", "a..b", "a[", "a[x]", "@", "a/@"] {
            assert!(parse_path(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn d_a_pointer_keeps_the_type_and_all_digits() {
        let json = br#"{"a": {"n": 18446744073709551617, "x": 1, "x": [true, "1", 1.10, {"b": 1}, null]}, "e": ""}"#;
        let item = Item::Json(json.to_vec());
        let value = |path: &str| Pointer::new(path).expect("a path").value(&item);
        let (text, json) = (
            |text: &str| Some(PointedValue::Text(text.to_owned())),
            |json: &str| Some(PointedValue::Json(json.to_owned())),
        );
        assert_eq!(value("a.n"), json("18446744073709551617"));
        assert_eq!((value("a.x[0]"), value("a.x[1]"), value("a.x[2]")), (json("true"), text("1"), json("1.1")));
        assert_eq!((value("a.x[3]"), value("a.x[4]"), value("e")), (json(r#"{"b":1}"#), None, text("")));
        assert_eq!((value("a.x[5]"), value("a.n.b"), value("b")), (None, None, None));
    }

    #[test]
    fn texts_are_parsed_by_the_types_of_the_class() {
        let fields = fields(&[
            ("big", FieldType::Boolean),
            ("count", FieldType::Integer),
            ("size", FieldType::Number),
            ("place", FieldType::String),
            ("at", FieldType::Timestamp),
            ("tags", FieldType::List),
        ]);
        let row = |cells: [&str; 6]| {
            let names = ["big", "count", "size", "place", "at", "tags"].map(str::to_owned).to_vec();
            let item =
                Item::Cells { names: names.into(), cells: cells.map(|cell| Cell::Text(cell.to_owned())).to_vec() };
            match Mapping::new(&fields, &BTreeMap::new()).row(&item) {
                Ok(row) => fields.to_json(&row),
                Err(problems) => problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
            }
        };
        assert_eq!(
            row(["1", " 42", "-1.5e3", " Kobe ", "2026-11-22T10:00:00Z", "[1]"]),
            r#"{"big":true,"count":42,"size":-1500.0,"place":" Kobe ","at":"2026-11-22T10:00:00Z","tags":[1]}"#
        );
        assert_eq!(row(["", "", "", "", "1000", ""]), r#"{"place":"","at":"1970-01-01T00:00:01Z"}"#);
        assert_eq!(
            row(["yes", "4.5", "inf", "", "soon", "x"]),
            "big: should be a boolean, not a string\ncount: should be an integer, not a string\n\
             size: should be a number, not a string\n\
             at: `soon` is not a date and time of RFC 3339, such as `2026-11-21T09:30:00Z`\n\
             tags: should be a list, not a string"
        );
    }

    #[test]
    fn an_item_that_no_path_matches_is_refused() {
        let fields = fields(&[("place", FieldType::String), ("size", FieldType::Number)]);
        let row = |path: &str, item: &str| {
            let paths = BTreeMap::from([("size".to_owned(), path.to_owned())]);
            Mapping::new(&fields, &paths).row(&Item::Json(item.into())).map(|row| fields.to_json(&row))
        };
        for item in ["7", "null", "true", "\"x\"", "[{\"size\": 7}]"] {
            let problems = row("size", item).expect_err("no object");
            assert!(problems[0].message.contains("no path of `fields` matches"), "{item}: {problems:?}");
        }
        assert_eq!(row("size", "{}").as_deref(), Ok("{}"));
        assert_eq!(row("$", "7").as_deref(), Ok(r#"{"size":7.0}"#));
        assert_eq!(row("$[1]", "[1, 7]").as_deref(), Ok(r#"{"size":7.0}"#));
    }

    #[test]
    fn d_a_byte_order_mark_before_a_message_is_ignored() {
        let fields = fields(&[("place", FieldType::String)]);
        let paths = BTreeMap::from([("place".to_owned(), "place".to_owned())]);
        for paths in [BTreeMap::new(), paths] {
            let item = Item::Json([BOM, br#"{"place": "Kobe"}"#].concat());
            let row = Mapping::new(&fields, &paths).row(&item).expect("JSON behind the mark");
            assert_eq!(fields.to_json(&row), r#"{"place":"Kobe"}"#);
        }
    }

    #[test]
    fn a_mapping_names_fields_of_the_class() {
        let fields = fields(&[("place", FieldType::String)]);
        let paths = [("plase", "a"), ("place", "a[")].map(|(field, path)| (field.to_owned(), path.to_owned()));
        let problems = Mapping::problems(&fields, &BTreeMap::from(paths));
        let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(shown.len(), 2, "{shown:?}");
        assert!(shown[1].starts_with("fields.plase: is not a field of this class; did you mean `place`?"), "{shown:?}");
    }
}
