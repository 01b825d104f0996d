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

    /// The routes that a message misses by the least, each with what it lacks, for people.
    pub fn nearest(&self, row: &[Value], fields: &Fields) -> Vec<String> {
        let mut missed: Vec<(usize, String)> = self.routes.iter().map(|route| route.lacks(row, fields)).collect();
        missed.sort_by_key(|(lacking, _)| *lacking);
        missed.truncate(NEAREST);
        missed.into_iter().map(|(_, text)| text).collect()
    }
}

impl Route {
    /// How many of the conditions that it joins do not hold, and which.
    fn lacks(&self, row: &[Value], fields: &Fields) -> (usize, String) {
        let parts = match self.when.condition() {
            Condition::All(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        let lacking: Vec<&Condition> = parts.iter().filter(|part| !part.holds(row)).collect();
        let shown: Vec<String> = lacking.iter().map(|condition| show(condition, fields)).collect();
        let what = if shown.is_empty() { "its predicate".to_owned() } else { shown.join(" and ") };
        (lacking.len(), format!("`{}` lacks {what}", self.name))
    }
}
