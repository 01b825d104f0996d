//! Compiles a filter by the compiler of its dialect.

use tocsin_model::{
    field::Fields,
    filter::{Dialect, Filter},
    problem::Problem,
    value::Value,
};

use crate::{
    dialect::parse_with_large_stack,
    expression::UserFunctions,
    filter::{
        cel,
        compiled::{CompiledFilter, FilterScope},
        jmespath, pattern,
    },
};

/// Compiles a filter that calls no functions of the application; see [`compile_with`].
///
/// # Errors
/// Every problem found, with line and column in the filter's text.
pub fn compile(filter: &Filter, event: &Fields) -> Result<CompiledFilter, Vec<Problem>> {
    compile_with(filter, event, &UserFunctions::default())
}

/// Compiles a filter for events of a class. Cost: linear in its text, except for regular expressions, whose size is
/// bounded.
///
/// # Errors
/// Every problem found, with line and column in the filter's text.
pub fn compile_with(
    filter: &Filter,
    event: &Fields,
    functions: &UserFunctions,
) -> Result<CompiledFilter, Vec<Problem>> {
    compile_for(filter, &FilterScope::new(event.clone(), functions.clone()), None)
}

/// Compiles a predicate over messages with these properties, as [`compile_with`] does over events.
///
/// # Errors
/// Every problem found, with line and column in its text.
pub fn compile_for_messages(filter: &Filter, properties: &Fields) -> Result<CompiledFilter, Vec<Problem>> {
    compile_for(filter, &FilterScope::of_messages(properties.clone()), None)
}

/// As [`compile_with`], for one subscriber: `values` are its columns, in their order. Without them the filter is
/// compiled for checking only.
///
/// # Errors
/// As [`compile_with`].
pub(crate) fn compile_for(
    filter: &Filter,
    scope: &FilterScope,
    subscriber: Option<&[Value]>,
) -> Result<CompiledFilter, Vec<Problem>> {
    parse_with_large_stack(&filter.text, || match filter.dialect {
        Dialect::Cel => cel::compile(&filter.text, scope, subscriber),
        Dialect::Jmespath => jmespath::compile(&filter.text, &scope.event, &scope.functions),
        Dialect::EventPattern => pattern::compile(&filter.text, &scope.event),
        Dialect::Notifybc => jmespath::compile_for_notifybc(&filter.text, &scope.event, &scope.functions),
    })
}
