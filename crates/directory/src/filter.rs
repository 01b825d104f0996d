//! Filters over entries: the tree of RFC 4511, 4.5.1.7, and its evaluation under a schema; the scope of a search.
//!
//! Evaluating one filter on one entry is limited to [`WORK_MAX`] bytes prepared and compared. Above it the request
//! fails with `adminLimitExceeded`; there are no partial results.

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
    entry::{Attribute, Entry, OWN, any_value},
    ldap_error::{Code, LdapError},
    membership::Members,
    password::is_password_state,
    schema::{AttributeType, MEMBER_OF, Schema},
    syntax::{MatchKind, Rule, find_rule},
};

/// Maximum nesting depth of a filter.
pub const FILTER_DEPTH_MAX: usize = 100;
/// Maximum terms of one filter: assertions, substring pieces, conjunctions, disjunctions and negations.
pub const FILTER_TERMS_MAX: usize = 2_000;
/// Maximum work of one evaluation: one unit for each compared byte, and [`PREPARING`] for each prepared byte.
pub const WORK_MAX: u64 = 64 << 20;
/// Work units for preparing one byte of a value (RFC 4518), and fixed work units per value.
const PREPARING: u64 = 8;
/// Number of assertions in an evaluation after which prepared values are cached.
const UNCACHED_ASSERTIONS: u32 = 4;

/// Search scope (RFC 4511, 4.5.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The base entry only.
    Base,
    /// The direct children of the base.
    One,
    /// The base and all its descendants.
    Subtree,
}

/// A search filter as the client sent it (RFC 4511, 4.5.1.7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// All parts match; true if empty.
    And(Vec<Filter>),
    /// At least one part matches; false if empty.
    Or(Vec<Filter>),
    /// The part does not match.
    Not(Box<Filter>),
    /// The attribute has any value.
    Present(String),
    /// A value equals this one.
    Equal(String, Vec<u8>),
    /// A value is greater than or equal to this one.
    AtLeast(String, Vec<u8>),
    /// A value is less than or equal to this one.
    AtMost(String, Vec<u8>),
    /// A value sounds like this one.
    Approximate(String, Vec<u8>),
    /// A value has this prefix, these inner substrings and this suffix.
    Substrings(String, Option<Vec<u8>>, Vec<Vec<u8>>, Option<Vec<u8>>),
    /// Extensible match with an explicit matching rule; with `names`, the values of the DN are matched too.
    Extensible {
        /// The matching rule; `None` means equality.
        rule: Option<String>,
        /// The attribute; `None` means all to which the rule applies.
        attribute: Option<String>,
        /// The assertion value.
        value: Vec<u8>,
        /// Whether the values of the distinguished name are matched too.
        names: bool,
    },
}

impl Filter {
    /// Number of terms.
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

/// Work budget shared by evaluations.
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
    /// Consumes work. Returns false once the budget is exceeded.
    fn take(&self, work: u64) -> bool {
        self.left.set(self.left.get().saturating_sub(work));
        !self.is_exhausted()
    }

    fn is_exhausted(&self) -> bool {
        self.left.get() == 0
    }

    fn check<T>(&self, evaluated: T) -> Result<T, LdapError> {
        match self.is_exhausted() {
            false => Ok(evaluated),
            true => Err(LdapError::new(
                Code::AdminLimitExceeded,
                "the filter takes too much work on one entry: use fewer assertions on attributes with long or many values",
            )),
        }
    }
}

/// A filter compiled against the schema. Results follow the three-valued logic of RFC 4511.
#[derive(Debug, Clone)]
pub enum Test {
    /// The minimum of the results.
    And(Vec<Test>),
    /// The maximum of the results.
    Or(Vec<Test>),
    /// The negated result.
    Not(Box<Test>),
    /// Always Undefined.
    Undefined,
    /// Test of one attribute.
    Of(Arc<AttributeType>, AttributeAssertion),
    /// Group membership; the members were resolved beforehand.
    MemberOf(Arc<AttributeType>, Arc<Members>),
    /// Test of password state; the matching entries were resolved beforehand.
    OfPassword(Arc<AttributeType>, Arc<BTreeSet<EntryNumber>>),
    /// Test of every attribute to which a rule applies, and optionally of the DN.
    Any {
        /// The attribute; `None` means all.
        kind: Option<Arc<AttributeType>>,
        /// The matching rule.
        rule: Rule,
        /// Whether the rule tests equality, order or substrings.
        act: MatchKind,
        /// The assertion value in normal form.
        value: Vec<u8>,
        /// Whether the values of the DN are matched too.
        names: bool,
    },
}

/// The assertion on one attribute.
#[derive(Debug, Clone)]
pub enum AttributeAssertion {
    /// The attribute is present.
    Present,
    /// A normalized value equals this one.
    Equal(Rule, Vec<u8>),
    /// A normalized value is greater than or equal to this one.
    AtLeast(Rule, Vec<u8>),
    /// A normalized value is less than or equal to this one.
    AtMost(Rule, Vec<u8>),
    /// A value sounds like this one.
    Approximate(String),
    /// A value has these substrings.
    Substrings(Form, Parts),
}

impl Test {
    /// Compiles a filter. Assertions that cannot be evaluated become Undefined, as the protocol requires.
    pub fn compile(filter: &Filter, schema: &Schema) -> Test {
        let all = |parts: &[Filter]| parts.iter().map(|part| Test::compile(part, schema)).collect();
        let of = |name: &str, assertion_of: &dyn Fn(&AttributeType) -> Option<AttributeAssertion>| {
            let found = schema.known_or_named(name).filter(|kind| &*kind.key != "userpassword");
            match found.and_then(|kind| assertion_of(&kind).map(|assertion| Test::Of(kind, assertion))) {
                Some(test) => test,
                None => Test::Undefined,
            }
        };
        // An assertion value that violates the rule's syntax makes the assertion Undefined where it is not True. The
        // API may have stored such a value, and then it matches.
        let asserted =
            |name: &str, value: &[u8], assertion_of: &dyn Fn(&AttributeType) -> Option<(Rule, AttributeAssertion)>| {
                let found = schema.known_or_named(name).filter(|kind| &*kind.key != "userpassword");
                match found.and_then(|kind| assertion_of(&kind).map(|(rule, assertion)| (kind, rule, assertion))) {
                    Some((kind, rule, assertion)) if rule.takes_assertion(value, &kind, schema) => {
                        Test::Of(kind, assertion)
                    }
                    Some((kind, _, assertion)) => Test::Or(vec![Test::Of(kind, assertion), Test::Undefined]),
                    None => Test::Undefined,
                }
            };
        match filter {
            Filter::And(parts) => Test::And(all(parts)),
            Filter::Or(parts) => Test::Or(all(parts)),
            Filter::Not(part) => Test::Not(Box::new(Test::compile(part, schema))),
            Filter::Present(name) => of(name, &|_| Some(AttributeAssertion::Present)),
            Filter::Equal(name, value) => asserted(name, value, &|kind| {
                let rule = kind.equality?;
                Some((rule, AttributeAssertion::Equal(rule, rule.normal(value, schema)?)))
            }),
            Filter::AtLeast(name, value) => asserted(name, value, &|kind| {
                let rule = kind.ordering?;
                Some((rule, AttributeAssertion::AtLeast(rule, rule.normal(value, schema)?)))
            }),
            Filter::AtMost(name, value) => asserted(name, value, &|kind| {
                let rule = kind.ordering?;
                Some((rule, AttributeAssertion::AtMost(rule, rule.normal(value, schema)?)))
            }),
            Filter::Approximate(name, value) => asserted(name, value, &|kind| {
                let text = std::str::from_utf8(value).map(prepare::approximate).unwrap_or_default();
                match kind.equality? {
                    rule @ (Rule::CaseIgnore | Rule::CaseExact) if !text.is_empty() => {
                        Some((rule, AttributeAssertion::Approximate(text)))
                    }
                    rule => Some((rule, AttributeAssertion::Equal(rule, rule.normal(value, schema)?))),
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
                Some(AttributeAssertion::Substrings(form, Parts { first, middle, last }.prepared(form)))
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
            (None, Some(kind)) => kind.equality.map(|rule| (rule, MatchKind::Equal)),
            (None, None) => None,
        };
        match rule {
            Some((rule, _)) if kind.as_ref().is_some_and(|kind| !applies(rule, kind)) => Test::Undefined,
            // Subclasses match their superclasses too.
            Some((Rule::Oid, MatchKind::Equal)) if kind.as_ref().is_some_and(|kind| &*kind.key == "objectclass") => {
                match (kind, Rule::Oid.normal(value, schema)) {
                    (Some(kind), Some(value)) => Test::Of(kind, AttributeAssertion::Equal(Rule::Oid, value)),
                    _ => Test::Undefined,
                }
            }
            // A substring assertion in an extensible match is not supported.
            Some((_, MatchKind::Substrings)) | None => Test::Undefined,
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

    /// Whether any part of the test satisfies the predicate.
    pub(crate) fn has(&self, part: &dyn Fn(&Test) -> bool) -> bool {
        match self {
            Test::And(parts) | Test::Or(parts) => parts.iter().any(|test| test.has(part)),
            Test::Not(test) => test.has(part),
            test => part(test),
        }
    }

    /// Rewrites each part of the test.
    pub(crate) fn with<E>(self, part: &mut dyn FnMut(Test) -> Result<Test, E>) -> Result<Test, E> {
        let mut all = |parts: Vec<Test>| parts.into_iter().map(|test| test.with(part)).collect::<Result<_, E>>();
        Ok(match self {
            Test::And(parts) => Test::And(all(parts)?),
            Test::Or(parts) => Test::Or(all(parts)?),
            Test::Not(test) => Test::Not(Box::new(test.with(part)?)),
            test => part(test)?,
        })
    }

    /// Whether the filter needs data outside the entry: group membership or password state. That has to be resolved
    /// before evaluation.
    pub fn needs_other_records(&self) -> bool {
        self.has(&|part| part.tests_group_membership() || part.tests_password_state())
    }

    /// Whether such data was resolved, so the test does not follow later changes.
    pub(crate) fn looked_further(&self) -> bool {
        self.needs_other_records() || self.has(&|part| matches!(part, Test::MemberOf(..) | Test::OfPassword(..)))
    }

    /// Whether this part tests group membership.
    pub(crate) fn tests_group_membership(&self) -> bool {
        matches!(self, Test::Of(kind, _) if &*kind.key == MEMBER_OF)
    }

    /// Whether this part tests password state.
    pub(crate) fn tests_password_state(&self) -> bool {
        matches!(self, Test::Of(kind, _) | Test::Any { kind: Some(kind), .. } if is_password_state(kind))
    }

    /// Evaluates this single-attribute part on an attribute.
    pub(crate) fn of_attribute(&self, found: Option<&Attribute>, schema: &Schema) -> Truth {
        let values = found.into_iter().flat_map(|found| &*found.values).map(|value| &**value);
        let budget = Budget::default();
        let grant = Grant::open();
        let evaluation = Evaluation::new(schema, Rights::new(&grant, Level::Search), &budget);
        match self {
            Test::Of(_, assertion) => evaluation.evaluate(assertion, values, true),
            Test::Any { rule, act, value, .. } => {
                any_value(values, |own| evaluation.apply_rule(*rule, *act, own, value))
            }
            _ => Truth::Undefined,
        }
    }

    /// The attribute that this part tests, if it is a single one.
    pub(crate) fn kind(&self) -> Option<&Arc<AttributeType>> {
        match self {
            Test::Of(kind, _) | Test::MemberOf(kind, _) | Test::OfPassword(kind, _) => Some(kind),
            Test::Any { kind, .. } => kind.as_ref(),
            _ => None,
        }
    }

    /// Whether an entry matches, as far as the requester has `search` access.
    ///
    /// # Errors
    /// `adminLimitExceeded`: the evaluation exceeds [`WORK_MAX`].
    pub fn is_met_by(&self, entry: &Entry, schema: &Schema, grant: &Grant) -> Result<bool, LdapError> {
        self.is_met_within(entry, schema, grant, &Budget::default())
    }

    /// Like [`Test::is_met_by`], within a budget shared with other evaluations.
    pub(crate) fn is_met_within(
        &self,
        entry: &Entry,
        schema: &Schema,
        grant: &Grant,
        budget: &Budget,
    ) -> Result<bool, LdapError> {
        let truth = Evaluation::new(schema, Rights::new(grant, Level::Search), budget).of(self, entry);
        budget.check(truth == Truth::True)
    }

    /// The truth value for an entry under the given rights.
    ///
    /// # Errors
    /// As for [`Test::is_met_by`].
    pub(crate) fn truth(&self, entry: &Entry, schema: &Schema, rights: Rights<'_>) -> Result<Truth, LdapError> {
        let budget = Budget::default();
        let truth = Evaluation::new(schema, rights, &budget).of(self, entry);
        budget.check(truth)
    }
}

/// Preparation of a value for comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Preparation {
    Rule(Rule),
    Form(Form),
    Approximate,
}

/// Key of a prepared value: its address and length in memory, and the preparation.
type PreparedKey = (usize, usize, Preparation);
/// Prepared values; `None`: the value violates the syntax.
type PreparedValues = HashMap<PreparedKey, Option<Rc<[u8]>>, FixedState>;

/// One evaluation of a filter on one entry.
struct Evaluation<'a> {
    schema: &'a Schema,
    /// Attributes that the requester may search. An assertion on a closed attribute is Undefined (RFC 4511, 4.5.1.7).
    /// An assertion on a type with a closed subtype is True or Undefined, so its negation does not depend on closed
    /// values.
    rights: Rights<'a>,
    budget: &'a Budget,
    assertions: Cell<u32>,
    /// Cache of prepared values, so that many assertions on one value prepare it once.
    prepared: RefCell<PreparedValues>,
}

impl<'a> Evaluation<'a> {
    fn new(schema: &'a Schema, rights: Rights<'a>, budget: &'a Budget) -> Self {
        let prepared = RefCell::new(PreparedValues::with_hasher(FixedState::default()));
        Evaluation { schema, rights, budget, assertions: Cell::new(0), prepared }
    }

    /// The truth value of a test for an entry; arbitrary once the budget is exceeded.
    fn of(&self, test: &Test, entry: &Entry) -> Truth {
        let rights = self.rights;
        let open_part = |found: Truth, is_whole: bool| if is_whole { found } else { found.max(Truth::Undefined) };
        match test {
            Test::And(parts) => {
                let mut least = Truth::True;
                for part in parts {
                    least = least.min(self.of(part, entry));
                    if least == Truth::False || self.budget.is_exhausted() {
                        break;
                    }
                }
                least
            }
            Test::Or(parts) => {
                let mut greatest = Truth::False;
                for part in parts {
                    greatest = greatest.max(self.of(part, entry));
                    if greatest == Truth::True || self.budget.is_exhausted() {
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
            Test::Of(kind, assertion) if OWN.contains(&&*kind.key) => {
                let own = entry.own(&kind.key, self.schema);
                self.evaluate(assertion, own.iter().map(|value| value.as_bytes()), false)
            }
            Test::Of(kind, assertion) if &*kind.key == "objectclass" => assertion.of_classes(entry, self.schema),
            // A name that is neither declared nor an attribute of this entry is unrecognised (RFC 4511, 4.5.1.7).
            Test::Of(kind, _) if !kind.declared && entry.attribute(&kind.key).is_none() => Truth::Undefined,
            Test::Of(kind, assertion) => {
                let found = self.evaluate(assertion, rights.values(entry, kind), true);
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
                let found = any_value(values, |found| self.apply_rule(*rule, *act, found, value));
                let is_whole = match kind {
                    Some(kind) => rights.opens_kinds(kind, self.schema),
                    None => rights.opens_all(),
                };
                let found = if *names && found != Truth::True {
                    // The values of the DN are temporary, so they are not cached.
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

    /// Evaluates an assertion on values. `stay`: the values live in the entry, so they can be cached by address.
    fn evaluate<'v>(
        &self,
        assertion: &AttributeAssertion,
        mut values: impl Iterator<Item = &'v [u8]>,
        stay: bool,
    ) -> Truth {
        self.assertions.set(self.assertions.get().saturating_add(1));
        let any = |values: &mut dyn Iterator<Item = &'v [u8]>, how: Preparation, is: &dyn Fn(&[u8]) -> bool| {
            any_value(values, |value| self.with_prepared(how, value, stay, is))
        };
        match assertion {
            AttributeAssertion::Present => Truth::of(values.next().is_some()),
            AttributeAssertion::Equal(rule, asserted) => {
                any(&mut values, Preparation::Rule(*rule), &|found| found == &**asserted)
            }
            AttributeAssertion::AtLeast(rule, asserted) => {
                any(&mut values, Preparation::Rule(*rule), &|found| found >= &**asserted)
            }
            AttributeAssertion::AtMost(rule, asserted) => {
                any(&mut values, Preparation::Rule(*rule), &|found| found <= &**asserted)
            }
            AttributeAssertion::Approximate(asserted) => {
                any(&mut values, Preparation::Approximate, &|found| found == asserted.as_bytes())
            }
            AttributeAssertion::Substrings(form, parts) => any(&mut values, Preparation::Form(*form), &|found| {
                // The substrings are searched from left to right in a single pass.
                std::str::from_utf8(found).is_ok_and(|found| parts.fit(found))
            }),
        }
    }

    fn apply_rule(&self, rule: Rule, act: MatchKind, found: &[u8], value: &[u8]) -> Option<bool> {
        self.assertions.set(self.assertions.get().saturating_add(1));
        if matches!(rule, Rule::AllBits | Rule::AnyBit) {
            return self.budget.take(PREPARING).then(|| compared(rule, act, found, value, self.schema)).flatten();
        }
        self.with_prepared(Preparation::Rule(rule), found, true, &|found| match act {
            MatchKind::Before => found < value,
            MatchKind::Equal | MatchKind::Substrings => found == value,
        })
    }

    /// Prepares a value, or takes it from the cache, and tests it. `None`: the value violates the syntax, or the budget
    /// is exceeded.
    fn with_prepared(
        &self,
        how: Preparation,
        value: &[u8],
        is_cacheable: bool,
        test: &dyn Fn(&[u8]) -> bool,
    ) -> Option<bool> {
        let cached = is_cacheable && self.assertions.get() > UNCACHED_ASSERTIONS;
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

/// Whether a matching rule applies to an attribute. String rules apply to all string syntaxes.
fn applies(rule: Rule, kind: &AttributeType) -> bool {
    let of_bits = matches!(rule, Rule::AllBits | Rule::AnyBit);
    kind.equality.unwrap_or(Rule::Octets) == if of_bits { Rule::Integer } else { rule }
        || kind.equality.and_then(Rule::form).is_some() && rule.form().is_some()
}

fn compared(rule: Rule, act: MatchKind, found: &[u8], value: &[u8], schema: &Schema) -> Option<bool> {
    if matches!(rule, Rule::AllBits | Rule::AnyBit) {
        let number = |key: &[u8]| std::str::from_utf8(key).ok()?.trim().parse::<i64>().ok();
        let (found, asserted) = (number(found)?, bits_of(value)?);
        return Some(if rule == Rule::AllBits { found & asserted == asserted } else { found & asserted != 0 });
    }
    let found = rule.normal(found, schema)?;
    Some(if act == MatchKind::Before { found.as_slice() < value } else { found == value })
}

/// Decodes the ordered key of an integer.
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

impl AttributeAssertion {
    /// An entry of a class also belongs to its superclasses.
    fn of_classes(&self, entry: &Entry, schema: &Schema) -> Truth {
        let AttributeAssertion::Equal(_, asserted) = self else {
            return match self {
                AttributeAssertion::Present => Truth::True,
                _ => Truth::Undefined,
            };
        };
        let Ok(asserted) = std::str::from_utf8(asserted) else { return Truth::Undefined };
        // An unknown class matches no entry.
        if schema.class(asserted).is_err() {
            return Truth::Undefined;
        }
        let is = |name: &&str| {
            schema
                .class(name)
                .is_ok_and(|class| class.key() == asserted || class.above.iter().any(|above| above == asserted))
        };
        Truth::of(entry.classes().iter().any(is))
    }
}
