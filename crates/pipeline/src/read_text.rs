//! Reads and compiles the text of a definition. Problems never reveal values of environment variables.

use serde_json::{Map, Value};
use tocsin_model::{application::Application, definition, problem::Problem};

use crate::{compile::Compiled, run_sources, running::check_channels};

/// Reads and compiles a definition: the first part of `check` and `apply`. Problems contain no values of variables.
///
/// # Errors
/// All problems found, with their lines where known.
pub fn compile_text(
    text: &str,
    version: u32,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Compiled, Vec<Problem>> {
    let judge = |application: &Application| check_options(application);
    let read = |environment: &dyn Fn(&str) -> Option<String>| compile(text, version, environment, &judge);
    definition::read_without_saying(environment, &["channels.", "sources."], read)
}

/// Like [`compile_text`], for callers who may not apply definitions. Variables are not resolved, and options of
/// channels and sources that contain a variable are not checked.
///
/// # Errors
/// As [`compile_text`].
pub fn compile_sealed(text: &str, version: u32) -> Result<Compiled, Vec<Problem>> {
    compile(text, version, &|name| Some(definition::stand_in(name)), &|application| {
        let mut judged = application.clone();
        judged.channels.retain(|_, channel| !has_variables(&channel.options));
        judged.sources.retain(|_, source| !has_variables(&source.options));
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
    // Only newly applied definitions are rejected for name clashes; stored versions keep running.
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

/// Whether options contain an unresolved variable.
fn has_variables(options: &Map<String, Value>) -> bool {
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
    fn problems_reveal_no_values_of_variables() {
        check(
            "{ protocol: http, options: { url: 'https://a.example', timeout: '${SECRET}' } }",
            "channels.out.options.timeout: does not fit with what the environment gives",
        );
        check(
            "{ protocol: smtp, options: { host: h, from: a@b.example, port: '${PORT}', tls: '${SECRET}' } }",
            "channels.out.options.port: does not fit with what the environment gives; expected u16\n\
             channels.out.options.tls: does not fit with what the environment gives; expected one of `off`, `if_offered`, `required`, `implicit`",
        );
        // A problem that does not depend on the value is reported as usual.
        check(
            "{ protocol: file, options: { path: '${SECRET}', rotate_bytes: 1 } }",
            "channels.out.options.rotate_bytes: a file is at least 4096 bytes long before it is renamed",
        );
        check("{ protocol: http, options: { url: 'https://a.example', headers: { X-Key: '${SECRET}' } } }", "");
    }

    #[test]
    fn options_without_variables_are_always_checked() {
        let text = definition("{ protocol: http, options: { url: 'https://a.example', timeout: soon } }");
        for compiled in [compile_text(&text, 1, &environment), compile_sealed(&text, 1)] {
            let problems = compiled.err().expect("problems");
            assert!(problems[0].message.starts_with("`soon` is not a time"), "{problems:?}");
        }
    }
}
