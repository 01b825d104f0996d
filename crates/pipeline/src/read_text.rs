//! The text of a definition becomes an application that is compiled. Nobody learns from what is wrong with it what the
//! variables of the environment hold.

use std::cell::Cell;

use serde_json::{Map, Value};
use tocsin_model::{application::Application, definition, problem::Problem};

use crate::{compile::Compiled, run_sources, running::check_channels};

/// Reads and compiles a definition: what `check` and `apply` do first. Problems tell no values of variables.
///
/// # Errors
/// Every problem found, with its line where it can be told.
pub fn compile_text(
    text: &str,
    version: u32,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Compiled, Vec<Problem>> {
    let is_asked = Cell::new(false);
    let asked = |name: &str| {
        is_asked.set(true);
        environment(name)
    };
    let judge = |application: &Application| check_options(application);
    let problems = match compile(text, version, &asked, &judge) {
        Err(problems) if is_asked.get() => problems,
        compiled => return compiled,
    };
    // What is also wrong with other values tells nothing of these.
    let others = |name: &str| environment(name).map(|_| stand_in(name));
    let always = compile(text, version, &others, &judge).err().unwrap_or_default();
    let told = |problem| if always.contains(&problem) { problem } else { without_value(problem, &always) };
    Err(problems.into_iter().map(told).collect())
}

/// As [`compile_text`], for somebody who may not apply definitions: variables stand for themselves, and options of channels
/// and sources that take something from one are not judged.
///
/// # Errors
/// As there.
pub fn compile_sealed(text: &str, version: u32) -> Result<Compiled, Vec<Problem>> {
    compile(text, version, &|name| Some(stand_in(name)), &|application| {
        let mut judged = application.clone();
        judged.channels.retain(|_, channel| !takes_something(&channel.options));
        judged.sources.retain(|_, source| !takes_something(&source.options));
        check_options(&judged)
    })
}

fn compile(
    text: &str,
    version: u32,
    environment: &dyn Fn(&str) -> Option<String>,
    judge: &dyn Fn(&Application) -> Result<(), Vec<Problem>>,
) -> Result<Compiled, Vec<Problem>> {
    let application = definition::read(text, environment)?;
    let compiled = Compiled::new(application, version).and_then(|compiled| {
        judge(&compiled.application)?;
        tocsin_matching::resolver::check(&compiled.application)?;
        tocsin_matching::schema::check(&compiled.application)?;
        Ok(compiled)
    });
    compiled.map_err(|problems| definition::locate(text, problems))
}

fn check_options(application: &Application) -> Result<(), Vec<Problem>> {
    check_channels(application)?;
    run_sources::check(application)
}

/// What stands for the value of a variable.
fn stand_in(name: &str) -> String {
    format!("${{{name}}}")
}

/// Whether options hold a variable that stands for itself.
fn takes_something(options: &Map<String, Value>) -> bool {
    serde_json::to_string(options).is_ok_and(|text| text.contains("${"))
}

/// A problem with what the environment gives, without it. What was expected is said if that is so with other values too.
fn without_value(problem: Problem, always: &[Problem]) -> Problem {
    if !(problem.path.starts_with("channels.") || problem.path.starts_with("sources.")) {
        return problem;
    }
    let expected =
        |problem: &Problem| problem.message.rsplit_once(", expected ").map(|(_, expected)| expected.to_owned());
    let is_of = |other: &&Problem| other.path == problem.path && expected(other) == expected(&problem);
    let message = match always.iter().find(is_of).and_then(expected) {
        Some(expected) => format!("does not fit with what the environment gives; expected {expected}"),
        None => "does not fit with what the environment gives".to_owned(),
    };
    Problem { message, hint: None, ..problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(options: &str) -> String {
        format!(
            "application: quakes\nevents: {{ quake: {{ fields: {{ place: string }} }} }}\n\
             channels: {{ out: {options} }}\n"
        )
    }

    fn environment(name: &str) -> Option<String> {
        match name {
            "SECRET" => Some("hunter2, expected by nobody".to_owned()),
            "PORT" => Some("99999".to_owned()),
            _ => None,
        }
    }

    fn check(options: &str, expected: &str) {
        let text = definition(options);
        let problems = compile_text(&text, 1, &environment).err().unwrap_or_default();
        let shown: Vec<String> =
            problems.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect();
        let shown = shown.join("\n");
        assert!(!shown.contains("hunter2") && !shown.contains("99999"), "{shown}");
        assert_eq!(shown, expected);
        let sealed = compile_sealed(&text, 1).err().unwrap_or_default();
        assert!(sealed.is_empty(), "{sealed:?}");
    }

    #[test]
    fn no_problem_tells_what_a_variable_holds() {
        check(
            "{ protocol: http, options: { url: 'https://a.example', timeout: '${SECRET}' } }",
            "channels.out.options.timeout: does not fit with what the environment gives",
        );
        check(
            "{ protocol: smtp, options: { host: h, from: a@b.example, port: '${PORT}', tls: '${SECRET}' } }",
            "channels.out.options.port: does not fit with what the environment gives; expected u16\n\
             channels.out.options.tls: does not fit with what the environment gives; expected one of `off`, `if_offered`, `required`, `implicit`",
        );
        // What is wrong whatever the value is, is told as ever.
        check(
            "{ protocol: file, options: { path: '${SECRET}', rotate_bytes: 1 } }",
            "channels.out.options.rotate_bytes: a file is at least 4096 bytes long before it is renamed",
        );
        check("{ protocol: http, options: { url: 'https://a.example', headers: { X-Key: '${SECRET}' } } }", "");
    }

    #[test]
    fn what_takes_nothing_from_the_environment_is_judged_in_any_case() {
        let text = definition("{ protocol: http, options: { url: 'https://a.example', timeout: soon } }");
        for compiled in [compile_text(&text, 1, &environment), compile_sealed(&text, 1)] {
            let problems = compiled.err().expect("problems");
            assert!(problems[0].message.starts_with("`soon` is not a time"), "{problems:?}");
        }
    }
}
