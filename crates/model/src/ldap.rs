//! Filters of LDAP over subscribers: the text of RFC 4515, the meaning of RFC 4511 and 4517.
//!
//! # What a filter sees
//!
//! A subscriber is an entry. Its attributes are those its creator gave it, beside a few that every subscriber has:
//!
//! | attribute | what | equality |
//! |---|---|---|
//! | `id` | its id | character by character |
//! | `enabled` | whether it is told anything at all | booleanMatch |
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
//! Undefined as it is. A subscriber meets a filter where it is True. Where telling takes too many steps, which only values
//! of many kilobytes and hundreds of items do, the whole is Undefined.
//!
//! Strings are prepared by RFC 4518 before they are compared: case is folded, compatible characters are made one (NFKC),
//! runs of spaces count as one, invisible characters as none. Its prohibition of characters is not applied.

mod evaluate; // entries in, true, false or undefined out
mod matching_rule; // the rules that can be asked for by name
mod normal; // one text for filters that say the same
mod parse; // text in, tree or problems out
pub mod prepare; // RFC 4518: what of a string counts

use std::{fmt, ops::Bound};

use crate::{problem::Problem, time::Timestamp, value::Value};

use evaluate::Steps;
pub use evaluate::{Entry, STEPS_MAX, Truth};
pub use matching_rule::rules;
use matching_rule::{MatchingRule, RuleAssertion};
use prepare::{Form, Parts};

/// Most bytes of a filter's text.
pub const FILTER_BYTES_MAX: usize = 16 * 1024;
/// Most filters within each other.
pub const FILTER_DEPTH_MAX: usize = 100;
/// Most items, conjunctions, disjunctions and negations of one filter.
pub const FILTER_TERMS_MAX: usize = 1_000;
/// Longest name of an attribute in a filter, in characters.
pub const ATTRIBUTE_NAME_MAX: usize = 256;

/// A filter, ready to be put to subscribers. Two are equal where their canonical texts are.
#[derive(Debug, Clone)]
pub struct LdapFilter {
    root: Node,
    canonical: Box<str>,
    ids: (Bound<String>, Bound<String>),
}

/// What a filter says, within bounds.
fn evaluated(node: &Node, entry: &Entry<'_>) -> Truth {
    let mut steps = Steps::default();
    let truth = node.evaluate(entry, &mut steps);
    if steps.are_over() { Truth::Undefined } else { truth }
}

impl LdapFilter {
    /// Reads a filter. Spaces and line ends may stand around every parenthesised filter, which RFC 4515 does not know.
    ///
    /// # Errors
    /// Every problem found, with line and column in the text; a text that cannot be read further ends the search.
    pub fn parse(text: &str) -> Result<LdapFilter, Vec<Problem>> {
        let root = normal::normal(parse::parse(text)?);
        let canonical = root.to_string().into();
        Ok(LdapFilter { ids: root.ids(), root, canonical })
    }

    /// What it says of a subscriber. Undefined where telling takes more than [`STEPS_MAX`] steps.
    pub fn evaluate(&self, entry: &Entry<'_>) -> Truth {
        evaluated(&self.root, entry)
    }

    /// Whether a subscriber meets it: only where it is [`Truth::True`].
    pub fn matches(&self, entry: &Entry<'_>) -> bool {
        self.evaluate(entry) == Truth::True
    }

    /// What each of the filters that it is a conjunction of says of a subscriber, with its text; Undefined from where all of them
    /// together take more than [`STEPS_MAX`] steps.
    pub fn conjuncts(&self, entry: &Entry<'_>) -> Vec<(String, Truth)> {
        let parts = match &self.root {
            Node::And(parts) => parts.as_slice(),
            root => std::slice::from_ref(root),
        };
        // One bound for all, so that many of them cost no more than the whole.
        let mut steps = Steps::default();
        let told = |part: &Node| {
            let truth = part.evaluate(entry, &mut steps);
            (part.to_string(), if steps.are_over() { Truth::Undefined } else { truth })
        };
        parts.iter().map(told).collect()
    }

    /// Its text in normal form: without what says nothing, and in one order. Reading it gives the same filter.
    pub fn canonical(&self) -> &str {
        &self.canonical
    }

    /// Whether it asks for an attribute of this name, or for what is within it.
    pub fn asks_for(&self, name: &str) -> bool {
        self.root.any_attribute(&|attribute| match attribute {
            None => true,
            Some(Attribute::Property(_)) => false,
            Some(Attribute::Named(asked)) => {
                asked.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
                    && matches!(asked.as_bytes().get(name.len()), None | Some(b'.'))
            }
        })
    }

    /// Whether it asks for the channels of active devices.
    pub fn asks_for_channels(&self) -> bool {
        self.root.any_attribute(&|attribute| {
            attribute.is_none_or(|attribute| *attribute == Attribute::Property(Property::Channel))
        })
    }

    /// Between which ids every subscriber that meets it lies.
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
    /// Of none: True.
    And(Vec<Node>),
    /// Of none: False.
    Or(Vec<Node>),
    Not(Box<Node>),
    Item(Item),
}

impl Node {
    /// Whether one of the attributes is so; `None` stands for all of them.
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
    /// Without one, the assertion is about all attributes that its rule is for.
    attribute: Option<Attribute>,
    test: Test,
}

/// What an item looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Attribute {
    Property(Property),
    /// An attribute of its creator's, in lower case; dots may lead into maps.
    Named(String),
}

/// What every subscriber has.
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

/// The prefix that leads to attributes whose names are those of properties.
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

/// What an item asserts.
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

/// An assertion value, and what it is in each syntax that it is in.
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

/// What stands between the stars.
#[derive(Debug, Clone)]
struct Substrings {
    /// As written, for what is compared character by character.
    exact: Parts,
    /// Prepared, case ignored.
    prepared: Parts,
}

/// A number of JSON: an integer of 64 bits, or a double.
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

/// An integer against a finite double.
fn compare_mixed(integer: i64, double: f64) -> std::cmp::Ordering {
    const END: f64 = 9_223_372_036_854_775_808.0;
    if double >= END {
        return std::cmp::Ordering::Less;
    }
    if double < -END {
        return std::cmp::Ordering::Greater;
    }
    // Within these bounds the whole part is an integer of 64 bits exactly.
    let whole = double.trunc();
    integer.cmp(&(whole as i64)).then_with(|| 0.0_f64.partial_cmp(&(double - whole)).expect("it is finite"))
}

/// RFC 4517, 3.3.3; its quoted strings know no case.
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
    // A fraction is one of the last unit that is given.
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
