//! Reads and compiles the text of a definition. Problems never reveal values of environment variables.

use tocsin_model::{
    application::Application,
    definition::{self, PartialApplication, secrets},
    problem::Problem,
};

use crate::{
    compile::Compiled,
    run_sources,
    running::check_channels,
    variables::{VARIABLE_PLACES, has_variables},
};

/// The secret options of channels and sources, from their tables.
pub fn option_secrets() -> secrets::OptionSecrets {
    secrets::OptionSecrets { channels: tocsin_delivery::channel_secrets(), sources: tocsin_sources::source_secrets() }
}

/// Reads and compiles a definition: the first part of `check` and `apply`. Problems contain no values of variables.
///
/// # Errors
/// All problems found, with their lines where known.
pub fn compile_text(
    text: &str,
    version: u32,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Compiled, Vec<Problem>> {
    check_text(text, version, environment, &[])
}

/// Like [`compile_text`], for a text of which earlier stages `found` problems, such as files that cannot be read. They
/// are part of the problems, and no problem that follows from them is.
///
/// # Errors
/// As [`compile_text`].
pub fn check_text(
    text: &str,
    version: u32,
    environment: &dyn Fn(&str) -> Option<String>,
    found: &[Problem],
) -> Result<Compiled, Vec<Problem>> {
    let check = |application: &Application| check_options(application);
    let read = |environment: &dyn Fn(&str) -> Option<String>| compile(text, version, environment, &check, found);
    definition::read_redacted(environment, &VARIABLE_PLACES, read)
}

/// Like [`compile_text`], for callers who may not apply definitions. Variables are not resolved, and options of
/// channels and sources that contain a variable are not checked.
///
/// # Errors
/// As [`compile_text`].
pub fn compile_sealed(text: &str, version: u32) -> Result<Compiled, Vec<Problem>> {
    let check = |application: &Application| {
        let mut without_variables = application.clone();
        without_variables.channels.retain(|_, channel| !has_variables(&channel.options));
        without_variables.sources.retain(|_, source| !has_variables(&source.options));
        check_options(&without_variables)
    };
    compile(text, version, &|name| Some(definition::placeholder_value(name)), &check, &[])
}

/// Each stage is passed with the parts that had no problem in an earlier one, so that all problems are reported at
/// once.
fn compile(
    text: &str,
    version: u32,
    environment: &dyn Fn(&str) -> Option<String>,
    check: &dyn Fn(&Application) -> Result<(), Vec<Problem>>,
    found: &[Problem],
) -> Result<Compiled, Vec<Problem>> {
    let masks = secrets::masks(secrets::Language::Application, text, option_secrets());
    let PartialApplication { application, broken, mut problems } =
        definition::read_partially(text, environment, [found, &masks].concat());
    let Some(application) = application else { return Err(definition::in_order(problems)) };
    // Only newly applied definitions are rejected for name clashes; stored versions keep running.
    let mut later = definition::name_clashes(&application);
    let sound = broken.sound(application.clone());
    for checked in [check(&sound), tocsin_matching::resolver::check(&sound), tocsin_matching::schema::check(&sound)] {
        later.extend(checked.err().into_iter().flatten());
    }
    let compiled = Compiled::new(sound, version);
    match compiled {
        Ok(compiled) if problems.is_empty() && later.is_empty() => return Ok(compiled),
        compiled => later.extend(compiled.err().into_iter().flatten()),
    }
    broken.remove_explained(&application, &mut later);
    problems.extend(definition::locate(text, later));
    Err(definition::in_order(problems))
}

fn check_options(application: &Application) -> Result<(), Vec<Problem>> {
    let checked = [check_channels(application), run_sources::check(application)];
    let problems: Vec<Problem> = checked.into_iter().filter_map(Result::err).flatten().collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
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

    fn problems_of(text: &str, found: &[Problem]) -> Vec<String> {
        let problems = check_text(text, 1, &environment, found).err().unwrap_or_default();
        problems.into_iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect()
    }

    #[test]
    fn all_stages_report_their_problems_in_one_pass_without_follow_ons() {
        let text = "application: quakes
events:
  quake: { fields: { place: string, magnitude: numbr } }
  flood: { fields: { river: string, level: number } }
subscriptions:
  near: { fields: { place: string } }
  high: { fields: { river: string } }
notifications:
  shaken: { fields: { place: string }, content: { templates: { base: { text: '{{ place }}' } } } }
  risen: { fields: { river: string }, content: { templates: { base: { text: '{{ rivr }}' } } } }
rules:
  near: { on: quake, subscription: near, when: event.place == sub.place && event.magnitude > 5.0, notify: shaken }
  far: { on: quake, subscription: near, when: event.plce == sub.place, notify: shaken }
  high: { on: flood, subscription: high, when: event.rivr == sub.river, notify: risen }
channels:
  out: { protocol: http, options: { url: 'https://a.example', timeout: soon } }
  log: { protocol: file, options: { path: a.ndjson }, batch: 5 }
";
        let shown = problems_of(text, &[]);
        let found = |path: &str| shown.iter().filter(|line| line.starts_with(path)).count();
        for path in [
            "events.quake.fields.magnitude",
            "notifications.risen.content.templates.base.text",
            "rules.far.when",
            "rules.high.when",
            "channels.out.options.timeout",
            "channels.log.batch",
        ] {
            assert_eq!(found(path), 1, "{path}: {shown:#?}");
        }
        assert_eq!(shown.len(), 6, "{shown:#?}");
    }

    #[test]
    fn an_unknown_notification_class_hides_no_problem_of_the_predicate() {
        let rules = [
            ("event.place = = sub.place", "rules.near.when: `=` is not part of the language"),
            ("event.plce == sub.place", "rules.near.when: the event class has no field `plce`"),
        ];
        for (when, expected) in rules {
            let text = format!(
                "application: quakes
events: {{ quake: {{ fields: {{ place: string }} }} }}
subscriptions: {{ near: {{ fields: {{ place: string }} }} }}
notifications: {{ shaken: {{ fields: {{ place: string }}, content: {{ templates: {{ base: {{ text: x }} }} }} }} }}
rules:
  near: {{ on: quake, subscription: near, when: {when}, notify: shakn, with: {{ size: event.size }} }}
"
            );
            let unknown = "rules.near.notify: names the notification class `shakn`, which does not exist";
            assert_eq!(problems_of(&text, &[]), [expected, unknown]);
        }
    }

    #[test]
    fn a_misspelt_section_is_reported_once() {
        let text = "application: quakes
evnts: { quake: { fields: { place: string } } }
subscriptions: { near: { fields: { place: string } } }
notifications: { shaken: { fields: { place: string }, content: { templates: { base: { text: '{{ place }}' } } } } }
rules: { near: { on: quake, subscription: near, when: event.place == sub.place, notify: shaken } }
";
        assert_eq!(problems_of(text, &[]), ["evnts: is not known here"]);
    }

    #[test]
    fn a_syntax_error_in_a_section_hides_no_problem_of_the_others() {
        let text = "application: quakes
events:
  quake: { fields: { place: string }
  flood: { fields: { river: string } }
subscriptions: { near: { fields: { place: string } } }
notifications: { shaken: { content: { templates: { base: { text: '{{ plce }}' } } } } }
rules: { near: { on: quake, subscription: near, when: event.plce == sub.place, notify: shaken } }
channels: { out: { protocol: http, options: { url: 'https://a.example', timeout: soon } } }
";
        let problems = check_text(text, 1, &environment, &[]).err().expect("problems");
        let shown: Vec<String> =
            problems.iter().map(|problem| format!("{:?} {}", problem.line, problem.path)).collect();
        let found = |path: &str| problems.iter().filter(|problem| problem.path == path).count();
        assert_eq!(problems.iter().filter(|problem| problem.code.word() == "invalid_syntax").count(), 1, "{shown:#?}");
        assert_eq!(found("channels.out.options.timeout"), 1, "{shown:#?}");
        assert_eq!(found("notifications.shaken.content.templates.base.text"), 1, "{shown:#?}");
        assert_eq!(problems.len(), 3, "the rules follow from the section that is not YAML: {shown:#?}");
        let timeout = problems.iter().find(|problem| problem.path.starts_with("channels")).expect("found");
        assert_eq!(timeout.line, Some(8), "{shown:#?}");
    }

    #[test]
    fn a_file_that_cannot_be_read_hides_no_other_problem() {
        let text = "application: quakes
events: { quake: { fields: { place: string } } }
subscriptions: { near: { fields: { place: string } } }
notifications:
  shaken:
    fields: { place: string }
    content: { templates: { base: { html: '', text: '{{ plce }}' } } }
rules: { near: { on: quake, subscription: near, when: event.plce == sub.place, notify: shaken } }
";
        let path = "notifications.shaken.content.templates.base.html.file";
        let unreadable = Problem::new(tocsin_model::problem::Code::Unreadable, path, "`a.html` cannot be read");
        let shown = problems_of(text, &[unreadable]);
        let paths: Vec<&str> = shown.iter().filter_map(|line| line.split_once(": ")).map(|(path, _)| path).collect();
        let mut sorted = paths.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [path, "notifications.shaken.content.templates.base.text", "rules.near.when"], "{shown:#?}");
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
