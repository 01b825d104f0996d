//! Evaluation of conditions over a record.

use std::cmp::Ordering;

use serde_json::Value;

use super::{
    compare::{equal, is_comparable, order_of},
    path::Path,
    tree::{Comparison, Test, Where},
};
use crate::record::Document;

/// Whether a condition holds for a record.
pub(super) fn holds(condition: &Where, record: &Document) -> bool {
    match condition {
        Where::All(parts) => parts.iter().all(|part| holds(part, record)),
        Where::Any(parts) => parts.iter().any(|part| holds(part, record)),
        Where::Nor(parts) => !parts.iter().any(|part| holds(part, record)),
        Where::Property(path, tests) => tests.iter().all(|test| passes(path, test, record)),
        Where::Text(search) => search.matches(record),
        Where::Without(hidden, condition) => {
            let seen = record.iter().filter(|(name, _)| !hidden.contains(&name.as_str()));
            let seen: Document = seen.map(|(name, value)| (name.clone(), value.clone())).collect();
            holds(condition, &seen)
        }
    }
}

fn passes(path: &Path, test: &Test, record: &Document) -> bool {
    match test {
        Test::Not(tests) => !tests.iter().all(|test| passes(path, test, record)),
        Test::All(tests) => tests.iter().all(|test| passes(path, test, record)),
        Test::Exists(expected) => path.any(record, &mut |value| value.is_some()) == *expected,
        Test::Size(_) | Test::Element(_) | Test::ElementTests(_) => {
            path.any(record, &mut |value| value.is_some_and(|value| holds_for_list(test, value)))
        }
        Test::Equal(_) | Test::Compare(..) | Test::In(_) | Test::Regex(_) => {
            path.any(record, &mut |value| match value {
                None => is_true_of(test, &Value::Null),
                // A list passes as a whole, or by one of its elements.
                Some(value @ Value::Array(items)) => {
                    is_true_of(test, value) || items.iter().any(|item| is_true_of(test, item))
                }
                Some(value) => is_true_of(test, value),
            })
        }
    }
}

/// Tests of a list as a whole.
fn holds_for_list(test: &Test, value: &Value) -> bool {
    let Value::Array(items) = value else { return false };
    match test {
        Test::Size(size) => items.len() as u64 == *size,
        Test::Element(condition) => items.iter().filter_map(Value::as_object).any(|element| holds(condition, element)),
        Test::ElementTests(tests) => items.iter().any(|item| tests.iter().all(|test| is_true_of_element(test, item))),
        _ => false,
    }
}

/// A test of one element within `$elemMatch`.
fn is_true_of_element(test: &Test, item: &Value) -> bool {
    match test {
        Test::Not(tests) => !tests.iter().all(|test| is_true_of_element(test, item)),
        Test::All(tests) => tests.iter().all(|test| is_true_of_element(test, item)),
        Test::Exists(expected) => *expected,
        Test::Size(_) | Test::Element(_) | Test::ElementTests(_) => holds_for_list(test, item),
        _ => match item {
            Value::Array(items) => is_true_of(test, item) || items.iter().any(|item| is_true_of(test, item)),
            _ => is_true_of(test, item),
        },
    }
}

/// A test of one value. An absent value is `Null` here.
fn is_true_of(test: &Test, value: &Value) -> bool {
    match test {
        Test::Equal(operand) => equal(value, operand),
        Test::In(operands) => operands.iter().any(|operand| equal(value, operand)),
        Test::Regex(regex) => value.as_str().is_some_and(|text| regex.is_match(text)),
        Test::Compare(comparison, operand) => {
            is_comparable(value, operand) && compares(*comparison, order_of(value, operand))
        }
        _ => false,
    }
}

fn compares(comparison: Comparison, order: Ordering) -> bool {
    match comparison {
        Comparison::Greater => order.is_gt(),
        Comparison::GreaterOrEqual => order.is_ge(),
        Comparison::Less => order.is_lt(),
        Comparison::LessOrEqual => order.is_le(),
    }
}
