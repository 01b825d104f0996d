//! Keeps values of environment variables out of problem texts: a user who applies a definition or reads its problems
//! need not know them.

use crate::problem::{Code, Params, Problem};

/// Parses a definition with an environment, without revealing its values. If a problem occurs only with these values,
/// its message says that a value does not fit and what would, but not the value. `places` are the path prefixes where
/// variables occur.
///
/// # Errors
/// Those of `read`.
pub fn read_redacted<T>(
    environment: &dyn Fn(&str) -> Option<String>,
    places: &[&str],
    read: impl Fn(&dyn Fn(&str) -> Option<String>) -> Result<T, Vec<Problem>>,
) -> Result<T, Vec<Problem>> {
    let is_asked = std::cell::Cell::new(false);
    let asked = |name: &str| {
        is_asked.set(true);
        environment(name)
    };
    let problems = match read(&asked) {
        Err(problems) if is_asked.get() => problems,
        read => return read,
    };
    // A problem that also occurs with other values reveals nothing about these.
    let others = |name: &str| environment(name).map(|_| placeholder_value(name));
    let always = read(&others).err().unwrap_or_default();
    let redacted = |problem: Problem| {
        let may_hold_value = places.iter().any(|place| problem.path.starts_with(place));
        if may_hold_value && !always.contains(&problem) { without_value(problem, &always) } else { problem }
    };
    Err(problems.into_iter().map(redacted).collect())
}

/// Placeholder for the value of a variable: the variable itself.
pub fn placeholder_value(name: &str) -> String {
    format!("${{{name}}}")
}

/// A problem with a value of the environment, without the value. The expectation is kept if it is the same with other
/// values, whose problems are `always`.
pub fn without_value(problem: Problem, always: &[Problem]) -> Problem {
    let expected =
        |problem: &Problem| problem.message.rsplit_once(", expected ").map(|(_, expected)| expected.to_owned());
    let is_of = |other: &&Problem| other.path == problem.path && expected(other) == expected(&problem);
    let message = match always.iter().find(is_of).and_then(expected) {
        Some(expected) => format!("does not fit with what the environment gives; expected {expected}"),
        None => "does not fit with what the environment gives".to_owned(),
    };
    Problem { code: Code::EnvironmentValue, message, params: Params::default(), hint: None, ..problem }
}
