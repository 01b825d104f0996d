//! Evaluates a pattern: a backtracking search for leaves that match together.
//!
//! Fields below the same list of objects must match in the same item of it. So leaves are chosen one after the other,
//! and a choice that contradicts earlier ones is undone.

use tocsin_model::value::Value;

use crate::{
    eval_value::EvalError,
    filter::{
        compiled::Evaluate,
        condition::{Path, Reach, ValueTest},
        pattern::parsed::{Pattern, shared},
    },
    steps::STEPS_MAX,
};

impl Evaluate for Pattern {
    fn holds(&self, event: &[Value]) -> Result<bool, EvalError> {
        let mut search = Search { event, steps: 0 };
        let holds = search.solve(Some(&Goals { first: self, others: None }), None);
        if search.is_exhausted() { Err(EvalError::Cost) } else { Ok(holds) }
    }

    fn memory_bytes(&self) -> usize {
        let inner = match self {
            Pattern::All(parts) | Pattern::Any(parts) => parts.iter().map(Pattern::memory_bytes).sum(),
            Pattern::Leaf(path, value_tests) => {
                path.keys.len() * 32 + value_tests.len() * (size_of::<ValueTest>() + 64)
            }
            Pattern::Exists(path) | Pattern::Missing(path) => path.keys.len() * 32,
        };
        size_of::<Pattern>() + inner
    }
}

/// The state of a search.
struct Search<'a> {
    event: &'a [Value],
    steps: u32,
}

/// The conditions that are still to be matched.
struct Goals<'g> {
    first: &'g Pattern,
    others: Option<&'g Goals<'g>>,
}

/// The leaves chosen so far: each with its path and the items of lists that contain it.
struct Chosen<'g> {
    path: &'g Path,
    trail: &'g [Item],
    others: Option<&'g Chosen<'g>>,
}

/// An item of a list: the number of keys before the list, and the index in it.
#[derive(Clone, Copy, PartialEq)]
struct Item {
    depth: u32,
    at: u32,
}

impl Search<'_> {
    fn take(&mut self, steps: usize) {
        self.steps = self.steps.saturating_add(u32::try_from(steps).unwrap_or(u32::MAX));
    }

    fn is_exhausted(&self) -> bool {
        self.steps > STEPS_MAX
    }

    /// Whether all goals can be matched together. A search that exceeds the step limit fails.
    fn solve(&mut self, goals: Option<&Goals<'_>>, chosen: Option<&Chosen<'_>>) -> bool {
        let Some(Goals { first, others }) = goals else { return true };
        self.take(1);
        if self.is_exhausted() {
            return false;
        }
        match first {
            Pattern::All(parts) => self.solve_all(parts, *others, chosen),
            Pattern::Any(parts) => {
                parts.iter().any(|part| self.solve(Some(&Goals { first: part, others: *others }), chosen))
            }
            Pattern::Missing(path) => !path.any(self.event, &mut is_leaf(path)) && self.solve(*others, chosen),
            Pattern::Exists(path) => self.choose(path, &[], *others, chosen),
            Pattern::Leaf(path, value_tests) => self.choose(path, value_tests, *others, chosen),
        }
    }

    fn solve_all(&mut self, parts: &[Pattern], others: Option<&Goals<'_>>, chosen: Option<&Chosen<'_>>) -> bool {
        match parts {
            [] => self.solve(others, chosen),
            [first] => self.solve(Some(&Goals { first, others }), chosen),
            [rest @ .., last] => self.solve_all(rest, Some(&Goals { first: last, others }), chosen),
        }
    }

    /// Tries each leaf that passes all tests and is in the same items as those chosen before.
    fn choose(
        &mut self,
        path: &Path,
        value_tests: &[ValueTest],
        others: Option<&Goals<'_>>,
        chosen: Option<&Chosen<'_>>,
    ) -> bool {
        let Some(value) = self.event.get(path.field) else { return false };
        if value.is_null() {
            return false;
        }
        let mut trail = Vec::new();
        self.descend(value, path, 0, &mut trail, &mut |search, leaf, trail| {
            search.take(1 + value_tests.iter().map(|value_test| value_test.steps(leaf)).sum::<usize>());
            if search.is_exhausted()
                || !value_tests.iter().all(|value_test| value_test.accepts(leaf))
                || !search.fits(path, trail, chosen)
            {
                return search.is_exhausted();
            }
            search.solve(others, Some(&Chosen { path, trail, others: chosen }))
        }) && !self.is_exhausted()
    }

    fn descend(
        &mut self,
        value: &Value,
        path: &Path,
        depth: usize,
        trail: &mut Vec<Item>,
        visit: &mut dyn FnMut(&mut Self, &Value, &[Item]) -> bool,
    ) -> bool {
        match (value, path.keys.get(depth)) {
            (Value::List(items), _) => items.iter().enumerate().any(|(at, item)| {
                // A leaf directly in a list shares it with no other field.
                let is_inner = matches!(item, Value::List(_) | Value::Map(_));
                if is_inner {
                    trail.push(Item { depth: depth as u32, at: at as u32 });
                }
                let found = self.descend(item, path, depth, trail, visit);
                if is_inner {
                    trail.pop();
                }
                found
            }),
            (Value::Map(entries), Some(key)) => entries
                .iter()
                .find(|(name, _)| name == key)
                .is_some_and(|(_, value)| self.descend(value, path, depth + 1, trail, visit)),
            (Value::Map(_), None) | (_, Some(_)) => false,
            (leaf, None) => visit(self, leaf, trail),
        }
    }

    /// Whether a leaf is in the same items of the lists that it shares with those chosen before.
    fn fits(&mut self, path: &Path, trail: &[Item], mut chosen: Option<&Chosen<'_>>) -> bool {
        let mut seen = 0;
        while let Some(Chosen { path: other, trail: theirs, others }) = chosen {
            seen += 1;
            if path.field == other.field {
                let shared = shared(path, other) as u32;
                let both = trail.iter().zip(*theirs).take_while(|(one, other)| one.depth.max(other.depth) <= shared);
                if both.into_iter().any(|(one, other)| one.depth == other.depth && one.at != other.at) {
                    self.take(seen / 4);
                    return false;
                }
            }
            chosen = *others;
        }
        self.take(seen / 4);
        true
    }
}

/// Whether a value at the end of a path is a leaf.
fn is_leaf(path: &Path) -> impl FnMut(&Value) -> bool + use<> {
    let one = path.reach == Reach::One;
    move |value| !(one && value.is_null())
}
