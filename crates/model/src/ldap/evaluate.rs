//! Evaluates filters against entries: RFC 4511, 4.5.1.7.

use std::{collections::BTreeMap, fmt, ops::Bound};

use super::prepare::{self, Form};
use crate::{
    id::{Name, SubscriberId},
    ldap::node::{Assertion, Attribute, Item, Node, Number, Property, Substrings, Test},
    subscriber::{Device, DeviceState, Profile, Subscriber},
    time::Timestamp,
    value::Value,
};

/// Most steps of one evaluation: one for each compared value, and one for each six bytes of text, because it is
/// prepared each time.
pub const STEPS_MAX: u32 = 100_000;

/// A subscriber as an LDAP entry.
#[derive(Debug, Clone)]
pub struct Entry<'a> {
    /// Its id.
    pub id: &'a SubscriberId,
    /// Its profile.
    pub profile: &'a Profile,
    /// The channels of its active devices.
    pub channels: Vec<&'a Name>,
    /// Creation time.
    pub created_at: Timestamp,
}

impl<'a> From<&'a Subscriber> for Entry<'a> {
    fn from(subscriber: &'a Subscriber) -> Self {
        Entry {
            id: &subscriber.id,
            profile: &subscriber.profile,
            channels: active_channels(&subscriber.devices),
            created_at: subscriber.created_at,
        }
    }
}

fn active_channels(devices: &BTreeMap<Name, Device>) -> Vec<&Name> {
    devices.values().filter(|device| device.state == DeviceState::Active).map(|device| &device.channel).collect()
}

/// Three-valued result of a filter. Of several, `&` takes the least and `|` the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Truth {
    /// It is not so.
    False,
    /// The assertion does not fit the value's syntax.
    Undefined,
    /// It is so.
    True,
}

impl Truth {
    /// Converts a known result.
    pub fn of(is: bool) -> Truth {
        if is { Truth::True } else { Truth::False }
    }
}

/// `true`, `false` or `undefined`.
impl fmt::Display for Truth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Truth::False => "false",
            Truth::Undefined => "undefined",
            Truth::True => "true",
        })
    }
}

/// Undefined stays undefined.
impl std::ops::Not for Truth {
    type Output = Truth;
    fn not(self) -> Truth {
        match self {
            Truth::False => Truth::True,
            Truth::Undefined => Truth::Undefined,
            Truth::True => Truth::False,
        }
    }
}

/// One value of an attribute.
#[derive(Debug, Clone, Copy)]
pub(super) enum AttributeValue<'a> {
    /// Compared character by character.
    Id(&'a str),
    Text(&'a str),
    Number(Number),
    Boolean(bool),
    Time(Timestamp),
    /// A map: only its presence is known.
    Map,
}

/// Remaining budget of an evaluation.
#[derive(Debug)]
pub(super) struct Steps(u32);

impl Default for Steps {
    fn default() -> Self {
        Steps(STEPS_MAX)
    }
}

impl Steps {
    /// Takes the cost of a value; false from the first value that exceeds the budget.
    fn take(&mut self, seen: AttributeValue<'_>) -> bool {
        let bytes = match seen {
            AttributeValue::Id(text) | AttributeValue::Text(text) => text.len(),
            _ => 0,
        };
        let steps = u32::try_from(1 + bytes / 6).unwrap_or(u32::MAX);
        self.0 = self.0.saturating_sub(steps);
        !self.are_exhausted()
    }

    pub fn are_exhausted(&self) -> bool {
        self.0 == 0
    }
}

impl Node {
    /// Evaluates it for an entry; the result is arbitrary once the budget is exceeded.
    pub fn evaluate(&self, entry: &Entry<'_>, steps: &mut Steps) -> Truth {
        match self {
            Node::And(parts) => {
                let mut least = Truth::True;
                for part in parts {
                    least = least.min(part.evaluate(entry, steps));
                    if least == Truth::False {
                        break;
                    }
                }
                least
            }
            Node::Or(parts) => {
                let mut greatest = Truth::False;
                for part in parts {
                    greatest = greatest.max(part.evaluate(entry, steps));
                    if greatest == Truth::True {
                        break;
                    }
                }
                greatest
            }
            Node::Not(part) => !part.evaluate(entry, steps),
            Node::Item(item) => item.evaluate(entry, steps),
        }
    }

    /// Bounds of the ids for which this can be True.
    pub fn ids(&self) -> (Bound<String>, Bound<String>) {
        use Bound::{Excluded, Included, Unbounded};
        match self {
            Node::And(parts) => parts.iter().map(Node::ids).fold((Unbounded, Unbounded), |(low, high), (from, to)| {
                (tighter(low, from, std::cmp::Ordering::Greater), tighter(high, to, std::cmp::Ordering::Less))
            }),
            Node::Item(Item { attribute: Some(Attribute::Property(Property::Id)), test }) => match test {
                Test::Equal(id) => (Included(id.text.clone()), Included(id.text.clone())),
                Test::AtLeast(id) => (Included(id.text.clone()), Unbounded),
                Test::AtMost(id) => (Unbounded, Included(id.text.clone())),
                Test::Substrings(Substrings { exact, .. }) => match &exact.first {
                    Some(first) => (Included(first.clone()), after(first).map_or(Unbounded, Excluded)),
                    None => (Unbounded, Unbounded),
                },
                _ => (Unbounded, Unbounded),
            },
            _ => (Unbounded, Unbounded),
        }
    }
}

/// The bound that leaves less: of two lower ones the greater, of two upper ones the less.
fn tighter(one: Bound<String>, other: Bound<String>, wins: std::cmp::Ordering) -> Bound<String> {
    let text = |bound: &Bound<String>| match bound {
        Bound::Included(text) | Bound::Excluded(text) => Some(text.clone()),
        Bound::Unbounded => None,
    };
    match (text(&one), text(&other)) {
        (None, _) => other,
        (_, None) => one,
        (Some(left), Some(right)) => match left.cmp(&right) {
            std::cmp::Ordering::Equal if matches!(other, Bound::Excluded(_)) => other,
            std::cmp::Ordering::Equal => one,
            order if order == wins => one,
            _ => other,
        },
    }
}

/// The first text after all texts with this prefix; `None` if there is none.
fn after(prefix: &str) -> Option<String> {
    let mut kept = prefix.to_owned();
    while let Some(last) = kept.pop() {
        if let Some(next) = (last..=char::MAX).nth(1) {
            kept.push(next);
            return Some(kept);
        }
    }
    None
}

impl Item {
    fn evaluate(&self, entry: &Entry<'_>, steps: &mut Steps) -> Truth {
        let mut found = Truth::False;
        let mut see = |seen: AttributeValue<'_>| {
            if !steps.take(seen) {
                return true;
            }
            found = found.max(self.test.of(seen, self.attribute.is_some()));
            found == Truth::True
        };
        match &self.attribute {
            Some(Attribute::Property(property)) => property.any(entry, &mut see),
            Some(Attribute::Named(name)) => any_named(entry.profile.attributes.iter(), name, &mut see),
            None => {
                Property::ALL.into_iter().any(|property| property.any(entry, &mut see))
                    || entry.profile.attributes.values().any(|value| any_leaf(value, &mut see))
            }
        };
        found
    }
}

type See<'s> = dyn FnMut(AttributeValue<'_>) -> bool + 's;

impl Property {
    /// Calls `see` for its values until one returns true.
    fn any(self, entry: &Entry<'_>, see: &mut See<'_>) -> bool {
        match self {
            Property::Id => see(AttributeValue::Id(entry.id.as_str())),
            Property::Enabled => see(AttributeValue::Boolean(entry.profile.enabled)),
            Property::Locale => entry.profile.locale.as_deref().is_some_and(|text| see(AttributeValue::Text(text))),
            Property::TimeZone => {
                entry.profile.time_zone.as_deref().is_some_and(|text| see(AttributeValue::Text(text)))
            }
            Property::CreatedAt => see(AttributeValue::Time(entry.created_at)),
            Property::Channel => entry.channels.iter().any(|channel| see(AttributeValue::Text(channel.as_str()))),
        }
    }
}

/// Calls `see` for the values of a name, including those below it in maps.
fn any_named<'v, K: AsRef<str> + 'v>(
    entries: impl Iterator<Item = (&'v K, &'v Value)>,
    name: &str,
    see: &mut See<'_>,
) -> bool {
    for (key, value) in entries {
        let key = key.as_ref();
        if key.eq_ignore_ascii_case(name) {
            if any_value(value, see) {
                return true;
            }
        } else if let Some(rest) = name.get(key.len()..).and_then(|rest| rest.strip_prefix('.'))
            && key.eq_ignore_ascii_case(&name[..key.len()])
            && any_within(value, rest, see)
        {
            return true;
        }
    }
    false
}

fn any_within(value: &Value, name: &str, see: &mut See<'_>) -> bool {
    match value {
        Value::Map(entries) => any_named(entries.iter().map(|(key, value)| (key, value)), name, see),
        Value::List(items) => items.iter().any(|item| any_within(item, name, see)),
        _ => false,
    }
}

fn any_value(value: &Value, see: &mut See<'_>) -> bool {
    match value {
        Value::Null => false,
        Value::Boolean(value) => see(AttributeValue::Boolean(*value)),
        Value::Integer(value) => see(AttributeValue::Number(Number::Integer(*value))),
        Value::Number(value) => see(AttributeValue::Number(Number::Double(*value))),
        Value::Text(text) => see(AttributeValue::Text(text)),
        Value::Timestamp(time) => see(AttributeValue::Time(*time)),
        Value::List(items) => items.iter().any(|item| any_value(item, see)),
        Value::Map(_) => see(AttributeValue::Map),
    }
}

/// Calls `see` for all values, including those in maps.
fn any_leaf(value: &Value, see: &mut See<'_>) -> bool {
    match value {
        Value::List(items) => items.iter().any(|item| any_leaf(item, see)),
        Value::Map(entries) => entries.iter().any(|(_, value)| any_leaf(value, see)),
        value => any_value(value, see),
    }
}

impl Test {
    /// Evaluates it for one value. `named`: whether the filter names the attribute, so that a value of the wrong kind
    /// is undefined; otherwise such values are ignored.
    pub(crate) fn of(&self, seen: AttributeValue<'_>, named: bool) -> Truth {
        let truth = match self {
            Test::Present => Some(Truth::True),
            Test::Equal(requested) => requested.equality(seen).map(Truth::of),
            Test::AtLeast(requested) => requested.order(seen).map(|order| Truth::of(order.is_ge())),
            Test::AtMost(requested) => requested.order(seen).map(|order| Truth::of(order.is_le())),
            Test::Approximate(requested) => match seen {
                AttributeValue::Text(text) | AttributeValue::Id(text) if !requested.approximate.is_empty() => {
                    Some(Truth::of(prepare::approximate(text) == requested.approximate))
                }
                _ => requested.equality(seen).map(Truth::of),
            },
            Test::Substrings(parts) => match seen {
                AttributeValue::Id(id) => Some(Truth::of(parts.exact.fit(id))),
                AttributeValue::Text(text) => {
                    Some(Truth::of(parts.prepared.fit(&prepare::whole(text, Form::CaseIgnore))))
                }
                _ => None,
            },
            Test::Rule(rule, requested) => rule.apply(requested, seen),
        };
        truth.unwrap_or(if named { Truth::Undefined } else { Truth::False })
    }
}

impl Assertion {
    fn equality(&self, seen: AttributeValue<'_>) -> Option<bool> {
        match seen {
            AttributeValue::Id(id) => Some(id == self.text),
            AttributeValue::Text(text) => Some(prepare::whole(text, Form::CaseIgnore) == self.prepared),
            AttributeValue::Number(value) => self.number.map(|requested| value.compare(requested).is_eq()),
            AttributeValue::Boolean(value) => self.boolean.map(|requested| value == requested),
            AttributeValue::Time(time) => self.time.map(|requested| time == requested),
            AttributeValue::Map => None,
        }
    }

    /// Order of a value relative to the assertion.
    fn order(&self, seen: AttributeValue<'_>) -> Option<std::cmp::Ordering> {
        match seen {
            AttributeValue::Id(id) => Some(id.cmp(&self.text)),
            AttributeValue::Text(text) => Some(prepare::whole(text, Form::CaseIgnore).cmp(&self.prepared)),
            AttributeValue::Number(value) => self.number.map(|requested| value.compare(requested)),
            AttributeValue::Time(time) => self.time.map(|requested| time.cmp(&requested)),
            AttributeValue::Boolean(_) | AttributeValue::Map => None,
        }
    }
}
