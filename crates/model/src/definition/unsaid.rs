//! What is wrong with a definition is said without what the variables of the environment hold: who applies a definition, or
//! reads what was wrong with it, need not know that.

use crate::problem::Problem;

/// Reads a definition as `read` does with an environment. Where a problem with this one is none with another, its message says
/// that a value does not fit, and what would, but not the value. `places` are the beginnings of the paths that variables
/// stand at.
///
/// # Errors
/// Those of `read`.
pub fn read_without_saying<T>(
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
    // What is also wrong with other values tells nothing of these.
    let others = |name: &str| environment(name).map(|_| stand_in(name));
    let always = read(&others).err().unwrap_or_default();
    let told = |problem: Problem| {
        let may_hold_value = places.iter().any(|place| problem.path.starts_with(place));
        if may_hold_value && !always.contains(&problem) { without_value(problem, &always) } else { problem }
    };
    Err(problems.into_iter().map(told).collect())
}

/// What stands for the value of a variable: the variable itself.
pub fn stand_in(name: &str) -> String {
    format!("${{{name}}}")
}

/// A problem with what the environment gives, without it. What was expected is said if that is so with other values too.
fn without_value(problem: Problem, always: &[Problem]) -> Problem {
    let expected =
        |problem: &Problem| problem.message.rsplit_once(", expected ").map(|(_, expected)| expected.to_owned());
    let is_of = |other: &&Problem| other.path == problem.path && expected(other) == expected(&problem);
    let message = match always.iter().find(is_of).and_then(expected) {
        Some(expected) => format!("does not fit with what the environment gives; expected {expected}"),
        None => "does not fit with what the environment gives".to_owned(),
    };
    Problem { message, hint: None, ..problem }
}
