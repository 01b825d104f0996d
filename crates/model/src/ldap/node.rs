//! Tree of a filter: conjunctions, items, attributes and assertions.

use crate::{
    ldap::{
        matching_rule::{MatchingRule, RuleAssertion},
        prepare::{Form, Parts},
    },
    time::Timestamp,
    value::Value,
};

/// Longest filter text in bytes.
pub const FILTER_BYTES_MAX: usize = 16 * 1024;
/// Deepest nesting of filters.
pub const FILTER_DEPTH_MAX: usize = 100;
/// Most items, conjunctions, disjunctions and negations of one filter.
pub const FILTER_TERMS_MAX: usize = 1_000;
/// Longest name of an attribute in a filter, in characters.
pub const ATTRIBUTE_NAME_MAX: usize = 256;

/// A filter as a tree.
#[derive(Debug, Clone)]
pub(super) enum Node {
    /// Conjunction; empty: True.
    And(Vec<Node>),
    /// Disjunction; empty: False.
    Or(Vec<Node>),
    Not(Box<Node>),
    Item(Item),
}

impl Node {
    /// Whether the predicate holds for one of the attributes; `None` stands for all of them.
    pub(crate) fn any_attribute(&self, is: &dyn Fn(Option<&Attribute>) -> bool) -> bool {
        match self {
            Node::And(parts) | Node::Or(parts) => parts.iter().any(|part| part.any_attribute(is)),
            Node::Not(part) => part.any_attribute(is),
            Node::Item(item) => is(item.attribute.as_ref()),
        }
    }
}

/// One assertion about one attribute.
#[derive(Debug, Clone)]
pub(super) struct Item {
    /// Without one, the assertion is about all attributes that its rule applies to.
    pub(crate) attribute: Option<Attribute>,
    pub(crate) test: Test,
}

/// The attribute of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Attribute {
    Property(Property),
    /// A stored attribute, in lower case; dots may lead into maps.
    Named(String),
}

/// A property that every subscriber has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Property {
    Id,
    Enabled,
    Locale,
    TimeZone,
    CreatedAt,
    Channel,
}

impl Property {
    pub(crate) const ALL: [Property; 6] =
        [Property::Id, Property::Enabled, Property::Locale, Property::TimeZone, Property::CreatedAt, Property::Channel];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Property::Id => "id",
            Property::Enabled => "enabled",
            Property::Locale => "locale",
            Property::TimeZone => "time_zone",
            Property::CreatedAt => "created_at",
            Property::Channel => "channel",
        }
    }
}

/// Prefix of attributes whose names are those of properties.
pub(super) const ATTRIBUTES: &str = "attributes.";

impl Attribute {
    pub(crate) fn of(name: &str) -> Attribute {
        let name = name.to_ascii_lowercase();
        match Property::ALL.into_iter().find(|property| property.name() == name) {
            Some(property) => Attribute::Property(property),
            None => Attribute::Named(name.strip_prefix(ATTRIBUTES).map_or_else(|| name.clone(), str::to_owned)),
        }
    }
}

/// Assertion of an item.
#[derive(Debug, Clone)]
pub(super) enum Test {
    Present,
    Equal(Assertion),
    AtLeast(Assertion),
    AtMost(Assertion),
    Approximate(Assertion),
    Substrings(Substrings),
    Rule(&'static MatchingRule, RuleAssertion),
}

/// An assertion value, parsed in each syntax that it fits.
#[derive(Debug, Clone)]
pub(super) struct Assertion {
    pub(crate) text: String,
    pub(crate) prepared: String,
    pub(crate) approximate: String,
    pub(crate) number: Option<Number>,
    pub(crate) boolean: Option<bool>,
    pub(crate) time: Option<Timestamp>,
}

impl Assertion {
    pub(crate) fn of(text: String) -> Assertion {
        Assertion {
            prepared: super::prepare::whole(&text, Form::CaseIgnore),
            approximate: super::prepare::approximate(&text),
            number: Number::read(&text),
            boolean: read_boolean(&text),
            time: read_time(&text),
            text,
        }
    }
}

/// The parts between the asterisks of a substring filter.
#[derive(Debug, Clone)]
pub(super) struct Substrings {
    /// As written, for character by character comparison.
    pub(crate) exact: Parts,
    /// Prepared, ignoring case.
    pub(crate) prepared: Parts,
}

/// A JSON number: a 64-bit integer, or a double.
#[derive(Debug, Clone, Copy)]
pub(super) enum Number {
    Integer(i64),
    Double(f64),
}

impl Number {
    pub(crate) fn read(text: &str) -> Option<Number> {
        let edges = |text: &str| {
            text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) && text.ends_with(|c: char| c.is_ascii_digit())
        };
        match edges(text).then(|| serde_json::from_str(text).ok())?? {
            Value::Integer(value) => Some(Number::Integer(value)),
            Value::Number(value) => Some(Number::Double(value)),
            _ => None,
        }
    }

    /// Compares by exact value.
    pub(crate) fn compare(self, other: Number) -> std::cmp::Ordering {
        match (self, other) {
            (Number::Integer(left), Number::Integer(right)) => left.cmp(&right),
            (Number::Double(left), Number::Double(right)) => left.partial_cmp(&right).expect("JSON knows no NaN"),
            (Number::Integer(left), Number::Double(right)) => compare_mixed(left, right),
            (Number::Double(left), Number::Integer(right)) => compare_mixed(right, left).reverse(),
        }
    }
}

/// Compares an integer with a finite double.
pub(super) fn compare_mixed(integer: i64, double: f64) -> std::cmp::Ordering {
    const END: f64 = 9_223_372_036_854_775_808.0;
    if double >= END {
        return std::cmp::Ordering::Less;
    }
    if double < -END {
        return std::cmp::Ordering::Greater;
    }
    // Within these bounds the whole part is exactly a 64-bit integer.
    let whole = double.trunc();
    integer.cmp(&(whole as i64)).then_with(|| 0.0_f64.partial_cmp(&(double - whole)).expect("it is finite"))
}

/// Boolean syntax (RFC 4517, 3.3.3); the strings ignore case.
pub(super) fn read_boolean(text: &str) -> Option<bool> {
    match text {
        _ if text.eq_ignore_ascii_case("true") => Some(true),
        _ if text.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    }
}

/// Generalized Time of RFC 4517, 3.3.13, or a date and time of RFC 3339.
pub(super) fn read_time(text: &str) -> Option<Timestamp> {
    if text.as_bytes().get(4) == Some(&b'-') {
        return text.parse().ok();
    }
    let digits = |range: std::ops::Range<usize>| -> Option<i16> {
        let digits = text.get(range)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let two = |at: usize| -> Option<i8> { digits(at..at + 2)?.try_into().ok() };
    let (year, month, day, hour) = (digits(0..4)?, two(4)?, two(6)?, two(8)?);
    let mut at = 10;
    let mut next = || {
        let found = two(at)?;
        at += 2;
        Some(found)
    };
    let minute = next();
    let second = minute.and_then(|_| next());
    // A fraction applies to the last given unit.
    let unit_nanos: i64 = match (minute, second) {
        (None, _) => 3_600_000_000_000,
        (_, None) => 60_000_000_000,
        _ => 1_000_000_000,
    };
    let mut rest = &text[at..];
    let mut fraction = 0;
    if let Some(after) = rest.strip_prefix(['.', ',']) {
        let length = after.bytes().take_while(u8::is_ascii_digit).count();
        let digits = after.get(..length).filter(|digits| !digits.is_empty())?;
        // Digits beyond the nanosecond of an hour are beyond our microseconds anyway.
        let digits = &digits[..length.min(15)];
        let scale = 10_i128.pow(digits.len() as u32);
        fraction = i64::try_from(i128::from(unit_nanos) * digits.parse::<i128>().ok()? / scale).ok()?;
        rest = &after[length..];
    }
    let offset_minutes: i64 = match rest {
        "Z" => 0,
        _ => {
            let sign = match rest.as_bytes().first()? {
                b'+' => 1,
                b'-' => -1,
                _ => return None,
            };
            let at = text.len() - rest.len() + 1;
            let (hours, minutes) = match rest.len() {
                3 => (two(at)?, 0),
                5 => (two(at)?, two(at + 2)?),
                _ => return None,
            };
            (hours < 24 && minutes < 60).then(|| sign * (i64::from(hours) * 60 + i64::from(minutes)))?
        }
    };
    let time = jiff::civil::DateTime::new(year, month, day, hour, minute.unwrap_or(0), second.unwrap_or(0), 0).ok()?;
    let instant = time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_microsecond();
    Some(Timestamp(instant.checked_add(fraction / 1_000)?.checked_sub(offset_minutes * 60_000_000)?))
}
