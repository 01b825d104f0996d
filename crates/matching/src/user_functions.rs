//! User-defined functions: CEL over their parameters. Rules and filters of every dialect with calls can use them.
//!
//! A function cannot call another function of its application. So its cost and depth are bounded by its own text, and
//! recursion is impossible.

use std::{collections::BTreeMap, sync::Arc};

use tocsin_model::{
    application,
    id::Name,
    problem::{Code, Problem},
};

use crate::{
    cel::is_reserved,
    check::{calls::is_built_in, compile, scope::Scope},
    filter::jmespath,
};

pub use crate::expression::{UserFunction, UserFunctions};

/// Compiles the functions of an application.
///
/// # Errors
/// Every problem, with the path of the function, and the position in its expression.
pub fn compile_functions(functions: &BTreeMap<Name, application::Function>) -> Result<UserFunctions, Vec<Problem>> {
    let (mut compiled, mut problems) = (BTreeMap::new(), Vec::new());
    for (name, function) in functions {
        match compile_function(name, function) {
            Ok(defined) => _ = compiled.insert(name.as_str().into(), Arc::new(defined)),
            Err(found) => problems.extend(found.into_iter().map(|problem| explain_sibling_call(problem, functions))),
        }
    }
    if problems.is_empty() { Ok(UserFunctions(Arc::new(compiled))) } else { Err(problems) }
}

/// Gives an unknown function that the application defines a problem text of its own.
fn explain_sibling_call(problem: Problem, functions: &BTreeMap<Name, application::Function>) -> Problem {
    let unknown = problem.message.strip_prefix("there is no function `").and_then(|rest| rest.strip_suffix('`'));
    match unknown {
        Some(name) if functions.keys().any(|known| known.as_str() == name) => {
            let message = format!("`{name}` is a function of the application too, which a function cannot call");
            Problem { message, ..problem }.hint("write out what it computes")
        }
        _ => problem,
    }
}

fn compile_function(name: &Name, function: &application::Function) -> Result<UserFunction, Vec<Problem>> {
    let mut problems = Vec::new();
    let path = format!("functions.{name}");
    if is_built_in(name.as_str()) || jmespath::is_built_in(name.as_str()) {
        problems.push(
            Problem::new(Code::Duplicate, &path, format!("there is a function `{name}` already"))
                .param("value", name.to_string())
                .hint("choose another name"),
        );
    } else if !is_name(name.as_str()) {
        problems.push(
            Problem::new(Code::ReservedName, &path, format!("`{name}` cannot be called"))
                .param("value", name.to_string())
                .hint("choose another name"),
        );
    }
    let mut parameters: Vec<Arc<str>> = Vec::new();
    for (at, parameter) in function.parameters.iter().enumerate() {
        let name = parameter.as_str();
        if !is_name(name) || ["event", "sub", "subscription"].contains(&name) {
            let problem = Problem::new(
                Code::ReservedName,
                format!("{path}.parameters[{at}]"),
                format!("`{name}` has another meaning"),
            )
            .param("value", name.to_string());
            problems.push(problem.hint("choose another name"));
        }
        parameters.push(name.into());
    }
    let scope = Scope { variables: parameters.clone(), ..Scope::default() };
    match compile(&function.expression, &scope) {
        Ok(body) if problems.is_empty() => {
            let source = function.expression.as_str().into();
            return Ok(UserFunction { name: name.as_str().into(), parameters, source, body });
        }
        Ok(_) => {}
        Err(found) => problems.extend(found.into_iter().map(|problem| Problem {
            path: format!("{path}.expression"),
            ..without_event_hints(problem, &parameters)
        })),
    }
    Err(problems)
}

/// Whether expressions can spell it as a name.
fn is_name(text: &str) -> bool {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    plain && !is_reserved(text)
}

/// A function has no event and no subscription, so hints must not mention them.
fn without_event_hints(mut problem: Problem, parameters: &[Arc<str>]) -> Problem {
    let names_class = problem.message.contains(" class has no field ");
    if names_class {
        problem.message = "a function can read only its parameters".to_owned();
    }
    let speaks =
        |hint: &String| hint == "an expression can read `event` and `sub`" || hint == "the class has no fields";
    if names_class || problem.hint.as_ref().is_some_and(speaks) {
        problem.hint = Some(match parameters {
            [] => "it has no parameters; give them as `parameters: [...]`".to_owned(),
            names => format!("its parameters are {}", names.join(", ")),
        });
    }
    problem
}
