//! Matching rules that a filter can request by name: `attribute:rule:=value`.

use super::{
    evaluate::{AttributeValue, Truth},
    prepare::{self, Form, Parts},
};
use crate::{
    ldap::node::{Number, read_boolean, read_time},
    problem::closest,
    time::Timestamp,
};

/// A rule, by name or object identifier.
#[derive(Debug)]
pub(super) struct MatchingRule {
    pub name: &'static str,
    pub oid: &'static str,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// For strings.
    Text(Form, Act),
    /// For strings; matches one word.
    Word,
    Boolean,
    /// For numbers.
    Integer(Act),
    /// For times, and strings that are times.
    Time(Act),
    /// All bits of the assertion are set.
    AllBits,
    /// A bit of the assertion is set.
    AnyBit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Equal,
    /// The value precedes the assertion.
    Before,
    Substrings,
}

/// An assertion in the syntax of its rule.
#[derive(Debug, Clone)]
pub(super) struct RuleAssertion {
    /// As it was written.
    pub text: String,
    value: Prepared,
}

#[derive(Debug, Clone)]
enum Prepared {
    Text(String),
    Parts(Parts),
    Boolean(bool),
    Integer(i64),
    Time(Timestamp),
}

const fn rule(name: &'static str, oid: &'static str, kind: Kind) -> MatchingRule {
    MatchingRule { name, oid, kind }
}

const RULES: &[MatchingRule] = &[
    rule("caseIgnoreMatch", "2.5.13.2", Kind::Text(Form::CaseIgnore, Act::Equal)),
    rule("caseIgnoreOrderingMatch", "2.5.13.3", Kind::Text(Form::CaseIgnore, Act::Before)),
    rule("caseIgnoreSubstringsMatch", "2.5.13.4", Kind::Text(Form::CaseIgnore, Act::Substrings)),
    rule("caseExactMatch", "2.5.13.5", Kind::Text(Form::CaseExact, Act::Equal)),
    rule("caseExactOrderingMatch", "2.5.13.6", Kind::Text(Form::CaseExact, Act::Before)),
    rule("caseExactSubstringsMatch", "2.5.13.7", Kind::Text(Form::CaseExact, Act::Substrings)),
    rule("numericStringMatch", "2.5.13.8", Kind::Text(Form::Numeric, Act::Equal)),
    rule("numericStringOrderingMatch", "2.5.13.9", Kind::Text(Form::Numeric, Act::Before)),
    rule("numericStringSubstringsMatch", "2.5.13.10", Kind::Text(Form::Numeric, Act::Substrings)),
    rule("booleanMatch", "2.5.13.13", Kind::Boolean),
    rule("integerMatch", "2.5.13.14", Kind::Integer(Act::Equal)),
    rule("integerOrderingMatch", "2.5.13.15", Kind::Integer(Act::Before)),
    rule("octetStringMatch", "2.5.13.17", Kind::Text(Form::Octets, Act::Equal)),
    rule("octetStringOrderingMatch", "2.5.13.18", Kind::Text(Form::Octets, Act::Before)),
    rule("telephoneNumberMatch", "2.5.13.20", Kind::Text(Form::Telephone, Act::Equal)),
    rule("telephoneNumberSubstringsMatch", "2.5.13.21", Kind::Text(Form::Telephone, Act::Substrings)),
    rule("generalizedTimeMatch", "2.5.13.27", Kind::Time(Act::Equal)),
    rule("generalizedTimeOrderingMatch", "2.5.13.28", Kind::Time(Act::Before)),
    rule("wordMatch", "2.5.13.32", Kind::Word),
    rule("caseExactIA5Match", "1.3.6.1.4.1.1466.109.114.1", Kind::Text(Form::CaseExact, Act::Equal)),
    rule("caseIgnoreIA5Match", "1.3.6.1.4.1.1466.109.114.2", Kind::Text(Form::CaseIgnore, Act::Equal)),
    rule("caseIgnoreIA5SubstringsMatch", "1.3.6.1.4.1.1466.109.114.3", Kind::Text(Form::CaseIgnore, Act::Substrings)),
    rule("bitAndMatch", "1.2.840.113556.1.4.803", Kind::AllBits),
    rule("bitOrMatch", "1.2.840.113556.1.4.804", Kind::AnyBit),
];

/// LDAP rules that do not apply to subscribers, and the reason.
const STRANGERS: &[(&str, &str, &str)] = &[
    ("distinguishedNameMatch", "2.5.13.1", "subscribers have no distinguished names"),
    ("uniqueMemberMatch", "2.5.13.23", "subscribers have no distinguished names"),
    ("inChainMatch", "1.2.840.113556.1.4.1941", "subscribers do not link to each other"),
    ("objectIdentifierMatch", "2.5.13.0", "no attribute of a subscriber is an object identifier"),
    ("objectIdentifierFirstComponentMatch", "2.5.13.30", "no attribute of a subscriber is a description of a schema"),
    ("integerFirstComponentMatch", "2.5.13.29", "no attribute of a subscriber is a description of a schema"),
    ("directoryStringFirstComponentMatch", "2.5.13.31", "no attribute of a subscriber is a description of a schema"),
    (
        "caseIgnoreListMatch",
        "2.5.13.11",
        "no attribute of a subscriber is a postal address; each item of a list is a value",
    ),
    (
        "caseIgnoreListSubstringsMatch",
        "2.5.13.12",
        "no attribute of a subscriber is a postal address; each item of a list is a value",
    ),
    ("bitStringMatch", "2.5.13.16", "no attribute of a subscriber is a bit string"),
    ("keywordMatch", "2.5.13.33", "no attribute of a subscriber has keywords of its own; `wordMatch` finds words"),
];

/// The matching rules for filters: name and object identifier.
pub fn rules() -> impl Iterator<Item = (&'static str, &'static str)> {
    RULES.iter().map(|rule| (rule.name, rule.oid))
}

/// A rule by its name (ignoring case) or object identifier.
///
/// # Errors
/// A message and a hint.
pub(super) fn find(text: &str) -> Result<&'static MatchingRule, (String, String)> {
    let is_named = |name: &str, oid: &str| name.eq_ignore_ascii_case(text) || oid == text;
    if let Some(rule) = RULES.iter().find(|rule| is_named(rule.name, rule.oid)) {
        return Ok(rule);
    }
    if let Some((_, _, why)) = STRANGERS.iter().find(|(name, oid, _)| is_named(name, oid)) {
        return Err((format!("the matching rule `{text}` finds nothing here"), (*why).to_owned()));
    }
    let hint = match closest(text, RULES.iter().map(|rule| rule.name)) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("the rules are {}", RULES.iter().map(|rule| rule.name).collect::<Vec<_>>().join(", ")),
    };
    Err((format!("there is no matching rule `{text}`"), hint))
}

impl MatchingRule {
    /// Whether its assertion contains asterisks.
    pub fn is_for_substrings(&self) -> bool {
        matches!(self.kind, Kind::Text(_, Act::Substrings))
    }

    /// Parses an assertion in the rule's syntax.
    ///
    /// # Errors
    /// A message and a hint.
    pub fn assertion(&self, text: String) -> Result<RuleAssertion, (String, String)> {
        let wrong = |what: &str, hint: &str| {
            Err((format!("`{text}` is not {what}, which `{}` asks for", self.name), hint.to_owned()))
        };
        let value = match self.kind {
            Kind::Text(..) if self.name.contains("IA5") && !text.is_ascii() => {
                return wrong("ASCII", "the rules without `IA5` are for all characters");
            }
            Kind::Text(form, Act::Substrings) => match substrings(&text) {
                Ok(parts) => Prepared::Parts(parts.prepared(form)),
                Err(hint) => return wrong("a substring assertion", hint),
            },
            Kind::Text(form, _) => Prepared::Text(prepare::whole(&text, form)),
            Kind::Word => match &prepare::words(&text)[..] {
                [word] => Prepared::Text(word.clone()),
                _ => return wrong("one word", "ask for each word by itself"),
            },
            Kind::Boolean => match read_boolean(&text) {
                Some(value) => Prepared::Boolean(value),
                None => return wrong("a boolean", "write TRUE or FALSE"),
            },
            Kind::Integer(_) | Kind::AllBits | Kind::AnyBit => match Number::read(&text) {
                Some(Number::Integer(value)) => Prepared::Integer(value),
                _ => return wrong("an integer of 64 bits", "write digits, after a `-` where it is negative"),
            },
            Kind::Time(_) => match read_time(&text) {
                Some(time) => Prepared::Time(time),
                None => return wrong("a time", TIME_HINT),
            },
        };
        Ok(RuleAssertion { text, value })
    }

    /// Evaluates it for one value; `None` if the rule does not apply to values of this kind.
    pub fn apply(&self, assertion: &RuleAssertion, seen: AttributeValue<'_>) -> Option<Truth> {
        let is = match (self.kind, &assertion.value, seen) {
            (Kind::Text(form, act), requested, AttributeValue::Text(text) | AttributeValue::Id(text)) => {
                let text = prepare::whole(text, form);
                match (act, requested) {
                    (Act::Equal, Prepared::Text(requested)) => text == *requested,
                    (Act::Before, Prepared::Text(requested)) => text < *requested,
                    (Act::Substrings, Prepared::Parts(parts)) => parts.fit(&text),
                    _ => return None,
                }
            }
            (Kind::Word, Prepared::Text(requested), AttributeValue::Text(text) | AttributeValue::Id(text)) => {
                prepare::words(text).contains(requested)
            }
            (Kind::Boolean, Prepared::Boolean(requested), AttributeValue::Boolean(value)) => value == *requested,
            (Kind::Integer(act), Prepared::Integer(requested), AttributeValue::Number(value)) => {
                let order = value.compare(Number::Integer(*requested));
                if act == Act::Before { order.is_lt() } else { order.is_eq() }
            }
            (Kind::AllBits, Prepared::Integer(requested), AttributeValue::Number(Number::Integer(value))) => {
                value & requested == *requested
            }
            (Kind::AnyBit, Prepared::Integer(requested), AttributeValue::Number(Number::Integer(value))) => {
                value & requested != 0
            }
            (Kind::Time(act), Prepared::Time(requested), seen) => {
                let time = match seen {
                    AttributeValue::Time(time) => time,
                    AttributeValue::Text(text) => read_time(text)?,
                    _ => return None,
                };
                if act == Act::Before { time < *requested } else { time == *requested }
            }
            _ => return None,
        };
        Some(Truth::of(is))
    }
}

/// Hint for times.
pub(super) const TIME_HINT: &str = "write Generalized Time, such as 20261121093000Z, or 2026-11-21T09:30:00Z";

/// Parses the syntax Substring Assertion: asterisks between parts, in which `\2a` is an asterisk and `\5c` a
/// backslash.
fn substrings(text: &str) -> Result<Parts, &'static str> {
    const HINT: &str = "write a star on at least one side, such as vi*a; a star of its own is \\2a, a backslash \\5c";
    let mut parts = vec![String::new()];
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '*' => parts.push(String::new()),
            '\\' => {
                let code: String = rest.by_ref().take(2).collect();
                let plain = match &*code.to_ascii_lowercase() {
                    "2a" => '*',
                    "5c" => '\\',
                    _ => return Err(HINT),
                };
                parts.last_mut().expect("there is one").push(plain);
            }
            c => parts.last_mut().expect("there is one").push(c),
        }
    }
    let stars = parts.len() - 1;
    let inner_empty = parts.len() > 2 && parts[1..stars].iter().any(String::is_empty);
    if stars == 0 || inner_empty || parts.iter().all(String::is_empty) {
        return Err(HINT);
    }
    Ok(Parts::between_stars(parts))
}
