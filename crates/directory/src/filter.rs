//! Filters over entries: the tree of RFC 4511, 4.5.1.7, and its evaluation under a schema.
//!
//! The evaluation of one filter on one entry has a bound of work, [`WORK_MAX`]: bytes that are prepared and compared. Beyond it the
//! request ends with `adminLimitExceeded`; a filter is never half evaluated.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeSet, HashMap},
    rc::Rc,
    sync::Arc,
};

use foldhash::fast::FixedState;

use tocsin_model::ldap::{
    Truth,
    prepare::{self, Form, Parts},
};
use tocsin_store::entries::EntryNumber;

use crate::{
    access::{Grant, Level, Rights},
    change::tells_of_password,
    entry::{Attribute, Entry, OWN, any_value},
    groups::{MEMBER_OF, Members},
    refusal::{Code, Refusal},
    schema::{AttributeType, Schema},
    syntax::{Act, Rule, find_rule},
};

/// Most filters within each other.
pub const FILTER_DEPTH_MAX: usize = 100;
/// Most parts of one filter: assertions, pieces of substrings, conjunctions, disjunctions and negations.
pub const FILTER_TERMS_MAX: usize = 2_000;
/// Most work of one evaluation: a unit for each byte that is compared, and [`PREPARING`] for each that is prepared.
pub const WORK_MAX: u64 = 64 << 20;
/// Work of preparing a byte of a value by RFC 4518, and of a value beside its bytes.
const PREPARING: u64 = 8;
/// After so many assertions of one evaluation, prepared values are kept for those that follow.
const UNCACHED_ASSERTIONS: u32 = 4;

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

impl Filter {
    /// The number of its parts.
    pub fn terms(&self) -> usize {
        1 + match self {
            Filter::And(parts) | Filter::Or(parts) => parts.iter().map(Filter::terms).sum(),
            Filter::Not(part) => part.terms(),
            Filter::Substrings(_, first, middle, last) => {
                usize::from(first.is_some()) + middle.len() + usize::from(last.is_some())
            }
            _ => 0,
        }
    }
}

/// The work that evaluations may still cost.
#[derive(Debug)]
pub(crate) struct Budget {
    left: Cell<u64>,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { left: Cell::new(WORK_MAX) }
    }
}

impl Budget {
    /// Takes work off; false if there was not enough left, from then on.
    fn take(&self, work: u64) -> bool {
        self.left.set(self.left.get().saturating_sub(work));
        !self.is_spent()
    }

    fn is_spent(&self) -> bool {
        self.left.get() == 0
    }

    fn check<T>(&self, evaluated: T) -> Result<T, Refusal> {
        match self.is_spent() {
            false => Ok(evaluated),
            true => Err(Refusal::new(
                Code::AdminLimitExceeded,
                "the filter takes too much work on one entry: use fewer assertions on attributes with long or many values",
            )),
        }
    }
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
        // An assertion value that is not of its rule's syntax makes the assertion Undefined where it is not True. The API may have
        // stored such a value, and then it is found.
        let asserted = |name: &str, value: &[u8], ask: &dyn Fn(&AttributeType) -> Option<(Rule, Ask)>| {
            let found = schema.known_or_named(name).filter(|kind| &*kind.key != "userpassword");
            match found.and_then(|kind| ask(&kind).map(|(rule, ask)| (kind, rule, ask))) {
                Some((kind, rule, ask)) if rule.takes_assertion(value, &kind, schema) => Test::Of(kind, ask),
                Some((kind, _, ask)) => Test::Or(vec![Test::Of(kind, ask), Test::Undefined]),
                None => Test::Undefined,
            }
        };
        match filter {
            Filter::And(parts) => Test::And(all(parts)),
            Filter::Or(parts) => Test::Or(all(parts)),
            Filter::Not(part) => Test::Not(Box::new(Test::compile(part, schema))),
            Filter::Present(name) => of(name, &|_| Some(Ask::Present)),
            Filter::Equal(name, value) => asserted(name, value, &|kind| {
                let rule = kind.equality?;
                Some((rule, Ask::Equal(rule, rule.normal(value, schema)?)))
            }),
            Filter::AtLeast(name, value) => asserted(name, value, &|kind| {
                let rule = kind.ordering?;
                Some((rule, Ask::AtLeast(rule, rule.normal(value, schema)?)))
            }),
            Filter::AtMost(name, value) => asserted(name, value, &|kind| {
                let rule = kind.ordering?;
                Some((rule, Ask::AtMost(rule, rule.normal(value, schema)?)))
            }),
            Filter::Approximate(name, value) => asserted(name, value, &|kind| {
                let text = std::str::from_utf8(value).map(prepare::approximate).unwrap_or_default();
                match kind.equality? {
                    rule @ (Rule::CaseIgnore | Rule::CaseExact) if !text.is_empty() => {
                        Some((rule, Ask::Approximate(text)))
                    }
                    rule => Some((rule, Ask::Equal(rule, rule.normal(value, schema)?))),
                }
            }),
            Filter::Substrings(name, first, middle, last) => of(name, &|kind| {
                let form = kind.substrings?.form()?;
                // A substring has at least one character: RFC 4517, 3.3.30.
                let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).ok().filter(|text| !text.is_empty());
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
            Some((rule, act)) => {
                let is_valid = match &kind {
                    Some(kind) => rule.takes_assertion(value, kind, schema),
                    None => rule.syntax().is_none_or(|syntax| syntax.allows(value, schema)),
                };
                match rule.normal(value, schema).map(|value| Test::Any { kind, rule, act, value, names }) {
                    Some(test) if is_valid => test,
                    Some(test) => Test::Or(vec![test, Test::Undefined]),
                    None => Test::Undefined,
                }
            }
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
        let budget = Budget::default();
        let grant = Grant::open();
        let evaluation = Evaluation::new(schema, Rights::new(&grant, Level::Search), &budget);
        match self {
            Test::Of(_, ask) => evaluation.ask(ask, values, true),
            Test::Any { rule, act, value, .. } => {
                any_value(values, |own| evaluation.rule_says(*rule, *act, own, value))
            }
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

    /// Whether an entry meets it, as far as the asker may ask.
    ///
    /// # Errors
    /// `adminLimitExceeded`: the evaluation takes more than [`WORK_MAX`].
    pub fn is_met_by(&self, entry: &Entry, schema: &Schema, grant: &Grant) -> Result<bool, Refusal> {
        self.is_met_within(entry, schema, grant, &Budget::default())
    }

    /// The same, with the work of other evaluations in one bound.
    pub(crate) fn is_met_within(
        &self,
        entry: &Entry,
        schema: &Schema,
        grant: &Grant,
        budget: &Budget,
    ) -> Result<bool, Refusal> {
        let truth = Evaluation::new(schema, Rights::new(grant, Level::Search), budget).of(self, entry);
        budget.check(truth == Truth::True)
    }

    /// The result for an entry under some rights.
    ///
    /// # Errors
    /// As for [`Test::is_met_by`].
    pub(crate) fn truth(&self, entry: &Entry, schema: &Schema, rights: Rights<'_>) -> Result<Truth, Refusal> {
        let budget = Budget::default();
        let truth = Evaluation::new(schema, rights, &budget).of(self, entry);
        budget.check(truth)
    }
}

/// The preparation of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Preparation {
    Rule(Rule),
    Form(Form),
    Approximate,
}

/// A value of the entry, by its place in memory, and how it was prepared.
type PreparedKey = (usize, usize, Preparation);
/// Prepared values; `None`: it is not of the syntax.
type PreparedValues = HashMap<PreparedKey, Option<Rc<[u8]>>, FixedState>;

/// One evaluation of a filter on one entry.
struct Evaluation<'a> {
    schema: &'a Schema,
    /// The attributes that may be used. An item on one that is closed is Undefined (RFC 4511, 4.5.1.7). An item on a type with a closed
    /// kind is True or Undefined, so its negation does not depend on closed values.
    rights: Rights<'a>,
    budget: &'a Budget,
    assertions: Cell<u32>,
    /// Values that were prepared, so that many assertions on one value prepare it once.
    prepared: RefCell<PreparedValues>,
}

impl<'a> Evaluation<'a> {
    fn new(schema: &'a Schema, rights: Rights<'a>, budget: &'a Budget) -> Self {
        let prepared = RefCell::new(PreparedValues::with_hasher(FixedState::default()));
        Evaluation { schema, rights, budget, assertions: Cell::new(0), prepared }
    }

    /// The result of a test for an entry; anything, once the budget is spent.
    fn of(&self, test: &Test, entry: &Entry) -> Truth {
        let rights = self.rights;
        let open_part = |found: Truth, is_whole: bool| if is_whole { found } else { found.max(Truth::Undefined) };
        match test {
            Test::And(parts) => {
                let mut least = Truth::True;
                for part in parts {
                    least = least.min(self.of(part, entry));
                    if least == Truth::False || self.budget.is_spent() {
                        break;
                    }
                }
                least
            }
            Test::Or(parts) => {
                let mut greatest = Truth::False;
                for part in parts {
                    greatest = greatest.max(self.of(part, entry));
                    if greatest == Truth::True || self.budget.is_spent() {
                        break;
                    }
                }
                greatest
            }
            Test::Not(part) => !self.of(part, entry),
            Test::Undefined => Truth::Undefined,
            Test::Of(kind, _)
            | Test::MemberOf(kind, _)
            | Test::OfPassword(kind, _)
            | Test::Any { kind: Some(kind), .. }
                if !rights.opens(kind) =>
            {
                Truth::Undefined
            }
            Test::OfPassword(_, found) => Truth::of(found.contains(&entry.number)),
            Test::MemberOf(_, members) => match members.has(entry, self.schema, rights, self.budget) {
                Ok(has) => Truth::of(has),
                Err(_) => Truth::Undefined,
            },
            Test::Of(kind, ask) if OWN.contains(&&*kind.key) => {
                let own = entry.own(&kind.key, self.schema);
                self.ask(ask, own.iter().map(|value| value.as_bytes()), false)
            }
            Test::Of(kind, ask) if &*kind.key == "objectclass" => ask.of_classes(entry, self.schema),
            // A name that is neither declared nor an attribute of this entry is not recognised: RFC 4511, 4.5.1.7.
            Test::Of(kind, _) if !kind.declared && entry.attribute(&kind.key).is_none() => Truth::Undefined,
            Test::Of(kind, ask) => {
                let found = self.ask(ask, rights.values(entry, kind), true);
                open_part(found, rights.opens_kinds(kind, self.schema))
            }
            Test::Any { kind: Some(kind), names: false, .. }
                if !kind.declared && entry.attribute(&kind.key).is_none() =>
            {
                Truth::Undefined
            }
            Test::Any { kind, rule, act, value, names } => {
                let values = entry.attributes.iter().filter(|attribute| {
                    let meant = match kind {
                        Some(kind) => attribute.kind.is(kind),
                        None => applies(*rule, &attribute.kind),
                    };
                    meant && rights.opens(&attribute.kind)
                });
                let values = values.flat_map(|attribute| attribute.values.iter().map(|value| &**value));
                let found = any_value(values, |found| self.rule_says(*rule, *act, found, value));
                let is_whole = match kind {
                    Some(kind) => rights.opens_kinds(kind, self.schema),
                    None => rights.opens_all(),
                };
                let found = if *names && found != Truth::True {
                    // The values of the name are made for this, so they are not kept.
                    let test = |found: &[u8]| {
                        let work = PREPARING * (found.len() as u64 + 1);
                        self.budget.take(work).then(|| compared(*rule, *act, found, value, self.schema)).flatten()
                    };
                    found.max(of_names(entry, kind.as_deref(), rights, &test, self.schema))
                } else {
                    found
                };
                open_part(found, is_whole)
            }
        }
    }

    /// The result of an assertion for values. `stay`: whether they lie in the entry, and not only for this call.
    fn ask<'v>(&self, ask: &Ask, mut values: impl Iterator<Item = &'v [u8]>, stay: bool) -> Truth {
        self.assertions.set(self.assertions.get().saturating_add(1));
        let any = |values: &mut dyn Iterator<Item = &'v [u8]>, how: Preparation, is: &dyn Fn(&[u8]) -> bool| {
            any_value(values, |value| self.with_prepared(how, value, stay, is))
        };
        match ask {
            Ask::Present => Truth::of(values.next().is_some()),
            Ask::Equal(rule, wanted) => any(&mut values, Preparation::Rule(*rule), &|found| found == &**wanted),
            Ask::AtLeast(rule, wanted) => any(&mut values, Preparation::Rule(*rule), &|found| found >= &**wanted),
            Ask::AtMost(rule, wanted) => any(&mut values, Preparation::Rule(*rule), &|found| found <= &**wanted),
            Ask::Approximate(wanted) => any(&mut values, Preparation::Approximate, &|found| found == wanted.as_bytes()),
            Ask::Substrings(form, parts) => any(&mut values, Preparation::Form(*form), &|found| {
                // The pieces are looked for one after the other, so the value is gone through once.
                std::str::from_utf8(found).is_ok_and(|found| parts.fit(found))
            }),
        }
    }

    fn rule_says(&self, rule: Rule, act: Act, found: &[u8], value: &[u8]) -> Option<bool> {
        self.assertions.set(self.assertions.get().saturating_add(1));
        if matches!(rule, Rule::AllBits | Rule::AnyBit) {
            return self.budget.take(PREPARING).then(|| compared(rule, act, found, value, self.schema)).flatten();
        }
        self.with_prepared(Preparation::Rule(rule), found, true, &|found| match act {
            Act::Before => found < value,
            Act::Equal | Act::Substrings => found == value,
        })
    }

    /// Prepares a value, or takes it as it was prepared before, and puts it to a test. `None`: it is not of the syntax, or the
    /// budget is spent.
    fn with_prepared(&self, how: Preparation, value: &[u8], stays: bool, test: &dyn Fn(&[u8]) -> bool) -> Option<bool> {
        let cached = stays && self.assertions.get() > UNCACHED_ASSERTIONS;
        let key = (value.as_ptr() as usize, value.len(), how);
        if cached && let Some(known) = self.prepared.borrow().get(&key) {
            let known = known.as_deref()?;
            return self.budget.take(known.len() as u64 + 1).then(|| test(known));
        }
        if !self.budget.take(PREPARING * (value.len() as u64 + 1)) {
            return None;
        }
        let prepared = self.prepare(how, value);
        let is = prepared.as_deref().map(test);
        if cached {
            self.prepared.borrow_mut().insert(key, prepared.map(Rc::from));
        }
        is
    }

    fn prepare(&self, how: Preparation, value: &[u8]) -> Option<Vec<u8>> {
        let text = || std::str::from_utf8(value).ok();
        match how {
            Preparation::Rule(rule) => rule.normal(value, self.schema),
            Preparation::Form(form) => Some(prepare::whole(text()?, form).into_bytes()),
            Preparation::Approximate => Some(prepare::approximate(text()?).into_bytes()),
        }
    }
}

/// Whether a rule makes sense of the values of an attribute: those for strings do of all strings.
fn applies(rule: Rule, kind: &AttributeType) -> bool {
    let of_bits = matches!(rule, Rule::AllBits | Rule::AnyBit);
    kind.equality.unwrap_or(Rule::Octets) == if of_bits { Rule::Integer } else { rule }
        || kind.equality.and_then(Rule::form).is_some() && rule.form().is_some()
}

fn compared(rule: Rule, act: Act, found: &[u8], value: &[u8], schema: &Schema) -> Option<bool> {
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
    rights: Rights<'_>,
    test: &dyn Fn(&[u8]) -> Option<bool>,
    schema: &Schema,
) -> Truth {
    let Ok(dn) = crate::dn::Dn::parse(&entry.dn) else { return Truth::Undefined };
    let assertions = dn.0.iter().flat_map(|rdn| &rdn.assertions);
    let meant = assertions.filter(|(name, _)| match kind {
        Some(kind) => schema.attribute(name).is_ok_and(|found| found.is(kind) && rights.opens(found)),
        None => schema.attribute(name).is_ok_and(|found| rights.opens(found)),
    });
    any_value(meant.map(|(_, value)| value.as_slice()), test)
}

impl Ask {
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
