//! Filters over entries: the tree of RFC 4511, 4.5.1.7, and its evaluation under a schema.

use std::{collections::BTreeSet, sync::Arc};

use tocsin_model::ldap::{
    Truth,
    prepare::{self, Form, Parts},
};
use tocsin_store::entries::EntryNumber;

use crate::{
    access::{Grant, Level},
    change::tells_of_password,
    entry::{Attribute, Entry, OWN, any_value},
    groups::{MEMBER_OF, Members},
    schema::{AttributeType, Schema},
    syntax::{Act, Rule, find_rule},
};

/// A filter as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// All of them; of none: true.
    And(Vec<Filter>),
    /// One of them; of none: false.
    Or(Vec<Filter>),
    /// Not so.
    Not(Box<Filter>),
    /// The attribute has a value.
    Present(String),
    /// A value equals this one.
    Equal(String, Vec<u8>),
    /// A value is this one or beyond.
    AtLeast(String, Vec<u8>),
    /// A value is this one or before.
    AtMost(String, Vec<u8>),
    /// A value sounds like this one.
    Approximate(String, Vec<u8>),
    /// A value begins with, has within, ends with.
    Substrings(String, Option<Vec<u8>>, Vec<Vec<u8>>, Option<Vec<u8>>),
    /// By a rule of its own choice; with `names`, values of the entry's name count too.
    Extensible {
        /// The rule; without one, equality.
        rule: Option<String>,
        /// The attribute; without one, all that the rule is for.
        attribute: Option<String>,
        /// The value.
        value: Vec<u8>,
        /// Whether the distinguished name's values count.
        names: bool,
    },
}

/// A filter that knows what its names mean.
#[derive(Debug, Clone)]
pub enum Test {
    /// The least of them.
    And(Vec<Test>),
    /// The greatest of them.
    Or(Vec<Test>),
    /// The opposite.
    Not(Box<Test>),
    /// Nobody can tell.
    Undefined,
    /// Of one attribute.
    Of(Arc<AttributeType>, Ask),
    /// Whether it is in a group, whose members were found for this.
    MemberOf(Arc<AttributeType>, Arc<Members>),
    /// Of what is known of its password; those that meet it were found for this.
    OfPassword(Arc<AttributeType>, Arc<BTreeSet<EntryNumber>>),
    /// Of all attributes that a rule is for, and perhaps of the names.
    Any {
        /// The attribute; without one, all.
        kind: Option<Arc<AttributeType>>,
        /// The rule, and the normal form of the value.
        rule: Rule,
        /// What the rule is for.
        act: Act,
        /// The value in normal form.
        value: Vec<u8>,
        /// Whether the values of the name count.
        names: bool,
    },
}

/// What is asked of an attribute.
#[derive(Debug, Clone)]
pub enum Ask {
    /// Whether it is there.
    Present,
    /// Whether a value's normal form is this.
    Equal(Rule, Vec<u8>),
    /// Whether it is this or beyond.
    AtLeast(Rule, Vec<u8>),
    /// Whether it is this or before.
    AtMost(Rule, Vec<u8>),
    /// Whether it sounds like this.
    Approximate(String),
    /// Whether it has these parts.
    Substrings(Form, Parts),
}

impl Test {
    /// Makes sense of a filter. What makes none is Undefined, as the protocol asks.
    pub fn compile(filter: &Filter, schema: &Schema) -> Test {
        let all = |parts: &[Filter]| parts.iter().map(|part| Test::compile(part, schema)).collect();
        let of = |name: &str, ask: &dyn Fn(&AttributeType) -> Option<Ask>| {
            let found = schema.known_or_named(name).filter(|kind| &*kind.key != "userpassword");
            match found.and_then(|kind| ask(&kind).map(|ask| Test::Of(kind, ask))) {
                Some(test) => test,
                None => Test::Undefined,
            }
        };
        match filter {
            Filter::And(parts) => Test::And(all(parts)),
            Filter::Or(parts) => Test::Or(all(parts)),
            Filter::Not(part) => Test::Not(Box::new(Test::compile(part, schema))),
            Filter::Present(name) => of(name, &|_| Some(Ask::Present)),
            Filter::Equal(name, value) => of(name, &|kind| {
                let rule = kind.equality?;
                Some(Ask::Equal(rule, rule.normal(value, schema)?))
            }),
            Filter::AtLeast(name, value) => of(name, &|kind| {
                let rule = kind.ordering?;
                Some(Ask::AtLeast(rule, rule.normal(value, schema)?))
            }),
            Filter::AtMost(name, value) => of(name, &|kind| {
                let rule = kind.ordering?;
                Some(Ask::AtMost(rule, rule.normal(value, schema)?))
            }),
            Filter::Approximate(name, value) => of(name, &|kind| {
                let text = std::str::from_utf8(value).map(prepare::approximate).unwrap_or_default();
                match kind.equality? {
                    Rule::CaseIgnore | Rule::CaseExact if !text.is_empty() => Some(Ask::Approximate(text)),
                    rule => Some(Ask::Equal(rule, rule.normal(value, schema)?)),
                }
            }),
            Filter::Substrings(name, first, middle, last) => of(name, &|kind| {
                let form = kind.substrings?.form()?;
                let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).ok();
                let first = match first {
                    Some(first) => Some(text(first)?),
                    None => None,
                };
                let last = match last {
                    Some(last) => Some(text(last)?),
                    None => None,
                };
                let middle = middle.iter().map(text).collect::<Option<Vec<_>>>()?;
                Some(Ask::Substrings(form, Parts { first, middle, last }.prepared(form)))
            }),
            Filter::Extensible { rule, attribute, value, names } => {
                Test::extensible(rule.as_deref(), attribute.as_deref(), value, *names, schema)
            }
        }
    }

    fn extensible(rule: Option<&str>, attribute: Option<&str>, value: &[u8], names: bool, schema: &Schema) -> Test {
        let kind = match attribute {
            Some(name) => match schema.known_or_named(name) {
                Some(kind) if &*kind.key != "userpassword" => Some(kind),
                _ => return Test::Undefined,
            },
            None => None,
        };
        let rule = match (rule, &kind) {
            (Some(name), _) => find_rule(name),
            (None, Some(kind)) => kind.equality.map(|rule| (rule, Act::Equal)),
            (None, None) => None,
        };
        match rule {
            Some((rule, _)) if kind.as_ref().is_some_and(|kind| !applies(rule, kind)) => Test::Undefined,
            // Classes have classes above them, which count too.
            Some((Rule::Oid, Act::Equal)) if kind.as_ref().is_some_and(|kind| &*kind.key == "objectclass") => {
                match (kind, Rule::Oid.normal(value, schema)) {
                    (Some(kind), Some(value)) => Test::Of(kind, Ask::Equal(Rule::Oid, value)),
                    _ => Test::Undefined,
                }
            }
            // A substring assertion here would be text with stars; nobody asks so.
            Some((_, Act::Substrings)) | None => Test::Undefined,
            Some((rule, act)) => match rule.normal(value, schema) {
                Some(value) => Test::Any { kind, rule, act, value, names },
                None => Test::Undefined,
            },
        }
    }

    /// Whether any of its parts is so.
    pub(crate) fn has(&self, part: &dyn Fn(&Test) -> bool) -> bool {
        match self {
            Test::And(parts) | Test::Or(parts) => parts.iter().any(|test| test.has(part)),
            Test::Not(test) => test.has(part),
            test => part(test),
        }
    }

    /// The same with other parts.
    pub(crate) fn with<E>(self, part: &mut dyn FnMut(Test) -> Result<Test, E>) -> Result<Test, E> {
        let mut all = |parts: Vec<Test>| parts.into_iter().map(|test| test.with(part)).collect::<Result<_, E>>();
        Ok(match self {
            Test::And(parts) => Test::And(all(parts)?),
            Test::Or(parts) => Test::Or(all(parts)?),
            Test::Not(test) => Test::Not(Box::new(test.with(part)?)),
            test => part(test)?,
        })
    }

    /// Whether it asks for what does not stand in an entry: who is in a group, what is known of passwords. That has to be
    /// found first.
    pub fn looks_further(&self) -> bool {
        self.has(&|part| part.asks_for_groups() || part.asks_for_passwords())
    }

    /// Whether it looked further, and so does not follow what changes.
    pub(crate) fn looked_further(&self) -> bool {
        self.looks_further() || self.has(&|part| matches!(part, Test::MemberOf(..) | Test::OfPassword(..)))
    }

    /// Whether this part asks who is in a group.
    pub(crate) fn asks_for_groups(&self) -> bool {
        matches!(self, Test::Of(kind, _) if &*kind.key == MEMBER_OF)
    }

    /// Whether this part asks for what is known of passwords.
    pub(crate) fn asks_for_passwords(&self) -> bool {
        matches!(self, Test::Of(kind, _) | Test::Any { kind: Some(kind), .. } if tells_of_password(kind))
    }

    /// What this part, one of a single attribute, says of it.
    pub(crate) fn of_attribute(&self, found: Option<&Attribute>, schema: &Schema) -> Truth {
        let values = found.into_iter().flat_map(|found| &*found.values).map(|value| &**value);
        match self {
            Test::Of(_, ask) => ask.of(values, schema),
            Test::Any { rule, act, value, .. } => any_value(values, |own| rule_says(*rule, *act, own, value, schema)),
            _ => Truth::Undefined,
        }
    }

    /// The attribute that this part is about, if it is a single one.
    pub(crate) fn kind(&self) -> Option<&Arc<AttributeType>> {
        match self {
            Test::Of(kind, _) | Test::MemberOf(kind, _) | Test::OfPassword(kind, _) => Some(kind),
            Test::Any { kind, .. } => kind.as_ref(),
            _ => None,
        }
    }

    /// Whether an entry meets it, as far as whoever asks may ask.
    pub fn is_met_by(&self, entry: &Entry, schema: &Schema, grant: &Grant) -> bool {
        let visible = |kind: &AttributeType| grant.level(Some(kind)) >= Level::Search;
        self.of(entry, schema, &visible) == Truth::True
    }

    /// What it says of an entry. `visible`: whether an attribute may be asked for; what may not is Undefined.
    pub fn of(&self, entry: &Entry, schema: &Schema, visible: &dyn Fn(&AttributeType) -> bool) -> Truth {
        match self {
            Test::And(parts) => {
                let mut least = Truth::True;
                for part in parts {
                    least = least.min(part.of(entry, schema, visible));
                    if least == Truth::False {
                        break;
                    }
                }
                least
            }
            Test::Or(parts) => {
                let mut greatest = Truth::False;
                for part in parts {
                    greatest = greatest.max(part.of(entry, schema, visible));
                    if greatest == Truth::True {
                        break;
                    }
                }
                greatest
            }
            Test::Not(part) => !part.of(entry, schema, visible),
            Test::Undefined => Truth::Undefined,
            Test::Of(kind, _) | Test::MemberOf(kind, _) | Test::OfPassword(kind, _) if !visible(kind) => {
                Truth::Undefined
            }
            Test::OfPassword(_, found) => Truth::of(found.contains(&entry.number)),
            Test::MemberOf(_, members) => Truth::of(members.has(entry, schema)),
            Test::Of(kind, ask) if OWN.contains(&&*kind.key) => {
                let own = entry.own(&kind.key, schema);
                ask.of(own.iter().map(|value| value.as_bytes()), schema)
            }
            Test::Of(kind, ask) if &*kind.key == "objectclass" => ask.of_classes(entry, schema),
            Test::Of(kind, ask) => ask.of(entry.values(kind), schema),
            Test::Any { kind, rule, act, value, names } => {
                let values = entry.attributes.iter().filter(|attribute| {
                    let meant = match kind {
                        Some(kind) => attribute.kind.is(kind),
                        None => applies(*rule, &attribute.kind),
                    };
                    meant && visible(&attribute.kind)
                });
                let values = values.flat_map(|attribute| attribute.values.iter().map(|value| &**value));
                let test = |found: &[u8]| rule_says(*rule, *act, found, value, schema);
                let found = any_value(values, test);
                if *names && found != Truth::True {
                    found.max(of_names(entry, kind.as_deref(), &test, schema))
                } else {
                    found
                }
            }
        }
    }
}

/// Whether a rule makes sense of the values of an attribute: those for strings do of all strings.
fn applies(rule: Rule, kind: &AttributeType) -> bool {
    let of_bits = matches!(rule, Rule::AllBits | Rule::AnyBit);
    kind.equality.unwrap_or(Rule::Octets) == if of_bits { Rule::Integer } else { rule }
        || kind.equality.and_then(Rule::form).is_some() && rule.form().is_some()
}

fn rule_says(rule: Rule, act: Act, found: &[u8], value: &[u8], schema: &Schema) -> Option<bool> {
    if matches!(rule, Rule::AllBits | Rule::AnyBit) {
        let number = |key: &[u8]| std::str::from_utf8(key).ok()?.trim().parse::<i64>().ok();
        let (found, wanted) = (number(found)?, bits_of(value)?);
        return Some(if rule == Rule::AllBits { found & wanted == wanted } else { found & wanted != 0 });
    }
    let found = rule.normal(found, schema)?;
    Some(if act == Act::Before { found.as_slice() < value } else { found == value })
}

/// The number that the key of a whole number stands for.
fn bits_of(key: &[u8]) -> Option<i64> {
    match key {
        [1, _, _] => Some(0),
        [1, _, _, digits @ ..] => std::str::from_utf8(digits).ok()?.parse().ok(),
        _ => None,
    }
}

fn of_names(
    entry: &Entry,
    kind: Option<&AttributeType>,
    test: &dyn Fn(&[u8]) -> Option<bool>,
    schema: &Schema,
) -> Truth {
    let Ok(dn) = crate::dn::Dn::parse(&entry.dn) else { return Truth::Undefined };
    let assertions = dn.0.iter().flat_map(|rdn| &rdn.assertions);
    let meant = assertions.filter(|(name, _)| match kind {
        Some(kind) => schema.attribute(name).is_ok_and(|found| found.is(kind)),
        None => true,
    });
    any_value(meant.map(|(_, value)| value.as_slice()), test)
}

impl Ask {
    fn of<'a>(&self, mut values: impl Iterator<Item = &'a [u8]>, schema: &Schema) -> Truth {
        match self {
            Ask::Present => Truth::of(values.next().is_some()),
            Ask::Equal(rule, wanted) => {
                any_value(values, |value| rule.normal(value, schema).map(|found| found == *wanted))
            }
            Ask::AtLeast(rule, wanted) => {
                any_value(values, |value| rule.normal(value, schema).map(|found| found >= *wanted))
            }
            Ask::AtMost(rule, wanted) => {
                any_value(values, |value| rule.normal(value, schema).map(|found| found <= *wanted))
            }
            Ask::Approximate(wanted) => any_value(values, |value| {
                std::str::from_utf8(value).ok().map(|value| prepare::approximate(value) == *wanted)
            }),
            Ask::Substrings(form, parts) => any_value(values, |value| {
                std::str::from_utf8(value).ok().map(|value| parts.fit(&prepare::whole(value, *form)))
            }),
        }
    }

    /// Of an entry of a class, it is also so that it is of the classes above.
    fn of_classes(&self, entry: &Entry, schema: &Schema) -> Truth {
        let Ask::Equal(_, wanted) = self else {
            return match self {
                Ask::Present => Truth::True,
                _ => Truth::Undefined,
            };
        };
        let Ok(wanted) = std::str::from_utf8(wanted) else { return Truth::Undefined };
        // A class that nobody knows is no class of anything.
        if schema.class(wanted).is_err() {
            return Truth::Undefined;
        }
        let is = |name: &&str| {
            schema
                .class(name)
                .is_ok_and(|class| class.key() == wanted || class.above.iter().any(|above| above == wanted))
        };
        Truth::of(entry.classes().iter().any(is))
    }
}
