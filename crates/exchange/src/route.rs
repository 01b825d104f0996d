//! Content-based routing: predicates over properties select send ports; an index makes thousands of routes cheap.

use parking_lot::Mutex;
use tocsin_matching::filter::{
    CompiledFilter, Condition, compile_for_messages,
    index::{FilterIndex, FilterScratch},
    show::show,
};
use tocsin_model::{exchange::Exchange, field::Fields, id::Name, problem::Problem, value::Value};

/// Number of nearest routes in the reason of an unroutable message.
const NEAREST: usize = 3;
/// Number of equally near alternatives that are shown.
const ALTERNATIVES: usize = 3;
/// Maximum pooled scratch buffers.
const SCRATCH_MAX: usize = 64;

/// The routes of an exchange.
pub(crate) struct Routes {
    routes: Vec<Route>,
    index: FilterIndex,
    scratch_pool: Mutex<Vec<FilterScratch>>,
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
        if problems.is_empty() { Ok(Routes { routes, index, scratch_pool: Mutex::default() }) } else { Err(problems) }
    }

    /// The distinct send ports of a message, in the order of the routes' names.
    pub fn targets(&self, row: &[Value]) -> Vec<&Name> {
        let mut targets: Vec<&Name> = Vec::new();
        for target in self.matching_routes(row).into_iter().flat_map(|route| &route.to) {
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        targets
    }

    /// The names of the routes that a message matches.
    pub fn names(&self, row: &[Value]) -> Vec<&Name> {
        self.matching_routes(row).into_iter().map(|route| &route.name).collect()
    }

    fn matching_routes(&self, row: &[Value]) -> Vec<&Route> {
        let mut scratch = self.scratch_pool.lock().pop().unwrap_or_default();
        let mut found = Vec::new();
        self.index.matching(row, &mut scratch, &mut found);
        let mut scratch_pool = self.scratch_pool.lock();
        if scratch_pool.len() < SCRATCH_MAX {
            scratch_pool.push(scratch);
        }
        drop(scratch_pool);
        found.sort_unstable();
        found.iter().map(|number| &self.routes[*number as usize]).collect()
    }

    /// Explains why no route leads a message to an open send port. Lists matching routes with the state of their ports,
    /// then the nearest non-matching routes with the missing conditions. `closed` returns why a port takes no messages.
    pub fn nearest(&self, row: &[Value], fields: &Fields, closed: impl Fn(&Name) -> Option<String>) -> Vec<String> {
        let matching_routes: Vec<*const Route> =
            self.matching_routes(row).into_iter().map(std::ptr::from_ref).collect();
        let is_met = |route: &&Route| matching_routes.contains(&std::ptr::from_ref::<Route>(route));
        let states = |route: &Route| {
            let states: Vec<String> = route.to.iter().filter_map(&closed).collect();
            format!("`{}` matches, and {}", route.name, states.join(", "))
        };
        let mut reasons: Vec<String> = self.routes.iter().filter(is_met).map(states).collect();
        let missed = self.routes.iter().filter(|route| !is_met(route));
        let mut missed: Vec<(usize, String)> = missed.map(|route| route.lacks(row, fields)).collect();
        missed.sort_by_key(|(lacking, _)| *lacking);
        reasons.extend(missed.into_iter().map(|(_, text)| text));
        reasons.truncate(NEAREST);
        reasons
    }
}

impl Route {
    /// The number of its conditions that do not hold, and their text.
    fn lacks(&self, row: &[Value], fields: &Fields) -> (usize, String) {
        match lacking(self.when.condition(), row, fields) {
            (0, _) => {
                // Conditions that the index cannot check count as holding, so evaluation decides.
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

/// The minimum number of failing tests, and their text. Of alternatives, the nearest count; the number of the others is
/// added.
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
