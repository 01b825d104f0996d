//! Filters of LDAP over subscribers: the text of RFC 4515, the meaning of RFC 4511 and 4517.
//!
//! # What a filter sees
//!
//! A subscriber is an entry. Its attributes are those its creator gave it, beside a few that every subscriber has:
//!
//! | attribute | what | equality |
//! |---|---|---|
//! | `id` | its id | character by character |
//! | `enabled` | whether it receives notifications | booleanMatch |
//! | `locale`, `time_zone` | as in its profile; none if not set | caseIgnoreMatch |
//! | `created_at` | when it was made | generalizedTimeMatch |
//! | `channel` | the channels of its active devices | caseIgnoreMatch |
//! | any other name | the attribute of this name | by the type of each value, see below |
//! | `attributes.<name>` | the attribute of this name, also where one of the above is in its way | |
//!
//! Names are compared without regard to case. A list has its items as values, through lists in lists; null is no value. A
//! map is entered by its keys: `address.city`. What stands in an attribute decides how it is compared:
//!
//! | value | `=` | `>=`, `<=` | substrings |
//! |---|---|---|---|
//! | string | caseIgnoreMatch | caseIgnoreOrderingMatch | caseIgnoreSubstringsMatch |
//! | number | by exact value; the assertion is a number as JSON writes it | by exact value | Undefined |
//! | boolean | booleanMatch: `TRUE`, `FALSE` | Undefined | Undefined |
//! | map | Undefined | Undefined | Undefined |
//!
//! `~=` compares letters and digits only, without case and accents, where the value is a string, and is `=` elsewhere.
//! Other rules are asked for by `attribute:rule:=value`; see [`rules`].
//!
//! # True, False, Undefined
//!
//! An item is True if it is so for one of the values; else Undefined if it is for one of them; else False. An attribute
//! without values makes it False, never Undefined, since every name is the name of an attribute here. An assertion that is
//! not of the value's syntax, such as `(age=young)` where `age` is a number, is Undefined for that value. `!` leaves
//! Undefined as it is. A subscriber meets a filter where it is True. If the evaluation takes too many steps, which only values
//! of many kilobytes and hundreds of items do, the whole is Undefined.
//!
//! Strings are prepared by RFC 4518 before they are compared: case is folded, compatible characters are made one (NFKC),
//! runs of spaces count as one, invisible characters as none. Its prohibition of characters is not applied.

mod evaluate; // evaluates filters against entries: true, false or undefined
mod matching_rule; // matching rules by name
mod normal; // canonical form of filters
mod parse; // parser of filter texts
pub mod prepare; // string preparation (RFC 4518)

use std::{fmt, ops::Bound};

use crate::{problem::Problem, time::Timestamp, value::Value};

use evaluate::Steps;
pub use evaluate::{Entry, STEPS_MAX, Truth};
pub use matching_rule::rules;
use matching_rule::{MatchingRule, RuleAssertion};
use prepare::{Form, Parts};

/// Longest filter text in bytes.
pub const FILTER_BYTES_MAX: usize = 16 * 1024;
/// Deepest nesting of filters.
pub const FILTER_DEPTH_MAX: usize = 100;
/// Most items, conjunctions, disjunctions and negations of one filter.
pub const FILTER_TERMS_MAX: usize = 1_000;
/// Longest name of an attribute in a filter, in characters.
pub const ATTRIBUTE_NAME_MAX: usize = 256;

/// A parsed filter. Two are equal if their canonical texts are.
#[derive(Debug, Clone)]
pub struct LdapFilter {
    root: Node,
    canonical: Box<str>,
    ids: (Bound<String>, Bound<String>),
}

/// Evaluates a filter within limits.
fn evaluated(node: &Node, entry: &Entry<'_>) -> Truth {
    let mut steps = Steps::default();
    let truth = node.evaluate(entry, &mut steps);
    if steps.are_exhausted() { Truth::Undefined } else { truth }
}

impl LdapFilter {
    /// Parses a filter. As an extension of RFC 4515, spaces and line ends may surround every parenthesised filter.
    ///
    /// # Errors
    /// Every problem found, with line and column; a syntax error ends the search.
    pub fn parse(text: &str) -> Result<LdapFilter, Vec<Problem>> {
        let root = normal::normal(parse::parse(text)?);
        let canonical = root.to_string().into();
        Ok(LdapFilter { ids: root.ids(), root, canonical })
    }

    /// Evaluates it for a subscriber. Undefined if that takes more than [`STEPS_MAX`] steps.
    pub fn evaluate(&self, entry: &Entry<'_>) -> Truth {
        evaluated(&self.root, entry)
    }

    /// Whether a subscriber matches: only for [`Truth::True`].
    pub fn matches(&self, entry: &Entry<'_>) -> bool {
        self.evaluate(entry) == Truth::True
    }

    /// Results of the filters in its conjunction, each with its text; Undefined once all together take more than
    /// [`STEPS_MAX`] steps.
    pub fn conjuncts(&self, entry: &Entry<'_>) -> Vec<(String, Truth)> {
        let parts = match &self.root {
            Node::And(parts) => parts.as_slice(),
            root => std::slice::from_ref(root),
        };
        // One limit for all, so that many of them cost no more than the whole.
        let mut steps = Steps::default();
        let evaluated_part = |part: &Node| {
            let truth = part.evaluate(entry, &mut steps);
            (part.to_string(), if steps.are_exhausted() { Truth::Undefined } else { truth })
        };
        parts.iter().map(evaluated_part).collect()
    }

    /// Its canonical text: without redundant parts, and in a fixed order. Parsing it gives the same filter.
    pub fn canonical(&self) -> &str {
        &self.canonical
    }

    /// Whether it uses an attribute of this name, or a value within it.
    pub fn references(&self, name: &str) -> bool {
        self.root.any_attribute(&|attribute| match attribute {
            None => true,
            Some(Attribute::Property(_)) => false,
            Some(Attribute::Named(asked)) => {
                asked.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
                    && matches!(asked.as_bytes().get(name.len()), None | Some(b'.'))
            }
        })
    }

    /// Whether it uses the channels of active devices.
    pub fn references_channels(&self) -> bool {
        self.root.any_attribute(&|attribute| {
            attribute.is_none_or(|attribute| *attribute == Attribute::Property(Property::Channel))
        })
    }

    /// Bounds of the ids of all matching subscribers.
    pub fn ids(&self) -> (Bound<&str>, Bound<&str>) {
        (self.ids.0.as_ref().map(String::as_str), self.ids.1.as_ref().map(String::as_str))
    }
}

impl PartialEq for LdapFilter {
    fn eq(&self, other: &LdapFilter) -> bool {
        self.canonical == other.canonical
    }
}

impl Eq for LdapFilter {}

/// The canonical text.
impl fmt::Display for LdapFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.canonical)
    }
}

impl std::str::FromStr for LdapFilter {
    type Err = Vec<Problem>;

    fn from_str(text: &str) -> Result<Self, Vec<Problem>> {
        LdapFilter::parse(text)
    }
}

/// A filter as a tree.
#[derive(Debug, Clone)]
enum Node {
    /// Conjunction; empty: True.
    And(Vec<Node>),
    /// Disjunction; empty: False.
    Or(Vec<Node>),
    Not(Box<Node>),
    Item(Item),
}

impl Node {
    /// Whether the predicate holds for one of the attributes; `None` stands for all of them.
    fn any_attribute(&self, is: &dyn Fn(Option<&Attribute>) -> bool) -> bool {
        match self {
            Node::And(parts) | Node::Or(parts) => parts.iter().any(|part| part.any_attribute(is)),
            Node::Not(part) => part.any_attribute(is),
            Node::Item(item) => is(item.attribute.as_ref()),
        }
    }
}

/// One assertion about one attribute.
#[derive(Debug, Clone)]
struct Item {
    /// Without one, the assertion is about all attributes that its rule applies to.
    attribute: Option<Attribute>,
    test: Test,
}

/// The attribute of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Attribute {
    Property(Property),
    /// A stored attribute, in lower case; dots may lead into maps.
    Named(String),
}

/// A property that every subscriber has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Property {
    Id,
    Enabled,
    Locale,
    TimeZone,
    CreatedAt,
    Channel,
}

impl Property {
    const ALL: [Property; 6] =
        [Property::Id, Property::Enabled, Property::Locale, Property::TimeZone, Property::CreatedAt, Property::Channel];

    const fn name(self) -> &'static str {
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
const ATTRIBUTES: &str = "attributes.";

impl Attribute {
    fn of(name: &str) -> Attribute {
        let name = name.to_ascii_lowercase();
        match Property::ALL.into_iter().find(|property| property.name() == name) {
            Some(property) => Attribute::Property(property),
            None => Attribute::Named(name.strip_prefix(ATTRIBUTES).map_or_else(|| name.clone(), str::to_owned)),
        }
    }
}

/// Assertion of an item.
#[derive(Debug, Clone)]
enum Test {
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
struct Assertion {
    text: String,
    prepared: String,
    approximate: String,
    number: Option<Number>,
    boolean: Option<bool>,
    time: Option<Timestamp>,
}

impl Assertion {
    fn of(text: String) -> Assertion {
        Assertion {
            prepared: prepare::whole(&text, Form::CaseIgnore),
            approximate: prepare::approximate(&text),
            number: Number::read(&text),
            boolean: read_boolean(&text),
            time: read_time(&text),
            text,
        }
    }
}

/// The parts between the asterisks of a substring filter.
#[derive(Debug, Clone)]
struct Substrings {
    /// As written, for character by character comparison.
    exact: Parts,
    /// Prepared, ignoring case.
    prepared: Parts,
}

/// A JSON number: a 64-bit integer, or a double.
#[derive(Debug, Clone, Copy)]
enum Number {
    Integer(i64),
    Double(f64),
}

impl Number {
    fn read(text: &str) -> Option<Number> {
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
    fn compare(self, other: Number) -> std::cmp::Ordering {
        match (self, other) {
            (Number::Integer(left), Number::Integer(right)) => left.cmp(&right),
            (Number::Double(left), Number::Double(right)) => left.partial_cmp(&right).expect("JSON knows no NaN"),
            (Number::Integer(left), Number::Double(right)) => compare_mixed(left, right),
            (Number::Double(left), Number::Integer(right)) => compare_mixed(right, left).reverse(),
        }
    }
}

/// Compares an integer with a finite double.
fn compare_mixed(integer: i64, double: f64) -> std::cmp::Ordering {
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
fn read_boolean(text: &str) -> Option<bool> {
    match text {
        _ if text.eq_ignore_ascii_case("true") => Some(true),
        _ if text.eq_ignore_ascii_case("false") => Some(false),
        _ => None,
    }
}

/// Generalized Time of RFC 4517, 3.3.13, or a date and time of RFC 3339.
fn read_time(text: &str) -> Option<Timestamp> {
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

#[cfg(test)]
mod tests;
