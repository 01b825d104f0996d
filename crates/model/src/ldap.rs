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
mod node; // tree of a filter
mod normal; // canonical form of filters
mod parse; // parser of filter texts
pub mod prepare; // string preparation (RFC 4518)

use std::{fmt, ops::Bound};

use evaluate::Steps;

use crate::{
    ldap::node::{Attribute, Node, Property},
    problem::Problem,
};

pub use evaluate::{Entry, STEPS_MAX, Truth};
pub use matching_rule::rules;
pub use node::{ATTRIBUTE_NAME_MAX, FILTER_BYTES_MAX, FILTER_DEPTH_MAX, FILTER_TERMS_MAX};

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

#[cfg(test)]
mod tests;
