//! Type checker: types a syntax tree against the fields of an event class and a subscription class.

pub(crate) mod scope; // the names that an expression can use
mod checker; // types of operators, literals and containers
mod names; // resolves names
pub(crate) mod calls; // checks calls

use tocsin_model::problem::{Code, Problem};

use crate::{
    cel,
    check::checker::Checker,
    dialect::{Node, parse_with_large_stack},
    expression::{Expression, Type},
    regex_pattern::Budget,
};

pub use scope::{Scope, Subject};

/// Parses and types a CEL expression.
pub fn compile(source: &str, scope: &Scope) -> Result<Expression, Vec<Problem>> {
    parse_with_large_stack(source, || {
        let node = cel::parse(source).map_err(|problem| vec![problem])?;
        check(source, &node, scope)
    })
}

/// Parses and types a predicate: like [`compile`], and the result must be boolean.
pub fn compile_predicate(source: &str, scope: &Scope) -> Result<Expression, Vec<Problem>> {
    let expression = compile(source, scope)?;
    match expression.kind_of_value {
        Type::Boolean | Type::Dynamic => Ok(expression),
        ref other => {
            let problem = expression.span.problem(
                Code::TypeMismatch,
                source,
                format!("the expression gives {other}, not a boolean"),
            );
            Err(vec![problem.hint("compare it with something")])
        }
    }
}

/// Types a syntax tree.
///
/// # Errors
/// Every problem found.
pub fn check(source: &str, node: &Node, scope: &Scope) -> Result<Expression, Vec<Problem>> {
    let variables = scope.variables.iter().map(|name| (name.to_string(), Type::Dynamic)).collect();
    let mut checker = Checker { source, scope, variables, problems: Vec::new(), budget: Budget::default() };
    let expression = checker.expression(node);
    if checker.problems.is_empty() { Ok(expression) } else { Err(checker.problems) }
}
