//! Evaluates a pattern: looks for leaves that fit together.
//!
//! A list of objects is where fields must meet: leaves that stand below the same list must stand in the same item of it.
//! So leaves are chosen one after the other, and a choice that does not fit to those before is taken back.

use tocsin_model::value::Value;

use super::{Pattern, shared};
use crate::{
    datum::Trouble,
    evaluate::STEPS_MAX,
    filter::{Evaluate, How, Path, Reach},
};

impl Evaluate for Pattern {
    fn holds(&self, event: &[Value]) -> Result<bool, Trouble> {
        let mut search = Search { event, steps: 0 };
        let holds = search.solve(Some(&Goals { first: self, others: None }), None);
        if search.is_over() { Err(Trouble::Cost) } else { Ok(holds) }
    }

    fn memory_bytes(&self) -> usize {
        let inner = match self {
            Pattern::All(parts) | Pattern::Any(parts) => parts.iter().map(Pattern::memory_bytes).sum(),
            Pattern::Leaf(path, hows) => path.keys.len() * 32 + hows.len() * (size_of::<How>() + 64),
            Pattern::Exists(path) | Pattern::Missing(path) => path.keys.len() * 32,
        };
        size_of::<Pattern>() + inner
    }
}

/// Looks for leaves that fit together.
struct Search<'a> {
    event: &'a [Value],
    steps: u32,
}

/// What is still to be met.
struct Goals<'g> {
    first: &'g Pattern,
    others: Option<&'g Goals<'g>>,
}

/// The leaves that were chosen: each with its place and the items of lists in which it stands.
struct Chosen<'g> {
    path: &'g Path,
    trail: &'g [Item],
    others: Option<&'g Chosen<'g>>,
}

/// An item of a list: after how many keys the list stood, and its place in it.
#[derive(Clone, Copy, PartialEq)]
struct Item {
    depth: u32,
    at: u32,
}

impl Search<'_> {
    fn take(&mut self, steps: usize) {
        self.steps = self.steps.saturating_add(u32::try_from(steps).unwrap_or(u32::MAX));
    }

    fn is_over(&self) -> bool {
        self.steps > STEPS_MAX
    }

    /// Whether all goals can be met together. What takes too many steps cannot.
    fn solve(&mut self, goals: Option<&Goals<'_>>, chosen: Option<&Chosen<'_>>) -> bool {
        let Some(Goals { first, others }) = goals else { return true };
        self.take(1);
        if self.is_over() {
            return false;
        }
        match first {
            Pattern::All(parts) => self.solve_all(parts, *others, chosen),
            Pattern::Any(parts) => {
                parts.iter().any(|part| self.solve(Some(&Goals { first: part, others: *others }), chosen))
            }
            Pattern::Missing(path) => !path.any(self.event, &mut is_leaf(path)) && self.solve(*others, chosen),
            Pattern::Exists(path) => self.choose(path, &[], *others, chosen),
            Pattern::Leaf(path, hows) => self.choose(path, hows, *others, chosen),
        }
    }

    fn solve_all(&mut self, parts: &[Pattern], others: Option<&Goals<'_>>, chosen: Option<&Chosen<'_>>) -> bool {
        match parts {
            [] => self.solve(others, chosen),
            [first] => self.solve(Some(&Goals { first, others }), chosen),
            [rest @ .., last] => self.solve_all(rest, Some(&Goals { first: last, others }), chosen),
        }
    }

    /// Tries each leaf that is all of this and stands in the same items as those chosen before.
    fn choose(&mut self, path: &Path, hows: &[How], others: Option<&Goals<'_>>, chosen: Option<&Chosen<'_>>) -> bool {
        let Some(value) = self.event.get(path.field) else { return false };
        if value.is_null() {
            return false;
        }
        let mut trail = Vec::new();
        self.descend(value, path, 0, &mut trail, &mut |search, leaf, trail| {
            search.take(1 + hows.iter().map(|how| how.steps(leaf)).sum::<usize>());
            if search.is_over() || !hows.iter().all(|how| how.accepts(leaf)) || !search.fits(path, trail, chosen) {
                return search.is_over();
            }
            search.solve(others, Some(&Chosen { path, trail, others: chosen }))
        }) && !self.is_over()
    }

    fn descend(
        &mut self,
        value: &Value,
        path: &Path,
        depth: usize,
        trail: &mut Vec<Item>,
        see: &mut dyn FnMut(&mut Self, &Value, &[Item]) -> bool,
    ) -> bool {
        match (value, path.keys.get(depth)) {
            (Value::List(items), _) => items.iter().enumerate().any(|(at, item)| {
                // A leaf in a list shares it with no other field.
                let is_inner = matches!(item, Value::List(_) | Value::Map(_));
                if is_inner {
                    trail.push(Item { depth: depth as u32, at: at as u32 });
                }
                let found = self.descend(item, path, depth, trail, see);
                if is_inner {
                    trail.pop();
                }
                found
            }),
            (Value::Map(entries), Some(key)) => entries
                .iter()
                .find(|(name, _)| name == key)
                .is_some_and(|(_, value)| self.descend(value, path, depth + 1, trail, see)),
            (Value::Map(_), None) | (_, Some(_)) => false,
            (leaf, None) => see(self, leaf, trail),
        }
    }

    /// Whether a leaf stands in the same items of the lists that it shares with those chosen before.
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

/// Whether a value counts as a leaf, once a path has led to it.
fn is_leaf(path: &Path) -> impl FnMut(&Value) -> bool + use<> {
    let one = path.reach == Reach::One;
    move |value| !(one && value.is_null())
}
