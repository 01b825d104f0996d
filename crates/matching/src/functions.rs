//! The built-in functions: signatures and implementation.

mod arguments; // arguments as values of their type
mod format; // `format` and `strings.quote`
mod math; // `math.greatest` and the rest of the `math` extension
pub mod optional; // functions of optionals

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
    eval_value::{EvalError, EvalValue, List},
    expression::{Function, Type},
    functions::arguments::{integer, number, text, to_text},
    regex_pattern::Pattern,
    steps::Steps,
    text::fold,
};

/// Mean radius of the Earth, in kilometres (IUGG).
pub const EARTH_RADIUS_KM: f64 = 6371.0088;
/// The years 1 to 9999, the range of CEL timestamps, in microseconds since 1970.
const TIMESTAMPS: std::ops::RangeInclusive<i64> = -62_135_596_800_000_000..=253_402_300_799_999_999;

/// Base64 with or without padding, as CEL's encoders extension decodes it.
const BASE64_LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// About 10,000 years, in microseconds: the largest duration in CEL.
const DURATION_MAX: i64 = 315_576_000_000_000_000;
/// The cost of compiling a regular expression, in steps.
const COMPILING: usize = 30_000;

/// The type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterType {
    Anything,
    Integer,
    Numeric,
    Text,
    Bytes,
    List,
    Timestamp,
    Duration,
}

impl ParameterType {
    pub fn accepts(self, given: &Type) -> bool {
        match (self, given) {
            (ParameterType::Anything, _) | (_, Type::Dynamic) => true,
            (ParameterType::Integer, Type::Integer)
            | (ParameterType::Text, Type::Text)
            | (ParameterType::Bytes, Type::Bytes)
            | (ParameterType::List, Type::List(_))
            | (ParameterType::Timestamp, Type::Timestamp)
            | (ParameterType::Duration, Type::Duration) => true,
            (ParameterType::Numeric, given) => given.is_numeric(),
            _ => false,
        }
    }

    fn name(self) -> &'static str {
        match self {
            ParameterType::Anything => "any",
            ParameterType::Integer => "int",
            ParameterType::Numeric => "number",
            ParameterType::Text => "string",
            ParameterType::Bytes => "bytes",
            ParameterType::List => "list",
            ParameterType::Timestamp => "timestamp",
            ParameterType::Duration => "duration",
        }
    }
}

/// One overload of a function. The receiver of a method is the first argument.
#[derive(Debug)]
pub struct Signature {
    pub name: &'static str,
    pub method: bool,
    pub takes: &'static [ParameterType],
    pub gives: fn() -> Type,
    pub function: Function,
}

impl Signature {
    /// The signature, as in a call.
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
            takes: &[$(ParameterType::$takes),*],
            gives: || $gives,
            function: Function::$function,
        }),*]
    };
}

/// All overloads of all functions.
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
pub fn distance_km(latitude: f64, longitude: f64, to_latitude: f64, to_longitude: f64) -> Result<f64, EvalError> {
    let fits = (-90.0..=90.0).contains(&latitude)
        && (-90.0..=90.0).contains(&to_latitude)
        && longitude.is_finite()
        && to_longitude.is_finite();
    if !fits {
        return Err(EvalError::Range);
    }
    let (from, to) = (latitude.to_radians(), to_latitude.to_radians());
    let across = ((to - from) / 2.0).sin();
    let along = ((to_longitude - longitude).to_radians() / 2.0).sin();
    let haversine = across * across + from.cos() * to.cos() * along * along;
    Ok(2.0 * EARTH_RADIUS_KM * haversine.min(1.0).sqrt().asin())
}

/// Whether a text contains another, compared without regard to case ([`fold`]).
pub fn contains_ci(text: &str, needle: &str) -> bool {
    if text.is_ascii() && needle.is_ascii() {
        let (text, needle) = (text.as_bytes(), needle.as_bytes());
        return needle.is_empty() || text.windows(needle.len()).any(|window| window.eq_ignore_ascii_case(needle));
    }
    fold(text).contains(&*fold(needle))
}

/// Charges for lower-casing a text; ASCII is compared without lower-casing.
pub fn charge_folding(text: &str, steps: &mut Steps) -> Result<(), EvalError> {
    if text.is_ascii() { Ok(()) } else { steps.take(text.len() / 8) }
}

/// Calls a function. The arguments' types are those of one of its signatures, or were known only at run time.
pub fn call<'a>(function: Function, given: &[EvalValue<'a>], steps: &mut Steps) -> Result<EvalValue<'a>, EvalError> {
    let Some(first) = given.first() else {
        // The one function without arguments.
        return Ok(EvalValue::optional(None));
    };
    if let EvalValue::Text(text) = first {
        steps.take(text.len() / 64)?;
    }
    match function {
        Function::Size => match first {
            EvalValue::Text(text) => Ok(EvalValue::Integer(text.chars().count() as i64)),
            EvalValue::Bytes(bytes) => Ok(EvalValue::Integer(bytes.len() as i64)),
            EvalValue::List(items) => Ok(EvalValue::Integer(items.len() as i64)),
            EvalValue::Map(entries) => Ok(EvalValue::Integer(entries.len() as i64)),
            EvalValue::Null => Err(EvalError::Null),
            _ => Err(EvalError::Type),
        },
        Function::StartsWith => Ok(EvalValue::Boolean(text(first)?.starts_with(text(&given[1])?))),
        Function::EndsWith => Ok(EvalValue::Boolean(text(first)?.ends_with(text(&given[1])?))),
        Function::Contains => Ok(EvalValue::Boolean(text(first)?.contains(text(&given[1])?))),
        Function::ContainsCi => {
            let (text, needle) = (text(first)?, text(&given[1])?);
            // Quadratic at worst, so it is charged that way.
            steps.take(text.len().saturating_mul(needle.len()) / 1024)?;
            charge_folding(text, steps)?;
            Ok(EvalValue::Boolean(contains_ci(text, needle)))
        }
        Function::Matches => {
            let (text, source) = (text(first)?, text(&given[1])?);
            // Compiled for each call, which takes many milliseconds at worst.
            steps.take(COMPILING + 4 * source.len())?;
            let pattern = Pattern::read(source).map_err(|_| EvalError::Pattern)?;
            steps.take(pattern.steps(text))?;
            Ok(EvalValue::Boolean(pattern.is_match(text)))
        }
        Function::LowerAscii => Ok(EvalValue::text(text(first)?.to_ascii_lowercase())),
        Function::UpperAscii => Ok(EvalValue::text(text(first)?.to_ascii_uppercase())),
        Function::Trim => Ok(EvalValue::text(text(first)?.trim())),
        Function::Replace => {
            let (text, from, to) = (text(first)?, text(&given[1])?, text(&given[2])?);
            let most = match given.get(3) {
                Some(most) => usize::try_from(integer(most)?).unwrap_or(usize::MAX),
                None => usize::MAX,
            };
            let found = if from.is_empty() { text.len() + 1 } else { text.matches(from).count() }.min(most);
            steps.take(found / 4)?;
            steps.take(found.saturating_mul(to.len()) / 64)?;
            Ok(EvalValue::text(text.replacen(from, to, most)))
        }
        Function::Split => {
            let (text, separator) = (text(first)?, text(&given[1])?);
            let most = match given.get(2) {
                Some(most) => usize::try_from(integer(most)?).unwrap_or(usize::MAX),
                None => usize::MAX,
            };
            // Charged before they are built.
            let count = if separator.is_empty() { text.len() } else { text.matches(separator).count() + 1 };
            steps.take(count.min(most))?;
            let parts: Vec<EvalValue<'a>> = if separator.is_empty() {
                letters(text, most)
            } else if most == 0 {
                Vec::new()
            } else {
                text.splitn(most, separator).map(EvalValue::text).collect()
            };
            Ok(EvalValue::List(List::Owned(parts.into())))
        }
        Function::Join => {
            let EvalValue::List(items) = first else { return Err(EvalError::Type) };
            let separator = given.get(1).map_or(Ok(""), text)?;
            let mut joined = String::new();
            for (at, item) in items.iter().enumerate() {
                joined.push_str(if at > 0 { separator } else { "" });
                let item = text(&item)?.to_owned();
                steps.take(1 + (item.len() + separator.len()) / 64)?;
                joined.push_str(&item);
            }
            Ok(EvalValue::text(joined))
        }
        Function::Substring => {
            let text = text(first)?;
            let count = text.chars().count() as i64;
            let from = integer(&given[1])?;
            let to = given.get(2).map_or(Ok(count), integer)?;
            if from < 0 || to < from || to > count {
                return Err(EvalError::Range);
            }
            let part: String = text.chars().skip(from as usize).take((to - from) as usize).collect();
            Ok(EvalValue::text(part))
        }
        Function::CharAt => {
            let (text, at) = (text(first)?, integer(&given[1])?);
            let at = usize::try_from(at).map_err(|_| EvalError::Range)?;
            match text.chars().nth(at) {
                Some(character) => Ok(EvalValue::text(character.to_string())),
                None if at == text.chars().count() => Ok(EvalValue::text("")),
                None => Err(EvalError::Range),
            }
        }
        Function::IndexOf => {
            let (text, needle) = (text(first)?, text(&given[1])?);
            let from = given.get(2).map_or(Ok(0), integer)?;
            let from = usize::try_from(from).map_err(|_| EvalError::Range)?;
            let Some(start) = text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(from) else {
                return Err(EvalError::Range);
            };
            let found = text[start..].find(needle).map(|at| text[..start + at].chars().count() as i64);
            Ok(EvalValue::Integer(found.unwrap_or(-1)))
        }
        Function::LastIndexOf => {
            let (text, needle) = (text(first)?, text(&given[1])?);
            let count = |at: usize| text[..at].chars().count() as i64;
            let Some(last) = given.get(2) else {
                return Ok(EvalValue::Integer(text.rfind(needle).map_or(-1, count)));
            };
            let last = usize::try_from(integer(last)?).map_err(|_| EvalError::Range)?;
            let Some(start) = text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(last) else {
                return Err(EvalError::Range);
            };
            // The last occurrence that starts no later: its end is at most so many bytes further, at the end of a
            // character.
            let end = text.floor_char_boundary(start.saturating_add(needle.len()));
            Ok(EvalValue::Integer(text[..end].rfind(needle).map_or(-1, count)))
        }
        Function::Reverse => {
            let text = text(first)?;
            steps.take(text.len() / 32)?;
            Ok(EvalValue::text(text.chars().rev().collect::<String>()))
        }
        Function::ToInteger => to_integer(first),
        Function::Format => format::format(text(first)?, &given[1], steps),
        Function::Quote => {
            let text = text(first)?;
            steps.take(text.len() / 32)?;
            Ok(EvalValue::text(format::quote(text)))
        }
        Function::TypeOf => Ok(EvalValue::Type(first.type_name())),
        Function::ToUnsigned => to_unsigned(first),
        Function::ToBytes => match first {
            EvalValue::Bytes(_) => Ok(first.clone()),
            EvalValue::Text(text) => Ok(EvalValue::bytes(text.as_bytes())),
            EvalValue::Null => Err(EvalError::Null),
            _ => Err(EvalError::Type),
        },
        Function::Base64Encode => match first {
            EvalValue::Bytes(bytes) => {
                steps.take(bytes.len() / 64)?;
                Ok(EvalValue::text(BASE64_STANDARD.encode(bytes)))
            }
            EvalValue::Null => Err(EvalError::Null),
            _ => Err(EvalError::Type),
        },
        Function::Base64Decode => {
            Ok(EvalValue::bytes(BASE64_LENIENT.decode(text(first)?).map_err(|_| EvalError::Conversion)?))
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
            EvalValue::Integer(_) | EvalValue::Unsigned(_) | EvalValue::Number(_) => {
                Ok(EvalValue::Number(number(first)?))
            }
            EvalValue::Text(text) => Ok(EvalValue::Number(text.parse().map_err(|_| EvalError::Conversion)?)),
            EvalValue::Null => Err(EvalError::Null),
            _ => Err(EvalError::Type),
        },
        Function::ToText => to_text(first),
        Function::ToBoolean => match first {
            EvalValue::Boolean(value) => Ok(EvalValue::Boolean(*value)),
            EvalValue::Text(text) => match &**text {
                "1" | "t" | "true" | "TRUE" | "True" => Ok(EvalValue::Boolean(true)),
                "0" | "f" | "false" | "FALSE" | "False" => Ok(EvalValue::Boolean(false)),
                _ => Err(EvalError::Conversion),
            },
            EvalValue::Null => Err(EvalError::Null),
            _ => Err(EvalError::Type),
        },
        Function::ToTimestamp => match first {
            EvalValue::Timestamp(time) => Ok(EvalValue::Timestamp(*time)),
            EvalValue::Text(text) => timestamp(text.parse::<Timestamp>().map_err(|_| EvalError::Conversion)?.0),
            EvalValue::Integer(seconds) => timestamp(seconds.checked_mul(1_000_000).ok_or(EvalError::Range)?),
            EvalValue::Null => Err(EvalError::Null),
            _ => Err(EvalError::Type),
        },
        Function::ToDuration => match first {
            EvalValue::Duration(micros) => Ok(EvalValue::Duration(*micros)),
            EvalValue::Text(text) => {
                steps.take(text.len() / 8)?;
                Ok(EvalValue::Duration(duration(text).ok_or(EvalError::Conversion)?))
            }
            EvalValue::Integer(seconds) => in_range(seconds.checked_mul(1_000_000)),
            EvalValue::Null => Err(EvalError::Null),
            _ => Err(EvalError::Type),
        },
        Function::ToDynamic => Ok(first.clone()),
        Function::DistanceKm => {
            let at = |at: usize| number(&given[at]);
            Ok(EvalValue::Number(distance_km(at(0)?, at(1)?, at(2)?, at(3)?)?))
        }
        accessor => match first {
            EvalValue::Timestamp(time) => of_timestamp(accessor, *time, given.get(1).map(text).transpose()?),
            EvalValue::Duration(micros) => of_duration(accessor, *micros),
            EvalValue::Null => Err(EvalError::Null),
            _ => Err(EvalError::Type),
        },
    }
}

fn to_integer<'a>(given: &EvalValue<'a>) -> Result<EvalValue<'a>, EvalError> {
    match given {
        EvalValue::Integer(value) => Ok(EvalValue::Integer(*value)),
        EvalValue::Unsigned(value) => Ok(EvalValue::Integer(i64::try_from(*value).map_err(|_| EvalError::Range)?)),
        // Both limits of an integer are doubles out of range, as CEL defines it.
        EvalValue::Number(value) if value.abs() < 9_223_372_036_854_775_808.0 => Ok(EvalValue::Integer(*value as i64)),
        EvalValue::Number(_) => Err(EvalError::Range),
        EvalValue::Text(text) => Ok(EvalValue::Integer(text.parse().map_err(|_| EvalError::Conversion)?)),
        EvalValue::Timestamp(time) => Ok(EvalValue::Integer(time.0.div_euclid(1_000_000))),
        EvalValue::Duration(micros) => Ok(EvalValue::Integer(micros / 1_000_000)),
        EvalValue::Null => Err(EvalError::Null),
        _ => Err(EvalError::Type),
    }
}

fn to_unsigned<'a>(given: &EvalValue<'a>) -> Result<EvalValue<'a>, EvalError> {
    Ok(EvalValue::Unsigned(match given {
        EvalValue::Unsigned(value) => *value,
        EvalValue::Integer(value) => u64::try_from(*value).map_err(|_| EvalError::Range)?,
        // 2^64 is the first double out of range.
        EvalValue::Number(value) if *value > -1.0 && *value < 18_446_744_073_709_551_616.0 => *value as u64,
        EvalValue::Number(_) => return Err(EvalError::Range),
        EvalValue::Text(text) => text.parse().map_err(|_| EvalError::Conversion)?,
        EvalValue::Null => return Err(EvalError::Null),
        _ => return Err(EvalError::Type),
    }))
}

/// The characters of a text, in at most `most` parts: the last part is the rest.
fn letters<'a>(text: &str, most: usize) -> Vec<EvalValue<'a>> {
    let mut parts = Vec::new();
    for (at, letter) in text.char_indices() {
        if parts.len() + 1 == most {
            parts.push(EvalValue::text(&text[at..]));
        }
        if parts.len() >= most {
            break;
        }
        parts.push(EvalValue::text(&text[at..at + letter.len_utf8()]));
    }
    parts
}

/// A timestamp, if it is in the years 1 to 9999.
pub fn timestamp<'a>(micros: i64) -> Result<EvalValue<'a>, EvalError> {
    if TIMESTAMPS.contains(&micros) { Ok(EvalValue::Timestamp(Timestamp(micros))) } else { Err(EvalError::Range) }
}

/// A duration, if it is in CEL's range.
fn in_range<'a>(micros: Option<i64>) -> Result<EvalValue<'a>, EvalError> {
    micros.filter(|micros| micros.abs() <= DURATION_MAX).map(EvalValue::Duration).ok_or(EvalError::Range)
}

/// Parses a duration such as `1h30m`, `-1.5s` or `250ms`, in microseconds; finer fractions are truncated.
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

fn of_timestamp<'a>(accessor: Function, time: Timestamp, zone: Option<&str>) -> Result<EvalValue<'a>, EvalError> {
    let zone = match zone {
        None => TimeZone::UTC,
        Some(name) => time_zone(name).ok_or(EvalError::Conversion)?,
    };
    let local = time.in_zone(&zone).ok_or(EvalError::Range)?;
    Ok(EvalValue::Integer(match accessor {
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
        _ => return Err(EvalError::Type),
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

fn of_duration<'a>(accessor: Function, micros: i64) -> Result<EvalValue<'a>, EvalError> {
    Ok(EvalValue::Integer(match accessor {
        Function::Hours => micros / 3_600_000_000,
        Function::Minutes => micros / 60_000_000,
        Function::Seconds => micros / 1_000_000,
        Function::Milliseconds => micros / 1_000 % 1_000,
        _ => return Err(EvalError::Type),
    }))
}

/// Adds, subtracts, multiplies and divides. Integers stay integers and never wrap; mixed with a number they are
/// converted.
pub fn arithmetic<'a>(
    operator: crate::dialect::Operator,
    left: EvalValue<'a>,
    right: EvalValue<'a>,
    steps: &mut Steps,
) -> Result<EvalValue<'a>, EvalError> {
    use crate::dialect::Operator::*;
    Ok(match (operator, left, right) {
        (_, EvalValue::Integer(left), EvalValue::Integer(right)) => EvalValue::Integer(
            match operator {
                Add => left.checked_add(right),
                Subtract => left.checked_sub(right),
                Multiply => left.checked_mul(right),
                Divide | Remainder if right == 0 => return Err(EvalError::DivisionByZero),
                Divide => left.checked_div(right),
                _ => left.checked_rem(right),
            }
            .ok_or(EvalError::Range)?,
        ),
        (_, EvalValue::Unsigned(left), EvalValue::Unsigned(right)) => EvalValue::Unsigned(
            match operator {
                Add => left.checked_add(right),
                Subtract => left.checked_sub(right),
                Multiply => left.checked_mul(right),
                Divide | Remainder if right == 0 => return Err(EvalError::DivisionByZero),
                Divide => left.checked_div(right),
                _ => left.checked_rem(right),
            }
            .ok_or(EvalError::Range)?,
        ),
        (
            Add | Subtract | Multiply | Divide,
            left @ (EvalValue::Integer(_) | EvalValue::Number(_)),
            right @ (EvalValue::Integer(_) | EvalValue::Number(_)),
        ) => {
            let (left, right) = (number(&left)?, number(&right)?);
            EvalValue::Number(match operator {
                Add => left + right,
                Subtract => left - right,
                Multiply => left * right,
                _ => left / right,
            })
        }
        (Add, EvalValue::Text(left), EvalValue::Text(right)) => {
            steps.take((left.len() + right.len()) / 32)?;
            EvalValue::text(Rc::from([&*left, &*right].concat()))
        }
        (Add, EvalValue::Bytes(left), EvalValue::Bytes(right)) => {
            steps.take((left.len() + right.len()) / 32)?;
            EvalValue::bytes([&*left, &*right].concat())
        }
        (Add, EvalValue::List(left), EvalValue::List(right)) => {
            steps.take(left.len() + right.len())?;
            EvalValue::List(List::Owned(left.iter().chain(right.iter()).collect()))
        }
        (Add, EvalValue::Timestamp(time), EvalValue::Duration(micros))
        | (Add, EvalValue::Duration(micros), EvalValue::Timestamp(time)) => {
            timestamp(time.0.checked_add(micros).ok_or(EvalError::Range)?)?
        }
        (Subtract, EvalValue::Timestamp(time), EvalValue::Duration(micros)) => {
            timestamp(time.0.checked_sub(micros).ok_or(EvalError::Range)?)?
        }
        (Subtract, EvalValue::Timestamp(left), EvalValue::Timestamp(right)) => in_range(left.0.checked_sub(right.0))?,
        (Add, EvalValue::Duration(left), EvalValue::Duration(right)) => in_range(left.checked_add(right))?,
        (Subtract, EvalValue::Duration(left), EvalValue::Duration(right)) => in_range(left.checked_sub(right))?,
        (_, EvalValue::Null, _) | (_, _, EvalValue::Null) => return Err(EvalError::Null),
        _ => return Err(EvalError::Type),
    })
}

/// Whether an order satisfies an ordered operator. NaN is ordered with no value.
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
        assert_eq!(distance_km(91.0, 0.0, 0.0, 0.0), Err(EvalError::Range));
        assert_eq!(distance_km(0.0, f64::NAN, 0.0, 0.0), Err(EvalError::Range));
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
