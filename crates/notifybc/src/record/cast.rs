//! Values of typed properties: dates, numbers, booleans and texts, from the JSON value or text of a request.

use jiff::{civil, fmt::rfc2822, tz::TimeZone};
use serde_json::{Number, Value};
use tocsin_model::time::Timestamp;

use super::{Collection, Kind};

/// Most bytes of a value in a message.
const SHOWN_MAX: usize = 200;

/// A value that is not of the type of its property. The text is that of the answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CastError {
    /// The property, as messages name it: `_id` for the id.
    pub path: String,
    /// The text of the answer, which has status 400.
    pub message: String,
}

impl CastError {
    /// The error of a text that is not an id.
    pub fn id(text: &str, collection: Collection) -> CastError {
        CastError::of("ObjectId", &Value::from(text), "_id").in_model(collection)
    }

    pub(crate) fn of(kind: &str, value: &Value, path: &str) -> CastError {
        let (shown, name) = (shown(value), type_name(value));
        let message = format!("Cast to {kind} failed for value {shown} (type {name}) at path \"{path}\"");
        CastError { path: path.to_owned(), message }
    }

    /// The error with the model that queries and updates name.
    pub fn in_model(mut self, collection: Collection) -> CastError {
        self.message += &format!(" for model \"{}\"", collection.model());
        self
    }
}

/// A value in double quotes.
fn shown(value: &Value) -> String {
    let mut text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.len() > SHOWN_MAX {
        let end = (0..=SHOWN_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    format!("\"{text}\"")
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "Array",
        Value::Object(_) => "Object",
    }
}

/// The value of a property of this kind. `Null` stays.
pub(crate) fn cast(kind: Kind, value: Value, path: &str) -> Result<Value, CastError> {
    let failed = |name: &str, value: &Value| CastError::of(name, value, path);
    match (kind, value) {
        (_, Value::Null) => Ok(Value::Null),
        (Kind::Mixed, value) => Ok(value),
        (Kind::Text, value) => match value {
            Value::String(_) => Ok(value),
            Value::Bool(_) | Value::Number(_) => Ok(Value::from(value.to_string())),
            value => Err(failed("string", &value)),
        },
        (Kind::Boolean, value) => match boolean(&value) {
            Some(flag) => Ok(Value::Bool(flag)),
            None => Err(failed("Boolean", &value)),
        },
        (Kind::Number, value) => match number(&value) {
            Some(number) => Ok(number.map_or(Value::Null, Value::Number)),
            None => Err(failed("Number", &value)),
        },
        (Kind::Date, value) => match &value {
            Value::String(text) if text.is_empty() => Ok(Value::Null),
            other => match date(other) {
                Some(time) => Ok(Value::from(date_text(time))),
                None => Err(failed("date", &value)),
            },
        },
        (Kind::Id, value) => match value.as_str().and_then(|text| text.parse::<super::RecordId>().ok()) {
            Some(id) => Ok(Value::from(id.to_string())),
            None => Err(failed("ObjectId", &value)),
        },
        (Kind::BounceMessages, value) => bounce_messages(value, path),
    }
}

/// A list of messages with dates. A single message counts as a list.
fn bounce_messages(value: Value, path: &str) -> Result<Value, CastError> {
    let items = match value {
        Value::Array(items) => items,
        Value::Object(item) => vec![Value::Object(item)],
        value => return Err(CastError::of("embedded", &value, path)),
    };
    let item = |(at, item): (usize, Value)| {
        let Value::Object(mut item) = item else { return Err(CastError::of("embedded", &item, path)) };
        if let Some(date) = item.get_mut("date") {
            *date = cast(Kind::Date, date.take(), &format!("{path}.{at}.date"))?;
        }
        if let Some(message) = item.get_mut("message") {
            *message = cast(Kind::Text, message.take(), &format!("{path}.{at}.message"))?;
        }
        Ok(Value::Object(item))
    };
    items.into_iter().enumerate().map(item).collect::<Result<Vec<Value>, CastError>>().map(Value::Array)
}

fn boolean(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(flag) => Some(*flag),
        Value::Number(number) if number.as_f64() == Some(1.0) => Some(true),
        Value::Number(number) if number.as_f64() == Some(0.0) => Some(false),
        Value::String(text) => match text.as_str() {
            "true" | "1" | "yes" => Some(true),
            "false" | "0" | "no" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

/// The number of a value; `None` within for an empty text.
fn number(value: &Value) -> Option<Option<Number>> {
    match value {
        Value::Number(number) => Some(Some(number.clone())),
        Value::Bool(flag) => Some(Some(Number::from(u8::from(*flag)))),
        Value::String(text) => match text.trim() {
            "" => Some(None),
            text => number_of_text(text).map(Some),
        },
        _ => None,
    }
}

/// The number of a decimal text.
pub(crate) fn number_of_text(text: &str) -> Option<Number> {
    if let Ok(whole) = text.parse::<i64>() {
        return Some(Number::from(whole));
    }
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | 'e' | 'E');
    let number = text.chars().all(is_number).then(|| text.parse::<f64>().ok())??;
    Number::from_f64(number)
}

/// The instant of a value: a number of milliseconds, or a text.
fn date(value: &Value) -> Option<Timestamp> {
    match value {
        Value::Number(number) => number.as_f64().and_then(millis),
        Value::String(text) => parse_date(text),
        _ => None,
    }
}

/// The instant of this many milliseconds, if a date can have it.
fn millis(number: f64) -> Option<Timestamp> {
    let time = Timestamp::from_millis(number.trunc() as i64);
    (number.is_finite() && time.has_text()).then_some(time)
}

/// The instant of a date in any ISO 8601 form: a year, month or day (midnight UTC), or a time with or without an
/// offset (then UTC). The form of mail and feeds, and milliseconds in digits, are read too.
pub fn parse_date(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    // Numbers that cannot be a year are milliseconds.
    if let Ok(number) = text.parse::<f64>()
        && !(-271_820.0..275_761.0).contains(&number)
    {
        return millis(number);
    }
    let whole = |time: jiff::Timestamp| Some(Timestamp::from_millis(time.as_millisecond()));
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return whole(time);
    }
    let in_utc = |time: civil::DateTime| time.to_zoned(TimeZone::UTC).ok().and_then(|time| whole(time.timestamp()));
    if let Ok(time) = text.parse::<civil::DateTime>() {
        return in_utc(time);
    }
    let digits = |part: &str, count: usize| part.len() == count && part.bytes().all(|byte| byte.is_ascii_digit());
    match text.split_once('-') {
        None if digits(text, 4) => in_utc(format!("{text}-01-01").parse().ok()?),
        Some((year, month)) if digits(year, 4) && digits(month, 2) => in_utc(format!("{text}-01").parse().ok()?),
        _ => rfc2822::parse(text).ok().and_then(|time| whole(time.timestamp())),
    }
}

/// The text of a date in records: UTC with milliseconds.
pub fn date_text(time: Timestamp) -> String {
    let millis = time.as_millis();
    let seconds = Timestamp::from_millis(millis.div_euclid(1_000) * 1_000).to_string();
    format!("{}.{:03}Z", seconds.trim_end_matches('Z'), millis.rem_euclid(1_000))
}

/// Whether JavaScript takes a value for true.
pub fn truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(_) | Value::Object(_) => true,
    }
}
