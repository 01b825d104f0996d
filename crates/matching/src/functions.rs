//! The functions of the language: what they take, what they give, and how they compute it.

mod format; // `format` and `strings.quote`
mod math; // `math.greatest` and its like
pub mod optional; // values that may be absent

use std::{cmp::Ordering, rc::Rc};

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
    prelude::BASE64_STANDARD,
};
use jiff::tz::TimeZone;
use tocsin_model::time::Timestamp;

use crate::{
    datum::{Datum, List, Trouble},
    evaluate::Steps,
    expression::{Function, Type},
    regular::Pattern,
};

/// Mean radius of the Earth, in kilometres (IUGG).
pub const EARTH_RADIUS_KM: f64 = 6371.0088;

/// The years 1 to 9999, which are CEL's range, in microseconds since 1970.
const TIMESTAMPS: std::ops::RangeInclusive<i64> = -62_135_596_800_000_000..=253_402_300_799_999_999;

/// Base64 with or without padding, as CEL's encoders extension decodes it.
const BASE64_LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// About 10,000 years, in microseconds; what a duration of CEL may be written as.
const DURATION_MAX: i64 = 315_576_000_000_000_000;

/// What compiling a regular expression costs, in steps.
const COMPILING: usize = 30_000;

/// What an argument may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    Anything,
    Integer,
    Numeric,
    Text,
    Bytes,
    List,
    Timestamp,
    Duration,
}

impl Takes {
    pub fn accepts(self, given: &Type) -> bool {
        match (self, given) {
            (Takes::Anything, _) | (_, Type::Dynamic) => true,
            (Takes::Integer, Type::Integer)
            | (Takes::Text, Type::Text)
            | (Takes::Bytes, Type::Bytes)
            | (Takes::List, Type::List(_))
            | (Takes::Timestamp, Type::Timestamp)
            | (Takes::Duration, Type::Duration) => true,
            (Takes::Numeric, given) => given.is_numeric(),
            _ => false,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Takes::Anything => "any",
            Takes::Integer => "int",
            Takes::Numeric => "number",
            Takes::Text => "string",
            Takes::Bytes => "bytes",
            Takes::List => "list",
            Takes::Timestamp => "timestamp",
            Takes::Duration => "duration",
        }
    }
}

/// One way to call a function. A method's first argument stands before the dot.
#[derive(Debug)]
pub struct Signature {
    pub name: &'static str,
    pub method: bool,
    pub takes: &'static [Takes],
    pub gives: fn() -> Type,
    pub function: Function,
}

impl Signature {
    /// As one would write it.
    pub fn show(&self) -> String {
        let names: Vec<&str> = self.takes.iter().map(|takes| takes.name()).collect();
        match (self.method, names.split_first()) {
            (true, Some((target, rest))) => format!("{target}.{}({})", self.name, rest.join(", ")),
            _ => format!("{}({})", self.name, names.join(", ")),
        }
    }
}

macro_rules! signatures {
    ($($how:ident $name:literal ($($takes:ident),*) -> $gives:expr => $function:ident;)*) => {
        &[$(Signature {
            name: $name,
            method: matches!(stringify!($how).as_bytes(), b"method"),
            takes: &[$(Takes::$takes),*],
            gives: || $gives,
            function: Function::$function,
        }),*]
    };
}

/// Every way to call every function.
pub const SIGNATURES: &[Signature] = signatures! {
    global "size"(Anything) -> Type::Integer => Size;
    method "size"(Anything) -> Type::Integer => Size;
    method "startsWith"(Text, Text) -> Type::Boolean => StartsWith;
    method "endsWith"(Text, Text) -> Type::Boolean => EndsWith;
    method "contains"(Text, Text) -> Type::Boolean => Contains;
    method "contains_ci"(Text, Text) -> Type::Boolean => ContainsCi;
    global "contains_ci"(Text, Text) -> Type::Boolean => ContainsCi;
    method "matches"(Text, Text) -> Type::Boolean => Matches;
    global "matches"(Text, Text) -> Type::Boolean => Matches;
    method "lowerAscii"(Text) -> Type::Text => LowerAscii;
    method "upperAscii"(Text) -> Type::Text => UpperAscii;
    method "trim"(Text) -> Type::Text => Trim;
    method "replace"(Text, Text, Text) -> Type::Text => Replace;
    method "replace"(Text, Text, Text, Integer) -> Type::Text => Replace;
    method "split"(Text, Text) -> Type::List(Box::new(Type::Text)) => Split;
    method "split"(Text, Text, Integer) -> Type::List(Box::new(Type::Text)) => Split;
    method "join"(List) -> Type::Text => Join;
    method "join"(List, Text) -> Type::Text => Join;
    method "substring"(Text, Integer) -> Type::Text => Substring;
    method "substring"(Text, Integer, Integer) -> Type::Text => Substring;
    method "charAt"(Text, Integer) -> Type::Text => CharAt;
    method "indexOf"(Text, Text) -> Type::Integer => IndexOf;
    method "indexOf"(Text, Text, Integer) -> Type::Integer => IndexOf;
    method "lastIndexOf"(Text, Text) -> Type::Integer => LastIndexOf;
    method "lastIndexOf"(Text, Text, Integer) -> Type::Integer => LastIndexOf;
    method "format"(Text, List) -> Type::Text => Format;
    global "strings.quote"(Text) -> Type::Text => Quote;
    method "reverse"(Text) -> Type::Text => Reverse;
    global "int"(Anything) -> Type::Integer => ToInteger;
    global "uint"(Anything) -> Type::Unsigned => ToUnsigned;
    global "bytes"(Anything) -> Type::Bytes => ToBytes;
    global "type"(Anything) -> Type::Type => TypeOf;
    global "double"(Anything) -> Type::Number => ToNumber;
    global "string"(Anything) -> Type::Text => ToText;
    global "bool"(Anything) -> Type::Boolean => ToBoolean;
    global "timestamp"(Anything) -> Type::Timestamp => ToTimestamp;
    global "duration"(Anything) -> Type::Duration => ToDuration;
    global "dyn"(Anything) -> Type::Dynamic => ToDynamic;
    method "getFullYear"(Timestamp) -> Type::Integer => FullYear;
    method "getFullYear"(Timestamp, Text) -> Type::Integer => FullYear;
    method "getMonth"(Timestamp) -> Type::Integer => Month;
    method "getMonth"(Timestamp, Text) -> Type::Integer => Month;
    method "getDayOfMonth"(Timestamp) -> Type::Integer => DayOfMonth;
    method "getDayOfMonth"(Timestamp, Text) -> Type::Integer => DayOfMonth;
    method "getDate"(Timestamp) -> Type::Integer => Date;
    method "getDate"(Timestamp, Text) -> Type::Integer => Date;
    method "getDayOfYear"(Timestamp) -> Type::Integer => DayOfYear;
    method "getDayOfYear"(Timestamp, Text) -> Type::Integer => DayOfYear;
    method "getDayOfWeek"(Timestamp) -> Type::Integer => DayOfWeek;
    method "getDayOfWeek"(Timestamp, Text) -> Type::Integer => DayOfWeek;
    method "getHours"(Timestamp) -> Type::Integer => Hours;
    method "getHours"(Timestamp, Text) -> Type::Integer => Hours;
    method "getHours"(Duration) -> Type::Integer => Hours;
    method "getMinutes"(Timestamp) -> Type::Integer => Minutes;
    method "getMinutes"(Timestamp, Text) -> Type::Integer => Minutes;
    method "getMinutes"(Duration) -> Type::Integer => Minutes;
    method "getSeconds"(Timestamp) -> Type::Integer => Seconds;
    method "getSeconds"(Timestamp, Text) -> Type::Integer => Seconds;
    method "getSeconds"(Duration) -> Type::Integer => Seconds;
    method "getMilliseconds"(Timestamp) -> Type::Integer => Milliseconds;
    method "getMilliseconds"(Timestamp, Text) -> Type::Integer => Milliseconds;
    method "getMilliseconds"(Duration) -> Type::Integer => Milliseconds;
    global "distance_km"(Numeric, Numeric, Numeric, Numeric) -> Type::Number => DistanceKm;
    global "base64.encode"(Bytes) -> Type::Text => Base64Encode;
    global "base64.decode"(Text) -> Type::Bytes => Base64Decode;
    global "math.greatest"(List) -> Type::Dynamic => Greatest;
    global "math.greatest"(Numeric) -> Type::Dynamic => Greatest;
    global "math.least"(List) -> Type::Dynamic => Least;
    global "math.least"(Numeric) -> Type::Dynamic => Least;
    global "math.ceil"(Numeric) -> Type::Number => Ceil;
    global "math.floor"(Numeric) -> Type::Number => Floor;
    global "math.round"(Numeric) -> Type::Number => Round;
    global "math.trunc"(Numeric) -> Type::Number => Trunc;
    global "math.sqrt"(Numeric) -> Type::Number => Sqrt;
    global "math.abs"(Numeric) -> Type::Dynamic => Abs;
    global "math.sign"(Numeric) -> Type::Dynamic => Sign;
    global "math.isNaN"(Numeric) -> Type::Boolean => IsNan;
    global "math.isInf"(Numeric) -> Type::Boolean => IsInf;
    global "math.isFinite"(Numeric) -> Type::Boolean => IsFinite;
    global "math.bitAnd"(Numeric, Numeric) -> Type::Dynamic => BitAnd;
    global "math.bitOr"(Numeric, Numeric) -> Type::Dynamic => BitOr;
    global "math.bitXor"(Numeric, Numeric) -> Type::Dynamic => BitXor;
    global "math.bitNot"(Numeric) -> Type::Dynamic => BitNot;
    global "math.bitShiftLeft"(Numeric, Integer) -> Type::Dynamic => ShiftLeft;
    global "math.bitShiftRight"(Numeric, Integer) -> Type::Dynamic => ShiftRight;
    global "optional.none"() -> Type::Dynamic => OptionalNone;
    global "optional.of"(Anything) -> Type::Dynamic => OptionalOf;
    global "optional.ofNonZeroValue"(Anything) -> Type::Dynamic => OptionalOfNonZero;
    method "hasValue"(Anything) -> Type::Boolean => HasValue;
    method "value"(Anything) -> Type::Dynamic => OptionalValue;
    method "or"(Anything, Anything) -> Type::Dynamic => Or;
    method "orValue"(Anything, Anything) -> Type::Dynamic => OrValue;
};

/// Great-circle distance by the haversine formula; latitudes and longitudes in degrees.
///
/// # Errors
/// A latitude is beyond a pole, or a longitude is not finite.
pub fn distance_km(latitude: f64, longitude: f64, to_latitude: f64, to_longitude: f64) -> Result<f64, Trouble> {
    let fits = (-90.0..=90.0).contains(&latitude)
        && (-90.0..=90.0).contains(&to_latitude)
        && longitude.is_finite()
        && to_longitude.is_finite();
    if !fits {
        return Err(Trouble::Range);
    }
    let (from, to) = (latitude.to_radians(), to_latitude.to_radians());
    let across = ((to - from) / 2.0).sin();
    let along = ((to_longitude - longitude).to_radians() / 2.0).sin();
    let haversine = across * across + from.cos() * to.cos() * along * along;
    Ok(2.0 * EARTH_RADIUS_KM * haversine.min(1.0).sqrt().asin())
}

/// Whether a text contains another, letters taken without regard to case (Unicode's simple lower-casing).
pub fn contains_ci(text: &str, needle: &str) -> bool {
    if text.is_ascii() && needle.is_ascii() {
        let (text, needle) = (text.as_bytes(), needle.as_bytes());
        return needle.is_empty() || text.windows(needle.len()).any(|window| window.eq_ignore_ascii_case(needle));
    }
    text.to_lowercase().contains(&needle.to_lowercase())
}

/// Charges for lower-casing a text; ASCII is compared as it stands.
pub fn charge_folding(text: &str, steps: &mut Steps) -> Result<(), Trouble> {
    if text.is_ascii() { Ok(()) } else { steps.take(text.len() / 8) }
}

fn number(datum: &Datum<'_>) -> Result<f64, Trouble> {
    match datum {
        Datum::Integer(value) => Ok(*value as f64),
        Datum::Unsigned(value) => Ok(*value as f64),
        Datum::Number(value) => Ok(*value),
        Datum::Null => Err(Trouble::Null),
        _ => Err(Trouble::Type),
    }
}

fn text<'b>(datum: &'b Datum<'_>) -> Result<&'b str, Trouble> {
    match datum {
        Datum::Text(text) => Ok(text),
        Datum::Null => Err(Trouble::Null),
        _ => Err(Trouble::Type),
    }
}

fn integer(datum: &Datum<'_>) -> Result<i64, Trouble> {
    match datum {
        Datum::Integer(value) => Ok(*value),
        Datum::Null => Err(Trouble::Null),
        _ => Err(Trouble::Type),
    }
}

/// Calls a function. The arguments' types are those of one of its signatures, or were known only now.
pub fn call<'a>(function: Function, given: &[Datum<'a>], steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
    let Some(first) = given.first() else {
        // The one function that takes nothing.
        return Ok(Datum::optional(None));
    };
    if let Datum::Text(text) = first {
        steps.take(text.len() / 64)?;
    }
    match function {
        Function::Size => match first {
            Datum::Text(text) => Ok(Datum::Integer(text.chars().count() as i64)),
            Datum::Bytes(bytes) => Ok(Datum::Integer(bytes.len() as i64)),
            Datum::List(items) => Ok(Datum::Integer(items.len() as i64)),
            Datum::Map(entries) => Ok(Datum::Integer(entries.len() as i64)),
            Datum::Null => Err(Trouble::Null),
            _ => Err(Trouble::Type),
        },
        Function::StartsWith => Ok(Datum::Boolean(text(first)?.starts_with(text(&given[1])?))),
        Function::EndsWith => Ok(Datum::Boolean(text(first)?.ends_with(text(&given[1])?))),
        Function::Contains => Ok(Datum::Boolean(text(first)?.contains(text(&given[1])?))),
        Function::ContainsCi => {
            let (text, needle) = (text(first)?, text(&given[1])?);
            // Quadratic at worst, so it is charged that way.
            steps.take(text.len().saturating_mul(needle.len()) / 1024)?;
            charge_folding(text, steps)?;
            Ok(Datum::Boolean(contains_ci(text, needle)))
        }
        Function::Matches => {
            let (text, source) = (text(first)?, text(&given[1])?);
            // It is compiled each time, which takes many milliseconds at worst.
            steps.take(COMPILING + 4 * source.len())?;
            let pattern = Pattern::read(source).map_err(|_| Trouble::Pattern)?;
            steps.take(pattern.steps(text))?;
            Ok(Datum::Boolean(pattern.is_match(text)))
        }
        Function::LowerAscii => Ok(Datum::text(text(first)?.to_ascii_lowercase())),
        Function::UpperAscii => Ok(Datum::text(text(first)?.to_ascii_uppercase())),
        Function::Trim => Ok(Datum::text(text(first)?.trim())),
        Function::Replace => {
            let (text, from, to) = (text(first)?, text(&given[1])?, text(&given[2])?);
            let most = match given.get(3) {
                Some(most) => usize::try_from(integer(most)?).unwrap_or(usize::MAX),
                None => usize::MAX,
            };
            let found = if from.is_empty() { text.len() + 1 } else { text.matches(from).count() }.min(most);
            steps.take(found / 4)?;
            steps.take(found.saturating_mul(to.len()) / 64)?;
            Ok(Datum::text(text.replacen(from, to, most)))
        }
        Function::Split => {
            let (text, separator) = (text(first)?, text(&given[1])?);
            let most = match given.get(2) {
                Some(most) => usize::try_from(integer(most)?).unwrap_or(usize::MAX),
                None => usize::MAX,
            };
            // Charged before they are made.
            let count = if separator.is_empty() { text.len() } else { text.matches(separator).count() + 1 };
            steps.take(count.min(most))?;
            let parts: Vec<Datum<'a>> = if separator.is_empty() {
                letters(text, most)
            } else if most == 0 {
                Vec::new()
            } else {
                text.splitn(most, separator).map(Datum::text).collect()
            };
            Ok(Datum::List(List::Made(parts.into())))
        }
        Function::Join => {
            let Datum::List(items) = first else { return Err(Trouble::Type) };
            let separator = given.get(1).map_or(Ok(""), text)?;
            let mut joined = String::new();
            for (at, item) in items.iter().enumerate() {
                joined.push_str(if at > 0 { separator } else { "" });
                let item = text(&item)?.to_owned();
                steps.take(1 + (item.len() + separator.len()) / 64)?;
                joined.push_str(&item);
            }
            Ok(Datum::text(joined))
        }
        Function::Substring => {
            let text = text(first)?;
            let count = text.chars().count() as i64;
            let from = integer(&given[1])?;
            let to = given.get(2).map_or(Ok(count), integer)?;
            if from < 0 || to < from || to > count {
                return Err(Trouble::Range);
            }
            let part: String = text.chars().skip(from as usize).take((to - from) as usize).collect();
            Ok(Datum::text(part))
        }
        Function::CharAt => {
            let (text, at) = (text(first)?, integer(&given[1])?);
            let at = usize::try_from(at).map_err(|_| Trouble::Range)?;
            match text.chars().nth(at) {
                Some(character) => Ok(Datum::text(character.to_string())),
                None if at == text.chars().count() => Ok(Datum::text("")),
                None => Err(Trouble::Range),
            }
        }
        Function::IndexOf => {
            let (text, needle) = (text(first)?, text(&given[1])?);
            let from = given.get(2).map_or(Ok(0), integer)?;
            let from = usize::try_from(from).map_err(|_| Trouble::Range)?;
            let Some(start) = text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(from) else {
                return Err(Trouble::Range);
            };
            let found = text[start..].find(needle).map(|at| text[..start + at].chars().count() as i64);
            Ok(Datum::Integer(found.unwrap_or(-1)))
        }
        Function::LastIndexOf => {
            let (text, needle) = (text(first)?, text(&given[1])?);
            let count = |at: usize| text[..at].chars().count() as i64;
            let Some(last) = given.get(2) else {
                return Ok(Datum::Integer(text.rfind(needle).map_or(-1, count)));
            };
            let last = usize::try_from(integer(last)?).map_err(|_| Trouble::Range)?;
            let Some(start) = text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(last) else {
                return Err(Trouble::Range);
            };
            // The last occurrence that starts no later: it ends within so many bytes, at the end of a character.
            let end = text.floor_char_boundary(start.saturating_add(needle.len()));
            Ok(Datum::Integer(text[..end].rfind(needle).map_or(-1, count)))
        }
        Function::Reverse => {
            let text = text(first)?;
            steps.take(text.len() / 32)?;
            Ok(Datum::text(text.chars().rev().collect::<String>()))
        }
        Function::ToInteger => to_integer(first),
        Function::Format => format::format(text(first)?, &given[1], steps),
        Function::Quote => {
            let text = text(first)?;
            steps.take(text.len() / 32)?;
            Ok(Datum::text(format::quote(text)))
        }
        Function::TypeOf => Ok(Datum::Type(first.type_name())),
        Function::ToUnsigned => to_unsigned(first),
        Function::ToBytes => match first {
            Datum::Bytes(_) => Ok(first.clone()),
            Datum::Text(text) => Ok(Datum::bytes(text.as_bytes())),
            Datum::Null => Err(Trouble::Null),
            _ => Err(Trouble::Type),
        },
        Function::Base64Encode => match first {
            Datum::Bytes(bytes) => {
                steps.take(bytes.len() / 64)?;
                Ok(Datum::text(BASE64_STANDARD.encode(bytes)))
            }
            Datum::Null => Err(Trouble::Null),
            _ => Err(Trouble::Type),
        },
        Function::Base64Decode => {
            Ok(Datum::bytes(BASE64_LENIENT.decode(text(first)?).map_err(|_| Trouble::Conversion)?))
        }
        Function::Greatest
        | Function::Least
        | Function::Ceil
        | Function::Floor
        | Function::Round
        | Function::Trunc
        | Function::Sqrt
        | Function::Abs
        | Function::Sign
        | Function::IsNan
        | Function::IsInf
        | Function::IsFinite
        | Function::BitAnd
        | Function::BitOr
        | Function::BitXor
        | Function::BitNot
        | Function::ShiftLeft
        | Function::ShiftRight => math::call(function, given, steps),
        Function::OptionalNone
        | Function::OptionalOf
        | Function::OptionalOfNonZero
        | Function::OptionalIndex
        | Function::HasValue
        | Function::OptionalValue
        | Function::Or
        | Function::OrValue => optional::call(function, given, steps),
        Function::ToNumber => match first {
            Datum::Integer(_) | Datum::Unsigned(_) | Datum::Number(_) => Ok(Datum::Number(number(first)?)),
            Datum::Text(text) => Ok(Datum::Number(text.parse().map_err(|_| Trouble::Conversion)?)),
            Datum::Null => Err(Trouble::Null),
            _ => Err(Trouble::Type),
        },
        Function::ToText => to_text(first),
        Function::ToBoolean => match first {
            Datum::Boolean(value) => Ok(Datum::Boolean(*value)),
            Datum::Text(text) => match &**text {
                "1" | "t" | "true" | "TRUE" | "True" => Ok(Datum::Boolean(true)),
                "0" | "f" | "false" | "FALSE" | "False" => Ok(Datum::Boolean(false)),
                _ => Err(Trouble::Conversion),
            },
            Datum::Null => Err(Trouble::Null),
            _ => Err(Trouble::Type),
        },
        Function::ToTimestamp => match first {
            Datum::Timestamp(time) => Ok(Datum::Timestamp(*time)),
            Datum::Text(text) => timestamp(text.parse::<Timestamp>().map_err(|_| Trouble::Conversion)?.0),
            Datum::Integer(seconds) => timestamp(seconds.checked_mul(1_000_000).ok_or(Trouble::Range)?),
            Datum::Null => Err(Trouble::Null),
            _ => Err(Trouble::Type),
        },
        Function::ToDuration => match first {
            Datum::Duration(micros) => Ok(Datum::Duration(*micros)),
            Datum::Text(text) => {
                steps.take(text.len() / 8)?;
                Ok(Datum::Duration(duration(text).ok_or(Trouble::Conversion)?))
            }
            Datum::Integer(seconds) => in_range(seconds.checked_mul(1_000_000)),
            Datum::Null => Err(Trouble::Null),
            _ => Err(Trouble::Type),
        },
        Function::ToDynamic => Ok(first.clone()),
        Function::DistanceKm => {
            let at = |at: usize| number(&given[at]);
            Ok(Datum::Number(distance_km(at(0)?, at(1)?, at(2)?, at(3)?)?))
        }
        accessor => match first {
            Datum::Timestamp(time) => of_timestamp(accessor, *time, given.get(1).map(text).transpose()?),
            Datum::Duration(micros) => of_duration(accessor, *micros),
            Datum::Null => Err(Trouble::Null),
            _ => Err(Trouble::Type),
        },
    }
}

fn to_integer<'a>(given: &Datum<'a>) -> Result<Datum<'a>, Trouble> {
    match given {
        Datum::Integer(value) => Ok(Datum::Integer(*value)),
        Datum::Unsigned(value) => Ok(Datum::Integer(i64::try_from(*value).map_err(|_| Trouble::Range)?)),
        // Both limits of an integer are doubles that do not fit, as CEL has it.
        Datum::Number(value) if value.abs() < 9_223_372_036_854_775_808.0 => Ok(Datum::Integer(*value as i64)),
        Datum::Number(_) => Err(Trouble::Range),
        Datum::Text(text) => Ok(Datum::Integer(text.parse().map_err(|_| Trouble::Conversion)?)),
        Datum::Timestamp(time) => Ok(Datum::Integer(time.0.div_euclid(1_000_000))),
        Datum::Duration(micros) => Ok(Datum::Integer(micros / 1_000_000)),
        Datum::Null => Err(Trouble::Null),
        _ => Err(Trouble::Type),
    }
}

fn to_unsigned<'a>(given: &Datum<'a>) -> Result<Datum<'a>, Trouble> {
    Ok(Datum::Unsigned(match given {
        Datum::Unsigned(value) => *value,
        Datum::Integer(value) => u64::try_from(*value).map_err(|_| Trouble::Range)?,
        // 2^64 is the first double that does not fit.
        Datum::Number(value) if *value > -1.0 && *value < 18_446_744_073_709_551_616.0 => *value as u64,
        Datum::Number(_) => return Err(Trouble::Range),
        Datum::Text(text) => text.parse().map_err(|_| Trouble::Conversion)?,
        Datum::Null => return Err(Trouble::Null),
        _ => return Err(Trouble::Type),
    }))
}

fn to_text<'a>(given: &Datum<'a>) -> Result<Datum<'a>, Trouble> {
    Ok(match given {
        Datum::Text(_) => given.clone(),
        Datum::Integer(value) => Datum::text(value.to_string()),
        Datum::Unsigned(value) => Datum::text(value.to_string()),
        Datum::Bytes(bytes) => Datum::text(std::str::from_utf8(bytes).map_err(|_| Trouble::Conversion)?),
        Datum::Number(value) => Datum::text(value.to_string()),
        Datum::Boolean(value) => Datum::text(if *value { "true" } else { "false" }),
        Datum::Timestamp(time) => Datum::text(time.to_string()),
        Datum::Duration(micros) => {
            let (sign, micros) = (if *micros < 0 { "-" } else { "" }, micros.unsigned_abs());
            let fraction = format!(".{:06}", micros % 1_000_000);
            let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
            Datum::text(format!("{sign}{}{fraction}s", micros / 1_000_000))
        }
        Datum::Null => return Err(Trouble::Null),
        _ => return Err(Trouble::Type),
    })
}

/// The characters of a text, at most so many parts: the last one is the rest.
fn letters<'a>(text: &str, most: usize) -> Vec<Datum<'a>> {
    let mut parts = Vec::new();
    for (at, letter) in text.char_indices() {
        if parts.len() + 1 == most {
            parts.push(Datum::text(&text[at..]));
        }
        if parts.len() >= most {
            break;
        }
        parts.push(Datum::text(&text[at..at + letter.len_utf8()]));
    }
    parts
}

/// A timestamp, if it lies in the years 1 to 9999.
pub fn timestamp<'a>(micros: i64) -> Result<Datum<'a>, Trouble> {
    if TIMESTAMPS.contains(&micros) { Ok(Datum::Timestamp(Timestamp(micros))) } else { Err(Trouble::Range) }
}

/// A duration, if CEL could write it.
fn in_range<'a>(micros: Option<i64>) -> Result<Datum<'a>, Trouble> {
    micros.filter(|micros| micros.abs() <= DURATION_MAX).map(Datum::Duration).ok_or(Trouble::Range)
}

/// Reads a duration such as `1h30m`, `-1.5s` or `250ms`, in microseconds; what is finer is cut off.
pub fn duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos = 0i128;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|at| *at > 0)?;
        let (whole, fraction) = rest[..digits].split_once('.').unwrap_or((&rest[..digits], ""));
        let after = &rest[digits..];
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let scale: i128 = match &after[..unit] {
            "h" => 3_600_000_000_000,
            "m" => 60_000_000_000,
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            "us" | "µs" => 1_000,
            "ns" => 1,
            _ => return None,
        };
        if whole.is_empty() && fraction.is_empty() || whole.len() > 18 || fraction.contains('.') {
            return None;
        }
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let fraction = &fraction[..fraction.len().min(18)];
        let part: i128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
        nanos = nanos.checked_add(whole * scale + part * scale / 10i128.pow(fraction.len() as u32))?;
        rest = &after[unit..];
    }
    let micros = i64::try_from(nanos / 1_000).ok().filter(|micros| *micros <= DURATION_MAX)?;
    Some(if negative { -micros } else { micros })
}

fn of_timestamp<'a>(accessor: Function, time: Timestamp, zone: Option<&str>) -> Result<Datum<'a>, Trouble> {
    let zone = match zone {
        None => TimeZone::UTC,
        Some(name) => time_zone(name).ok_or(Trouble::Conversion)?,
    };
    let local = time.in_zone(&zone).ok_or(Trouble::Range)?;
    Ok(Datum::Integer(match accessor {
        Function::FullYear => i64::from(local.year()),
        Function::Month => i64::from(local.month()) - 1,
        Function::DayOfMonth => i64::from(local.day()) - 1,
        Function::Date => i64::from(local.day()),
        Function::DayOfYear => i64::from(local.day_of_year()) - 1,
        Function::DayOfWeek => i64::from(local.weekday().to_sunday_zero_offset()),
        Function::Hours => i64::from(local.hour()),
        Function::Minutes => i64::from(local.minute()),
        Function::Seconds => i64::from(local.second()),
        Function::Milliseconds => i64::from(local.millisecond()),
        _ => return Err(Trouble::Type),
    }))
}

/// An IANA name, or an offset such as `+02:00`.
fn time_zone(name: &str) -> Option<TimeZone> {
    let Some((hours, minutes)) = name.split_once(':') else { return TimeZone::get(name).ok() };
    let negative = hours.starts_with('-');
    let hours: i32 = hours.trim_start_matches(['+', '-']).parse().ok()?;
    let minutes: i32 = minutes.parse().ok()?;
    let seconds = (hours * 60 + minutes) * 60;
    let offset = jiff::tz::Offset::from_seconds(if negative { -seconds } else { seconds }).ok()?;
    Some(TimeZone::fixed(offset))
}

fn of_duration<'a>(accessor: Function, micros: i64) -> Result<Datum<'a>, Trouble> {
    Ok(Datum::Integer(match accessor {
        Function::Hours => micros / 3_600_000_000,
        Function::Minutes => micros / 60_000_000,
        Function::Seconds => micros / 1_000_000,
        Function::Milliseconds => micros / 1_000 % 1_000,
        _ => return Err(Trouble::Type),
    }))
}

/// Adds, subtracts, multiplies and divides. Integers stay integers and never wrap; mixed with a number they become one.
pub fn arithmetic<'a>(
    operator: crate::dialect::Operator,
    left: Datum<'a>,
    right: Datum<'a>,
    steps: &mut Steps,
) -> Result<Datum<'a>, Trouble> {
    use crate::dialect::Operator::*;
    Ok(match (operator, left, right) {
        (_, Datum::Integer(left), Datum::Integer(right)) => Datum::Integer(
            match operator {
                Add => left.checked_add(right),
                Subtract => left.checked_sub(right),
                Multiply => left.checked_mul(right),
                Divide | Remainder if right == 0 => return Err(Trouble::DivisionByZero),
                Divide => left.checked_div(right),
                _ => left.checked_rem(right),
            }
            .ok_or(Trouble::Range)?,
        ),
        (_, Datum::Unsigned(left), Datum::Unsigned(right)) => Datum::Unsigned(
            match operator {
                Add => left.checked_add(right),
                Subtract => left.checked_sub(right),
                Multiply => left.checked_mul(right),
                Divide | Remainder if right == 0 => return Err(Trouble::DivisionByZero),
                Divide => left.checked_div(right),
                _ => left.checked_rem(right),
            }
            .ok_or(Trouble::Range)?,
        ),
        (
            Add | Subtract | Multiply | Divide,
            left @ (Datum::Integer(_) | Datum::Number(_)),
            right @ (Datum::Integer(_) | Datum::Number(_)),
        ) => {
            let (left, right) = (number(&left)?, number(&right)?);
            Datum::Number(match operator {
                Add => left + right,
                Subtract => left - right,
                Multiply => left * right,
                _ => left / right,
            })
        }
        (Add, Datum::Text(left), Datum::Text(right)) => {
            steps.take((left.len() + right.len()) / 32)?;
            Datum::text(Rc::from([&*left, &*right].concat()))
        }
        (Add, Datum::Bytes(left), Datum::Bytes(right)) => {
            steps.take((left.len() + right.len()) / 32)?;
            Datum::bytes([&*left, &*right].concat())
        }
        (Add, Datum::List(left), Datum::List(right)) => {
            steps.take(left.len() + right.len())?;
            Datum::List(List::Made(left.iter().chain(right.iter()).collect()))
        }
        (Add, Datum::Timestamp(time), Datum::Duration(micros))
        | (Add, Datum::Duration(micros), Datum::Timestamp(time)) => {
            timestamp(time.0.checked_add(micros).ok_or(Trouble::Range)?)?
        }
        (Subtract, Datum::Timestamp(time), Datum::Duration(micros)) => {
            timestamp(time.0.checked_sub(micros).ok_or(Trouble::Range)?)?
        }
        (Subtract, Datum::Timestamp(left), Datum::Timestamp(right)) => in_range(left.0.checked_sub(right.0))?,
        (Add, Datum::Duration(left), Datum::Duration(right)) => in_range(left.checked_add(right))?,
        (Subtract, Datum::Duration(left), Datum::Duration(right)) => in_range(left.checked_sub(right))?,
        (_, Datum::Null, _) | (_, _, Datum::Null) => return Err(Trouble::Null),
        _ => return Err(Trouble::Type),
    })
}

/// Whether an order satisfies an ordered operator. Nothing is ordered with a NaN.
pub fn satisfies(operator: crate::dialect::Operator, order: Option<Ordering>) -> bool {
    use crate::dialect::Operator::*;
    match (operator, order) {
        (Less, Some(order)) => order.is_lt(),
        (LessOrEqual, Some(order)) => order.is_le(),
        (Greater, Some(order)) => order.is_gt(),
        (GreaterOrEqual, Some(order)) => order.is_ge(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn great_circles() {
        let close = |found: f64, expected: f64| (found - expected).abs() < 0.5;
        let distance = |a, b, c, d| distance_km(a, b, c, d).expect("on Earth");
        assert!(close(distance(48.2082, 16.3738, 35.6762, 139.6503), 9126.9), "Vienna to Tokyo");
        assert!(close(distance(0.0, 179.0, 0.0, -179.0), 222.39), "across the date line");
        assert!(close(distance(90.0, 0.0, -90.0, 77.0), 20015.1), "pole to pole");
        assert!(distance(10.0, 20.0, 10.0, 20.0).abs() < 1e-9);
        assert_eq!(distance_km(91.0, 0.0, 0.0, 0.0), Err(Trouble::Range));
        assert_eq!(distance_km(0.0, f64::NAN, 0.0, 0.0), Err(Trouble::Range));
    }

    #[test]
    fn durations() {
        assert_eq!(duration("1h30m"), Some(5_400_000_000));
        assert_eq!(duration("-1.5s"), Some(-1_500_000));
        assert_eq!(duration("250ms"), Some(250_000));
        assert_eq!(duration("0"), Some(0));
        for wrong in ["", "1", "h", "1x", "1.2.3s", "-", ".s", "99999999999999999999h", "400000000h"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }
}
