//! Typed fields and rows.

use std::{borrow::Cow, sync::Arc};

use schemars::JsonSchema;
use serde::{
    Deserialize, Serialize,
    de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor},
};

use crate::{
    id::Name,
    json::{Budget, ValueSeed, without_mark},
    pack::{Reader, write_bytes, write_signed, write_varint},
    problem::{Code, PROBLEMS_MAX, Problem, and_more, closest},
    time::Timestamp,
    value::Value,
};

pub use crate::pack::Damaged;

/// Type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FieldType {
    /// `true` or `false`.
    Boolean,
    /// A 64-bit signed integer. JSON may give it as a number without fraction.
    Integer,
    /// A double. JSON may give it as any finite number.
    Number,
    /// Text.
    String,
    /// An instant, as text of RFC 3339 or as milliseconds since 1970.
    Timestamp,
    /// A list of any JSON values.
    List,
    /// An object of any JSON values.
    Map,
}

impl FieldType {
    /// Its name in the definition language.
    pub fn name(self) -> &'static str {
        match self {
            FieldType::Boolean => "boolean",
            FieldType::Integer => "integer",
            FieldType::Number => "number",
            FieldType::String => "string",
            FieldType::Timestamp => "timestamp",
            FieldType::List => "list",
            FieldType::Map => "map",
        }
    }

    /// Converts a text of an untyped format to this type: a cell of CSV, an element of XML, a header of a mail. The
    /// declared type decides, never the look of the text. A text that is not a value of the type stays a string, so
    /// that [`FieldType::accept`] refuses it. Except for strings, surrounding blanks are ignored, and a blank text is
    /// null.
    pub fn read_text(self, text: &str) -> Value {
        if self == FieldType::String {
            return Value::from(text);
        }
        let bare = text.trim();
        if bare.is_empty() {
            return Value::Null;
        }
        let is = |word: &str| bare.eq_ignore_ascii_case(word);
        let read = match self {
            FieldType::Boolean if is("true") || bare == "1" => Some(Value::Boolean(true)),
            FieldType::Boolean if is("false") || bare == "0" => Some(Value::Boolean(false)),
            FieldType::Boolean | FieldType::String => None,
            FieldType::Integer => bare.parse().ok().map(Value::Integer),
            FieldType::Number => bare.parse().ok().filter(|number: &f64| number.is_finite()).map(Value::Number),
            FieldType::Timestamp => bare.parse().ok().map(Value::Integer),
            FieldType::List | FieldType::Map => serde_json::from_str(bare).ok(),
        };
        read.unwrap_or_else(|| Value::from(bare))
    }

    /// Checks and converts a JSON value. Texts do not become numbers, and no digit is lost.
    ///
    /// # Errors
    /// A description of the given value.
    pub fn accept(self, value: Value) -> Result<Value, String> {
        let wrong =
            |value: &Value| Err(format!("should be {}, not {}", article(self.name()), article(value.type_name())));
        match (self, value) {
            (_, Value::Null) => Ok(Value::Null),
            (FieldType::Boolean, value @ Value::Boolean(_))
            | (FieldType::Integer, value @ Value::Integer(_))
            | (FieldType::Number, value @ Value::Number(_))
            | (FieldType::String, value @ Value::Text(_))
            | (FieldType::Timestamp, value @ Value::Timestamp(_))
            | (FieldType::List, value @ Value::List(_))
            | (FieldType::Map, value @ Value::Map(_)) => Ok(value),
            // From 2^53 on a double stands for several integers, so the original one is unknown.
            (FieldType::Integer, Value::Number(number))
                if number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0 =>
            {
                Ok(Value::Integer(number as i64))
            }
            (FieldType::Integer, Value::Number(_)) => {
                Err("should be an integer of 64 bits without fraction".to_owned())
            }
            (FieldType::Number, Value::Integer(integer)) => Ok(Value::Number(integer as f64)),
            (FieldType::Timestamp, Value::Text(text)) => {
                text.parse().map(Value::Timestamp).map_err(|error: crate::time::TimestampError| error.to_string())
            }
            (FieldType::Timestamp, Value::Integer(millis)) => {
                let time = Timestamp::from_millis(millis);
                match time.has_text() {
                    true => Ok(Value::Timestamp(time)),
                    false => {
                        Err(format!("{millis} milliseconds since 1970 lie outside of the years 0000 to 9999 in UTC"))
                    }
                }
            }
            (_, value) => wrong(&value),
        }
    }
}

fn article(noun: &str) -> String {
    match noun {
        "null" => noun.to_owned(),
        "integer" => format!("an {noun}"),
        _ => format!("a {noun}"),
    }
}

/// A typed field of a class.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Field {
    /// Its name.
    pub name: Name,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: FieldType,
    /// Whether a row without it is refused.
    pub required: bool,
    /// Value of a row without it; `Null` by default.
    pub default: Value,
    /// A description for readers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

impl Field {
    /// An optional field without a default.
    pub fn new(name: Name, kind: FieldType) -> Field {
        Field { name, kind, required: false, default: Value::Null, description: None }
    }
}

/// Fields of a class, in the order of their definition. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(transparent)]
pub struct Fields(Arc<[Field]>);

/// The values of one row, in the order of its class's fields.
pub type Row = Vec<Value>;

impl Fields {
    /// Fields in this order. Names must be distinct, which the definition's checks ensure.
    pub fn new(fields: Vec<Field>) -> Self {
        Fields(fields.into())
    }

    /// Index of the field of this name.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|field| field.name.as_str() == name)
    }

    /// The fields in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Field> {
        self.0.iter()
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks named values and returns the row, with defaults filled in.
    ///
    /// # Errors
    /// Every problem: unknown fields (with a suggestion), wrong types, missing values.
    pub fn row(&self, values: impl IntoIterator<Item = (impl AsRef<str>, Value)>) -> Result<Row, Vec<Problem>> {
        let mut checker = RowChecker::new(self, Check::Complete);
        for (name, value) in values {
            checker.take(name.as_ref(), value);
        }
        checker.finish().map(|(row, _)| row)
    }

    /// Parses a JSON object into a row, checked like [`Fields::row`]. Fast path of intake: scalars are stored
    /// directly.
    ///
    /// # Errors
    /// Every problem, or the position of a JSON syntax error.
    pub fn row_from_json(&self, json: &[u8]) -> Result<Row, Vec<Problem>> {
        self.checked_row(json, Check::Complete).map(|(row, _)| row)
    }

    /// Parses a JSON object into a row. Also returns the warnings.
    pub(crate) fn checked_row(&self, json: &[u8], check: Check<'_>) -> Result<(Row, Vec<Problem>), Vec<Problem>> {
        let mut reader = serde_json::Deserializer::from_slice(without_mark(json));
        let row = ObjectSeed { fields: self, check }.deserialize(&mut reader);
        let row = row.and_then(|row| reader.end().map(|()| row));
        row.unwrap_or_else(|error| Err(vec![not_json(&error)]))
    }

    /// Reads rows out of a larger JSON text, such as the elements of an array, checked like [`Fields::row`].
    pub fn row_seed<'de>(&self) -> impl DeserializeSeed<'de, Value = Result<Row, Vec<Problem>>> + '_ {
        RowSeed { fields: self }
    }

    /// The row as a JSON object, without its nulls. `row_from_stored` reads it.
    pub fn to_json(&self, row: &[Value]) -> String {
        let named: Vec<(&str, &Value)> = self
            .0
            .iter()
            .zip(row)
            .filter(|(_, value)| !value.is_null())
            .map(|(field, value)| (field.name.as_str(), value))
            .collect();
        let map = Value::Map(named.into_iter().map(|(name, value)| (name.into(), value.clone())).collect());
        serde_json::to_string(&map).expect("a value is always JSON")
    }

    /// The problem of an unknown field.
    pub fn unknown(&self, name: &str) -> Problem {
        let problem = Problem::new(Code::UnknownMember, name, "is not a field of this class");
        let problem = problem.known(name, self.0.iter().map(|field| field.name.as_str()));
        match closest(name, self.0.iter().map(|field| field.name.as_str())) {
            Some(meant) => problem.hint(format!("did you mean `{meant}`?")),
            None if self.0.is_empty() => problem.hint("the class has no fields"),
            None => {
                let names: Vec<&str> = self.0.iter().map(|field| field.name.as_str()).collect();
                problem.hint(format!("its fields are {}", names.join(", ")))
            }
        }
    }
}

impl std::ops::Index<usize> for Fields {
    type Output = Field;
    fn index(&self, at: usize) -> &Field {
        &self.0[at]
    }
}

fn not_json(error: &serde_json::Error) -> Problem {
    let position = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let mut message = error.to_string();
    // serde_json ends its message with the position, which the problem contains already.
    if let Some(at) = message.rfind(" at line ") {
        message.truncate(at);
    }
    let message = format!("is not a JSON object of this class: {message}");
    let problem = match error.is_data() {
        true => Problem::new(Code::WrongType, "", message).param("expected", "object"),
        false => Problem::syntax("json", "", message),
    };
    if error.line() > 0 { problem.position(position(error.line()), position(error.column())) } else { problem }
}

/// Strictness of the checks of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Check<'a> {
    /// All checks.
    Complete,
    /// Partial update: a required field may be missing where this stored row has no value for it.
    PartialUpdate(&'a [Value]),
    /// Unknown fields, wrong types and missing values are warnings.
    Lenient,
}

/// Deserialises one JSON object into a row of these fields.
struct RowSeed<'a> {
    fields: &'a Fields,
}

impl<'de> DeserializeSeed<'de> for RowSeed<'_> {
    type Value = Result<Row, Vec<Problem>>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let checked = ObjectSeed { fields: self.fields, check: Check::Complete }.deserialize(deserializer)?;
        Ok(checked.map(|(row, _)| row))
    }
}

/// The same with any check; also returns the warnings.
struct ObjectSeed<'a> {
    fields: &'a Fields,
    check: Check<'a>,
}

impl<'de> DeserializeSeed<'de> for ObjectSeed<'_> {
    type Value = Result<(Row, Vec<Problem>), Vec<Problem>>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ObjectSeed<'_> {
    type Value = Result<(Row, Vec<Problem>), Vec<Problem>>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object with the fields of the class")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut checker = RowChecker::new(self.fields, self.check);
        let mut budget = Budget::new();
        while let Some(name) = entries.next_key_seed(FieldName)? {
            let Some(at) = self.fields.position(&name) else {
                entries.next_value::<IgnoredAny>()?;
                checker.refuse_unknown(&name);
                continue;
            };
            let value = entries.next_value_seed(ValueSeed { bound: &mut budget, depth: 1 })?;
            match budget.excess.take() {
                None => checker.take_at(at, value),
                Some(message) => checker.refuse(Problem::new(Code::TooComplex, &*name, message)),
            }
        }
        Ok(checker.finish())
    }
}

/// Reads a key, borrowed where the JSON allows it.
struct FieldName;

impl<'de> DeserializeSeed<'de> for FieldName {
    type Value = Cow<'de, str>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for FieldName {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}

/// Collects named values and their problems.
struct RowChecker<'a> {
    fields: &'a Fields,
    check: Check<'a>,
    row: Row,
    given: Vec<bool>,
    problems: Vec<Problem>,
    /// Problems beyond the bound.
    more: usize,
    warnings: Vec<Problem>,
}

/// Longest field name in a problem, in characters.
const NAME_SHOWN_MAX: usize = 100;

impl<'a> RowChecker<'a> {
    fn new(fields: &'a Fields, check: Check<'a>) -> Self {
        RowChecker {
            fields,
            check,
            row: vec![Value::Null; fields.len()],
            given: vec![false; fields.len()],
            problems: Vec::new(),
            more: 0,
            warnings: Vec::new(),
        }
    }

    fn take(&mut self, name: &str, value: Value) {
        match self.fields.position(name) {
            Some(at) => self.take_at(at, value),
            None => self.refuse_unknown(name),
        }
    }

    fn take_at(&mut self, at: usize, value: Value) {
        let name = &self.fields[at].name;
        if std::mem::replace(&mut self.given[at], true) {
            return self.refuse(Problem::duplicate(name.as_str()));
        }
        match self.fields[at].kind.accept(value) {
            Ok(value) => self.row[at] = value,
            Err(message) => {
                let expected = self.fields[at].kind.name();
                self.object(Problem::new(Code::WrongType, name.as_str(), message).param("expected", expected));
            }
        }
    }

    fn refuse(&mut self, problem: Problem) {
        match self.problems.len() < PROBLEMS_MAX {
            true => self.problems.push(problem),
            false => self.more += 1,
        }
    }

    /// Reports a mismatch with this version of the class, as a problem or a warning.
    fn object(&mut self, problem: Problem) {
        match self.check {
            Check::Lenient if self.warnings.len() < PROBLEMS_MAX => self.warnings.push(problem),
            Check::Lenient => {}
            Check::Complete | Check::PartialUpdate(_) => self.refuse(problem),
        }
    }

    /// Reports an unknown name. A suggestion is computed only for problems that are shown.
    fn refuse_unknown(&mut self, name: &str) {
        if self.problems.len() >= PROBLEMS_MAX {
            self.more += 1;
            return;
        }
        let shown: String = name.chars().take(NAME_SHOWN_MAX).collect();
        self.object(match shown.len() == name.len() {
            true => self.fields.unknown(name),
            false => Problem::new(Code::UnknownMember, format!("{shown}…"), "is not a field of this class"),
        });
    }

    fn finish(mut self) -> Result<(Row, Vec<Problem>), Vec<Problem>> {
        for (at, field) in self.fields.iter().enumerate() {
            if !self.row[at].is_null() {
                continue;
            }
            self.row[at] = field.default.clone();
            let mut reported = self.problems.iter().chain(&self.warnings);
            let already_reported = reported.any(|problem| problem.path == field.name.as_str());
            let is_excused = matches!(self.check, Check::PartialUpdate(stored) if stored[at].is_null());
            if field.required && self.row[at].is_null() && !already_reported && !is_excused {
                self.object(missing(field));
            }
        }
        if self.more > 0 {
            self.problems.push(and_more(self.more));
        }
        if self.problems.is_empty() { Ok((self.row, self.warnings)) } else { Err(self.problems) }
    }
}

/// The problem of a required field without a value.
pub(crate) fn missing(field: &Field) -> Problem {
    Problem::new(Code::Required, field.name.as_str(), format!("is required: give {}", article(field.kind.name())))
        .param("expected", field.kind.name())
}

/// Appends the packed form of a row: a bitmap of non-null fields, then the values by type.
///
/// The row must be of these fields, as `Fields::row` makes it.
pub fn pack_row(fields: &Fields, row: &[Value], out: &mut Vec<u8>) {
    debug_assert_eq!(fields.len(), row.len());
    let bitmap = out.len();
    out.resize(bitmap + row.len().div_ceil(8), 0);
    for (at, value) in row.iter().enumerate() {
        if !value.is_null() {
            out[bitmap + at / 8] |= 1 << (at % 8);
            pack_value(value, out);
        }
    }
}

fn pack_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => {}
        Value::Boolean(value) => out.push(u8::from(*value)),
        Value::Integer(value) => write_signed(out, *value),
        Value::Number(value) => out.extend_from_slice(&value.to_le_bytes()),
        Value::Text(text) => write_bytes(out, text.as_bytes()),
        Value::Timestamp(time) => write_signed(out, time.0),
        Value::List(_) | Value::Map(_) => {
            let json = serde_json::to_vec(value).expect("a value is always JSON");
            write_varint(out, json.len() as u64);
            out.extend_from_slice(&json);
        }
    }
}

/// Unpacks a row of these fields.
///
/// # Errors
/// The bytes are not such a row.
pub fn unpack_row(fields: &Fields, bytes: &[u8]) -> Result<Row, Damaged> {
    let mut reader = Reader::new(bytes);
    let bitmap = reader.take(fields.len().div_ceil(8))?;
    let mut row = Vec::with_capacity(fields.len());
    for (at, field) in fields.iter().enumerate() {
        let present = bitmap[at / 8] & (1 << (at % 8)) != 0;
        row.push(if present { unpack_value(field.kind, &mut reader)? } else { Value::Null });
    }
    if reader.is_empty() { Ok(row) } else { Err(Damaged) }
}

fn unpack_value(kind: FieldType, reader: &mut Reader<'_>) -> Result<Value, Damaged> {
    Ok(match kind {
        FieldType::Boolean => Value::Boolean(reader.byte()? != 0),
        FieldType::Integer => Value::Integer(reader.signed()?),
        FieldType::Number => Value::Number(reader.float()?),
        FieldType::String => Value::from(reader.text()?),
        FieldType::Timestamp => Value::Timestamp(Timestamp(reader.signed()?)),
        FieldType::List | FieldType::Map => {
            let json: serde_json::Value = serde_json::from_slice(reader.bytes()?).map_err(|_| Damaged)?;
            Value::from(json)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Fields {
        let field = |name: &str, kind, required| Field {
            name: name.parse().expect("a name"),
            kind,
            required,
            default: Value::Null,
            description: None,
        };
        Fields::new(vec![
            field("symbol", FieldType::String, true),
            field("price", FieldType::Number, true),
            field("count", FieldType::Integer, false),
            field("at", FieldType::Timestamp, false),
            field("tags", FieldType::List, false),
        ])
    }

    fn check(text: &str, expected: Result<&str, &str>) {
        let json: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).expect("an object");
        let found = fields().row(json.into_iter().map(|(name, value)| (name, Value::from(value))));
        assert_eq!(found, fields().row_from_json(text.as_bytes()));
        match (found, expected) {
            (Ok(row), Ok(expected)) => {
                assert_eq!(serde_json::to_string(&row).expect("JSON"), expected);
                let mut packed = Vec::new();
                pack_row(&fields(), &row, &mut packed);
                assert_eq!(fields().row_from_stored(&fields().to_json(&row)), Ok(row.clone()));
                assert_eq!(unpack_row(&fields(), &packed), Ok(row));
                assert_eq!(unpack_row(&fields(), &packed[..packed.len() - 1]), Err(Damaged));
            }
            (Err(problems), Err(expected)) => {
                let found: Vec<String> = problems.iter().map(ToString::to_string).collect();
                assert_eq!(found.join("\n"), expected);
            }
            (found, _) => panic!("{found:?}"),
        }
    }

    #[test]
    fn a_row_is_checked_and_packed() {
        check(
            r#"{"symbol": "TOC", "price": 3, "count": 4.0, "at": 1500, "tags": [1, {"a": null}]}"#,
            Ok(r#"["TOC",3.0,4,"1970-01-01T00:00:01.5Z",[1,{"a":null}]]"#),
        );
        check(r#"{"symbol": "TOC", "price": 2.5}"#, Ok(r#"["TOC",2.5,null,null,null]"#));
    }

    #[test]
    fn a19_many_unknown_keys_are_counted_and_not_kept() {
        let keys: Vec<String> = (0..300_000).map(|at| format!("\"k{at}\":{{\"a\":[1,2]}}")).collect();
        let problems = fields().row_from_json(format!("{{{}}}", keys.join(",")).as_bytes()).expect_err("unknown keys");
        assert_eq!(problems.len(), 101);
        assert_eq!(problems[100].message, "and 299902 more");
        let long = format!("{{\"{}\":1}}", "k".repeat(1_000_000));
        let problems = fields().row_from_json(long.as_bytes()).expect_err("an unknown key");
        assert!(problems[0].path.len() < 110, "{}", problems[0].path.len());
    }

    #[test]
    fn a19_depth_and_values_of_a_field_are_bounded() {
        let problem = |tags: &str| {
            let text = format!(r#"{{"symbol": "A", "price": 1, "tags": {tags}, "count": 2}}"#);
            fields().row_from_json(text.as_bytes()).map(|_| ()).map_err(|problems| problems[0].to_string())
        };
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert_eq!(problem(&deep(100)), Ok(()));
        assert_eq!(problem(&deep(101)), Err("tags: is nested deeper than 100 lists and objects".to_owned()));
        assert_eq!(problem(&deep(100_000)), Err("tags: is nested deeper than 100 lists and objects".to_owned()));
        let objects = format!("[{}1{}]", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
        assert_eq!(problem(&objects), Err("tags: is nested deeper than 100 lists and objects".to_owned()));
        let wide = |count: usize| format!("[{}]", vec!["{}"; count].join(","));
        assert_eq!(problem(&wide(90_000)), Ok(()));
        assert_eq!(problem(&wide(1_000_000)), Err("tags: holds more than 100000 values and keys".to_owned()));
        // The text is still not JSON.
        assert!(problem(&"[".repeat(100_000)).expect_err("no end").contains("is not a JSON object of this class"));
    }

    #[test]
    fn b29_times_in_fields_have_the_range_of_their_text() {
        let read = |at: &str| {
            let text = format!(r#"{{"symbol": "A", "price": 1, "at": {at}}}"#);
            fields()
                .row_from_json(text.as_bytes())
                .map(|row| row[3].clone())
                .map_err(|problems| problems[0].to_string())
        };
        let last = Value::Timestamp("9999-12-31T23:59:59Z".parse().expect("a time"));
        assert_eq!(read("\"9999-12-31T23:59:59Z\""), Ok(last.clone()));
        assert_eq!(read("253402300799000"), Ok(last));
        assert_eq!(
            read("253402300800000"),
            Err("at: 253402300800000 milliseconds since 1970 lie outside of the years 0000 to 9999 in UTC".to_owned())
        );
        assert_eq!(
            read("\"9999-12-31T23:59:59-01:00\""),
            Err("at: `9999-12-31T23:59:59-01:00` lies outside of the years 0000 to 9999 in UTC".to_owned())
        );
    }

    #[test]
    fn a_byte_order_mark_before_json_is_ignored() {
        let with = "\u{feff}{\"symbol\": \"A\", \"price\": 1}";
        assert_eq!(fields().row_from_json(with.as_bytes()), fields().row_from_json(&with.as_bytes()[3..]));
    }

    #[test]
    fn an_integer_with_a_fraction_of_zero_is_exact_or_refused() {
        let count = |text: &str| {
            let json = format!("{{\"symbol\": \"A\", \"price\": 1, \"count\": {text}}}");
            let row = fields().row_from_json(json.as_bytes());
            row.map(|row| row.into_iter().find(|value| matches!(value, Value::Integer(_))))
        };
        assert_eq!(count("9007199254740991.0"), Ok(Some(Value::Integer(9_007_199_254_740_991))));
        assert_eq!(count("9007199254740993"), Ok(Some(Value::Integer(9_007_199_254_740_993))));
        // Both are the same double.
        for text in ["9007199254740992.0", "9007199254740993.0", "-9.007199254740993e15"] {
            let problems = count(text).expect_err(text);
            assert_eq!(problems[0].to_string(), "count: should be an integer of 64 bits without fraction", "{text}");
        }
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        check(
            r#"{"symbl": "TOC", "price": "3", "count": 1.5}"#,
            Err("symbl: is not a field of this class; did you mean `symbol`?\n\
                 price: should be a number, not a string\n\
                 count: should be an integer of 64 bits without fraction\n\
                 symbol: is required: give a string"),
        );
    }

    #[test]
    fn non_objects_are_reported_with_their_position() {
        let problem = |json: &str| fields().row_from_json(json.as_bytes()).expect_err("a problem")[0].to_string();
        assert_eq!(problem("{\"symbol\": tru}"), "1:15: is not a JSON object of this class: expected ident");
        assert_eq!(
            problem("[1]"),
            "1:0: is not a JSON object of this class: invalid type: sequence, expected an object with the fields of the class"
        );
        assert_eq!(problem(r#"{"symbol": "A", "symbol": "B", "price": 1}"#), "symbol: is given twice");
    }
}
