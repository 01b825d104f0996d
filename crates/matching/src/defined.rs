//! Functions that an application defines: CEL over their parameters, to be called by rules and filters of every dialect
//! that has calls.
//!
//! A function calls no other of its application. So its cost and depth are those of its own text, and no two can call
//! each other without end.

use std::{collections::BTreeMap, fmt, sync::Arc};

use tocsin_model::{application, id::Name, problem::Problem};

use crate::{
    check::{Scope, compile, is_built_in},
    datum::{Datum, Trouble},
    dialect::cel::is_reserved,
    evaluate::{Evaluator, Scene, Steps},
    expression::{Expression, Type},
    filter::jmespath,
};

/// The functions of one version of an application. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Functions(Arc<BTreeMap<Box<str>, Arc<Defined>>>);

/// A function that an application defines.
pub struct Defined {
    name: Box<str>,
    parameters: Vec<Arc<str>>,
    source: Box<str>,
    body: Expression,
}

impl Functions {
    /// Compiles the functions of an application.
    ///
    /// # Errors
    /// Every problem, with the path of the function, and the position in its expression.
    pub fn compile(functions: &BTreeMap<Name, application::Function>) -> Result<Functions, Vec<Problem>> {
        let (mut compiled, mut problems) = (BTreeMap::new(), Vec::new());
        for (name, function) in functions {
            match Defined::compile(name, function) {
                Ok(defined) => _ = compiled.insert(name.as_str().into(), Arc::new(defined)),
                Err(found) => problems.extend(found.into_iter().map(|problem| of_another(problem, functions))),
            }
        }
        if problems.is_empty() { Ok(Functions(Arc::new(compiled))) } else { Err(problems) }
    }

    /// The function of a name.
    pub(crate) fn find(&self, name: &str) -> Option<&Arc<Defined>> {
        self.0.get(name)
    }

    /// The names of all.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|name| &**name)
    }
}

/// An unknown function that the application defines itself is told apart.
fn of_another(problem: Problem, functions: &BTreeMap<Name, application::Function>) -> Problem {
    let unknown = problem.message.strip_prefix("there is no function `").and_then(|rest| rest.strip_suffix('`'));
    match unknown {
        Some(name) if functions.keys().any(|known| known.as_str() == name) => {
            let message = format!("`{name}` is a function of the application too, which a function cannot call");
            Problem { message, ..problem }.hint("write out what it computes")
        }
        _ => problem,
    }
}

impl Defined {
    fn compile(name: &Name, function: &application::Function) -> Result<Defined, Vec<Problem>> {
        let mut problems = Vec::new();
        let path = format!("functions.{name}");
        if is_built_in(name.as_str()) || jmespath::is_built_in(name.as_str()) {
            problems
                .push(Problem::at(&path, format!("there is a function `{name}` already")).hint("choose another name"));
        } else if !is_name(name.as_str()) {
            problems.push(Problem::at(&path, format!("`{name}` cannot be called")).hint("choose another name"));
        }
        let mut parameters: Vec<Arc<str>> = Vec::new();
        for (at, parameter) in function.parameters.iter().enumerate() {
            let name = parameter.as_str();
            if !is_name(name) || ["event", "sub", "subscription"].contains(&name) {
                let problem = Problem::at(format!("{path}.parameters[{at}]"), format!("`{name}` has another meaning"));
                problems.push(problem.hint("choose another name"));
            }
            parameters.push(name.into());
        }
        let scope = Scope { variables: parameters.clone(), ..Scope::default() };
        match compile(&function.expression, &scope) {
            Ok(body) if problems.is_empty() => {
                let source = function.expression.as_str().into();
                return Ok(Defined { name: name.as_str().into(), parameters, source, body });
            }
            Ok(_) => {}
            Err(found) => problems.extend(
                found
                    .into_iter()
                    .map(|problem| Problem { path: format!("{path}.expression"), ..alone(problem, &parameters) }),
            ),
        }
        Err(problems)
    }

    /// As one would write a call.
    pub(crate) fn show(&self) -> String {
        format!("{}({})", self.name, self.parameters.join(", "))
    }

    /// How many values it takes.
    pub(crate) fn takes(&self) -> usize {
        self.parameters.len()
    }

    /// What it gives.
    pub(crate) fn gives(&self) -> &Type {
        &self.body.kind_of_value
    }

    /// What it computes, over its parameters as the outermost variables.
    pub(crate) fn body(&self) -> &Expression {
        &self.body
    }

    /// Calls it.
    ///
    /// # Errors
    /// It has no value for these.
    pub(crate) fn call<'a>(&'a self, given: Vec<Datum<'a>>, steps: &mut Steps) -> Result<Datum<'a>, Trouble> {
        Evaluator::over(Scene::default(), given).run(&self.body, steps)
    }
}

/// Two are equal where they are called and written alike.
impl PartialEq for Defined {
    fn eq(&self, other: &Defined) -> bool {
        self.name == other.name && self.parameters == other.parameters && self.source == other.source
    }
}

impl fmt::Debug for Defined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {:?}", self.show(), self.source)
    }
}

/// Whether expressions can spell it as a name.
fn is_name(text: &str) -> bool {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    plain && !is_reserved(text)
}

/// A function knows no event and no subscription, so nothing should hint at them.
fn alone(mut problem: Problem, parameters: &[Arc<str>]) -> Problem {
    let of_class = problem.message.contains(" class has no field ");
    if of_class {
        problem.message = "a function speaks of its parameters alone".to_owned();
    }
    let speaks =
        |hint: &String| hint == "an expression speaks of `event` and `sub`" || hint == "the class has no fields";
    if of_class || problem.hint.as_ref().is_some_and(speaks) {
        problem.hint = Some(match parameters {
            [] => "it has no parameters; give them as `parameters: [...]`".to_owned(),
            names => format!("its parameters are {}", names.join(", ")),
        });
    }
    problem
}
