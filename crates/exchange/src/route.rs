//! Predicates over properties say where a message goes; the index over them makes thousands of routes cheap.

use parking_lot::Mutex;
use tocsin_matching::filter::{
    CompiledFilter, Condition, compile_for_messages,
    index::{Desk, FilterIndex},
    show::show,
};
use tocsin_model::{exchange::Exchange, field::Fields, id::Name, problem::Problem, value::Value};

/// Routes that an unroutable message is told of.
const NEAREST: usize = 3;
/// Alternatives of a predicate that are shown of those that lack the same.
const ALTERNATIVES: usize = 3;
/// Desks that are kept for the next message.
const DESKS_MAX: usize = 64;

/// The routes of an exchange.
pub(crate) struct Routes {
    routes: Vec<Route>,
    index: FilterIndex,
    desks: Mutex<Vec<Desk>>,
}

struct Route {
    name: Name,
    when: CompiledFilter,
    to: Vec<Name>,
}

impl Routes {
    pub fn compile(exchange: &Exchange, fields: &Fields) -> Result<Routes, Vec<Problem>> {
        let (mut routes, mut index, mut problems) = (Vec::new(), FilterIndex::new(), Vec::new());
        for (name, route) in &exchange.routes {
            match compile_for_messages(&route.when, fields) {
                Ok(when) => {
                    index.insert(u32::try_from(routes.len()).expect("routes are bounded"), &when);
                    routes.push(Route { name: name.clone(), when, to: route.to.clone() });
                }
                Err(found) => problems.extend(found.into_iter().map(|problem| {
                    let path = format!("routes.{name}.when");
                    Problem { path, ..problem }
                })),
            }
        }
        if problems.is_empty() { Ok(Routes { routes, index, desks: Mutex::default() }) } else { Err(problems) }
    }

    /// The send ports that a message goes to, each once, in the order of the routes' names.
    pub fn targets(&self, row: &[Value]) -> Vec<&Name> {
        let mut targets: Vec<&Name> = Vec::new();
        for target in self.met(row).into_iter().flat_map(|route| &route.to) {
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        targets
    }

    /// The routes that a message meets, by name.
    pub fn names(&self, row: &[Value]) -> Vec<&Name> {
        self.met(row).into_iter().map(|route| &route.name).collect()
    }

    fn met(&self, row: &[Value]) -> Vec<&Route> {
        let mut desk = self.desks.lock().pop().unwrap_or_default();
        let mut found = Vec::new();
        self.index.matching(row, &mut desk, &mut found);
        let mut desks = self.desks.lock();
        if desks.len() < DESKS_MAX {
            desks.push(desk);
        }
        drop(desks);
        found.sort_unstable();
        found.iter().map(|number| &self.routes[*number as usize]).collect()
    }

    /// Why no route leads a message to an open send port, for people: the routes that it met, with the state of their ports;
    /// then those that it misses by the least, each with what decides that it does. `closed` says why a port takes nothing.
    pub fn nearest(&self, row: &[Value], fields: &Fields, closed: impl Fn(&Name) -> Option<String>) -> Vec<String> {
        let met: Vec<*const Route> = self.met(row).into_iter().map(std::ptr::from_ref).collect();
        let is_met = |route: &&Route| met.contains(&std::ptr::from_ref::<Route>(route));
        let states = |route: &Route| {
            let states: Vec<String> = route.to.iter().filter_map(&closed).collect();
            format!("`{}` matches, and {}", route.name, states.join(", "))
        };
        let mut told: Vec<String> = self.routes.iter().filter(is_met).map(states).collect();
        let missed = self.routes.iter().filter(|route| !is_met(route));
        let mut missed: Vec<(usize, String)> = missed.map(|route| route.lacks(row, fields)).collect();
        missed.sort_by_key(|(lacking, _)| *lacking);
        told.extend(missed.into_iter().map(|(_, text)| text));
        told.truncate(NEAREST);
        told
    }
}

impl Route {
    /// How many of the conditions that it joins do not hold, and which.
    fn lacks(&self, row: &[Value], fields: &Fields) -> (usize, String) {
        match lacking(self.when.condition(), row, fields) {
            (0, _) => {
                // What only evaluating tells counts as holding, so it decides.
                let fails = match self.when.holds(row) {
                    Err(_) => "it cannot be evaluated for this message",
                    Ok(_) => "the part of its predicate that no index answers does not hold",
                };
                (1, format!("`{}` does not match: {fails}", self.name))
            }
            (count, what) => (count, format!("`{}` lacks {what}", self.name)),
        }
    }
}

/// The number of tests that would have to hold for a condition to hold, at least, and which. Of alternatives those that lack the least
/// decide; how many others there are is said.
fn lacking(condition: &Condition, row: &[Value], fields: &Fields) -> (usize, String) {
    match condition {
        holds if holds.holds(row) => (0, String::new()),
        Condition::All(parts) => {
            let parts: Vec<(usize, String)> = parts.iter().map(|part| lacking(part, row, fields)).collect();
            let lacking: Vec<&(usize, String)> = parts.iter().filter(|(count, _)| *count > 0).collect();
            let texts: Vec<&str> = lacking.iter().map(|(_, text)| text.as_str()).collect();
            (lacking.iter().map(|(count, _)| count).sum(), texts.join(" and "))
        }
        Condition::Any(parts) if !parts.is_empty() => {
            let parts: Vec<(usize, String)> = parts.iter().map(|part| lacking(part, row, fields)).collect();
            let least = parts.iter().map(|(count, _)| *count).min().unwrap_or(1);
            let nearest: Vec<&str> =
                parts.iter().filter(|(count, _)| *count == least).map(|(_, text)| text.as_str()).collect();
            let shown = nearest.iter().take(ALTERNATIVES).copied().collect::<Vec<_>>().join(" or ");
            match parts.len().saturating_sub(nearest.len().min(ALTERNATIVES)) {
                0 if nearest.len() > 1 => (least, format!("({shown})")),
                0 => (least, shown),
                others => (least, format!("({shown}, or one of {others} other alternatives)")),
            }
        }
        one => (1, show(one, fields)),
    }
}
