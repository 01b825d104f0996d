//! The text of a definition becomes an application that is compiled. Nobody learns from what is wrong with it what the
//! variables of the environment hold.

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
    let judge = |application: &Application| check_options(application);
    let read = |environment: &dyn Fn(&str) -> Option<String>| compile(text, version, environment, &judge);
    definition::read_without_saying(environment, &["channels.", "sources."], read)
}

/// As [`compile_text`], for somebody who may not apply definitions: variables stand for themselves, and options of channels
/// and sources that take something from one are not judged.
///
/// # Errors
/// As there.
pub fn compile_sealed(text: &str, version: u32) -> Result<Compiled, Vec<Problem>> {
    compile(text, version, &|name| Some(definition::stand_in(name)), &|application| {
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
    // Only what is applied is refused for its names: a stored version runs on as it did.
    let clashes = definition::name_clashes(&application);
    if !clashes.is_empty() {
        return Err(definition::locate(text, clashes));
    }
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

/// Whether options hold a variable that stands for itself.
fn takes_something(options: &Map<String, Value>) -> bool {
    serde_json::to_string(options).is_ok_and(|text| text.contains("${"))
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
