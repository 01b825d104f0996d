//! Parses the YAML text of an application into an `Application`, or reports every problem in it.
//!
//! The text passes four stages, and each reports all problems it finds. `document` parses nodes with positions, and
//! `variables` fills in the environment. `language` checks keys and types, and `build` makes the application and
//! checks that every name mentioned exists.

mod broken_parts; // parts with problems, for checks that continue without them
mod build; // builds the application from checked nodes; names must exist
mod difference; // difference of two versions: the effects of an apply
pub mod document; // parses YAML into nodes with positions
mod document_difference; // difference of two documents by their paths
mod exchange; // parses the definition of an exchange
mod duration; // durations: `90s`, `1h30m`, `7d`
mod inline; // replaces `{ file: ... }` by the file's text
mod recovery; // error recovery after YAML syntax errors
mod names; // name clashes in SQLite, which ignores case
mod language; // the keys of the definition language, as one table
pub mod secrets; // masks secrets in definitions and restores them
mod surrogate_pairs; // surrogate pairs in double-quoted scalars
pub mod shape; // checks nodes against the table; also makes the JSON Schema
mod redacted_read; // keeps values of environment variables out of problems
mod variables; // environment variables: `${NAME}` and `${NAME:-default}`

#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::{
    application::Application,
    problem::{Code, Problem},
};

pub use broken_parts::BrokenParts;
pub use difference::{Difference, DifferenceKind, difference};
pub use document::{PROBLEMS_MAX, TEXT_BYTES_MAX};
pub use document_difference::document_difference;
pub use duration::{parse_duration, write_duration};
pub use exchange::{json_schema as exchange_json_schema, read as read_exchange};
pub use inline::{inline_files, inline_readable_files};
pub use names::name_clashes;
pub use redacted_read::{placeholder_value, read_redacted, without_value};

/// Looks up `${NAME}` in definitions.
pub type Environment = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Parses and checks a definition. `environment` looks up `${NAME}` in the options of channels and in sources.
///
/// # Errors
/// Every problem found, each with line, column, path, message and hint; at most [`PROBLEMS_MAX`]. A section with a
/// YAML syntax error is left out of the further check.
pub fn read(text: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<Application, Vec<Problem>> {
    let PartialApplication { application, problems, .. } = read_partially(text, environment, Vec::new());
    match application {
        Some(application) if problems.is_empty() => Ok(application),
        _ => Err(in_order(problems)),
    }
}

/// A definition that may have problems.
#[derive(Debug)]
pub struct PartialApplication {
    /// The application without what could not be built; `None` after a YAML syntax error without recovery, or if a mapping or list has
    /// several times the permitted entries. It is consistent only without
    /// its broken parts.
    pub application: Option<Application>,
    /// The parts with problems.
    pub broken: BrokenParts,
    /// All problems, without those that follow from others.
    pub problems: Vec<Problem>,
}

/// Like [`read`], for a check that continues after problems. `found` are problems of earlier stages.
pub fn read_partially(
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
    found: Vec<Problem>,
) -> PartialApplication {
    let earlier = BrokenParts::of(&found);
    let mut problems = Vec::new();
    let recovered = recovery::parse(text, &mut problems);
    let (root, left_out) = recovered.map(|found| (found.root, found.left_out)).unzip();
    let application = root.and_then(|mut root| {
        variables::fill_in(&mut root, environment, &mut problems);
        let is_readable = shape::check(&language::APPLICATION, &root, &mut problems);
        is_readable.then(|| build::application(&root, &mut problems))
    });
    if let Some(application) = &application {
        earlier.remove_explained(application, &mut problems);
    }
    problems.extend(found);
    let mut broken = BrokenParts::of(&problems);
    broken.leave_out(&left_out.unwrap_or_default());
    let problems = broken.without_follow_ons(problems);
    PartialApplication { application, broken, problems }
}

/// The name of the application in a text, if it has one.
pub fn named(text: &str) -> Option<crate::id::Name> {
    name_under(text, "application")
}

/// The name of the exchange in a text, if it has one.
pub fn named_exchange(text: &str) -> Option<crate::id::Name> {
    name_under(text, "exchange")
}

fn name_under(text: &str, key: &str) -> Option<crate::id::Name> {
    document::parse(text, &mut Vec::new())?.get(key)?.text()?.parse().ok()
}

/// Paths of the ports of an exchange that use environment variables, such as `send.erp`.
pub fn ports_with_variables(text: &str) -> Vec<String> {
    document::parse(text, &mut Vec::new()).map(variables::ports_that_take).unwrap_or_default()
}

/// Adds text positions to problems that others found in a definition, by their paths.
///
/// An existing position of a problem is relative to the value at its path (an expression, a template). It is added to
/// the value's own if the value is on one line; else it goes into the message.
pub fn locate(text: &str, problems: Vec<Problem>) -> Vec<Problem> {
    let Some(recovery::Recovered { root, .. }) = recovery::parse(text, &mut Vec::new()) else {
        return problems;
    };
    in_order(problems.into_iter().map(|problem| locate_one(text, &root, problem)).collect())
}

fn locate_one(text: &str, root: &document::Node, mut problem: Problem) -> Problem {
    let (mut node, mut exact) = (root, true);
    for key in problem.path.split('.') {
        match below(node, key) {
            Some(next) => node = next,
            None => exact = false,
        }
        if !exact {
            break;
        }
    }
    let inner = problem.line.zip(problem.column);
    let written: String = text.chars().skip(node.start).take(node.end.saturating_sub(node.start)).collect();
    let quote = u32::from(written.starts_with(['"', '\'']));
    problem = problem.position(node.line, node.column);
    match inner {
        Some((1, column)) if exact && !written.contains('\n') && !written.starts_with(['|', '>']) => {
            problem.column = Some(node.column + quote + column.saturating_sub(1));
        }
        Some((line, column)) => problem.message = format!("{} (line {line}, column {column} of it)", problem.message),
        None => {}
    }
    problem
}

/// The node under one key of a path, such as `steps[2]`.
fn below<'a>(node: &'a document::Node, key: &str) -> Option<&'a document::Node> {
    let (name, places) = key.split_once('[').unwrap_or((key, ""));
    let places = places.split('[').filter_map(|place| place.strip_suffix(']')?.parse::<usize>().ok());
    places.fold(node.get(name), |node, place| match &node?.kind {
        document::Kind::List(items) => items.get(place),
        _ => None,
    })
}

/// The JSON Schema of definitions (draft 2020-12), for editors, made from the table by which `read` checks.
pub fn json_schema() -> serde_json::Value {
    let about = "What a deployment of Tocsin does: classes, rules, channels, formats, retention.";
    shape::json_schema(&language::APPLICATION, "Application", about)
}

/// Sorts problems by their position and limits their number.
pub fn in_order(mut problems: Vec<Problem>) -> Vec<Problem> {
    problems.sort_by_key(|problem| (problem.line.unwrap_or(0), problem.column.unwrap_or(0)));
    // A second problem at one place follows from the first: a variable that is not set is also of no known kind.
    problems
        .dedup_by(|later, first| (&later.path, later.line, later.column) == (&first.path, first.line, first.column));
    let beyond = problems.len().saturating_sub(PROBLEMS_MAX);
    if beyond > 0 {
        problems.truncate(PROBLEMS_MAX);
        problems
            .push(Problem::new(Code::MoreProblems, "", format!("has {beyond} more problems")).param("count", beyond));
    }
    problems
}
