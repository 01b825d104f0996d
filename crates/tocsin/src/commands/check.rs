//! Command `check`: checks a definition without a server.

use std::path::{Path, PathBuf};

use serde_json::json;
use tocsin_model::definition;

use crate::{
    configuration::{self, ConfigurationArgs},
    failure::{Exit, Failure, Outcome},
    platform::{self, CheckedDefinition},
    problems::compiler_format,
    terminal::{Colour, Terminal},
};

/// Arguments of `tocsin check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Definition, a YAML file; relative template paths start at its folder
    file: PathBuf,
    /// Treat unset variables as empty instead of reporting them
    #[arg(long)]
    without_environment: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Prints every problem as `FILE:line:column: path: message; hint`, warnings, and the index use of each rule.
    ///
    /// # Errors
    /// If the definition is invalid.
    pub fn run(self, terminal: &Terminal, configuration: &ConfigurationArgs) -> Outcome {
        refuse_exchange(&self.file, &platform::read_definition_text(&self.file)?, "check")?;
        // An unreadable configuration permits nothing; `tocsin config` reports it.
        let configuration =
            configuration::load(configuration, &[]).map(|loaded| loaded.configuration).unwrap_or_default();
        let environment = |name: &str| std::env::var(name).ok().or_else(|| self.without_environment.then(String::new));
        let CheckedDefinition { problems, warnings, rules, name } =
            platform::examine(&self.file, &environment, &configuration)?;
        if self.json {
            terminal.json(&json!({"problems": problems, "warnings": warnings, "rules": rules}))?;
        } else {
            for problem in &problems {
                terminal.line(terminal.paint(Colour::Red, compiler_format(&self.file, problem)))?;
            }
            for warning in &warnings {
                terminal.line(
                    terminal.paint(Colour::Yellow, format_args!("{} (warning)", compiler_format(&self.file, warning))),
                )?;
            }
            for rule in &rules {
                terminal.line(rule)?;
            }
            if problems.is_empty() {
                let name = name.as_deref().unwrap_or("the application");
                terminal
                    .line(terminal.paint(Colour::Green, format_args!("{}: {name} is fine", self.file.display())))?;
            }
        }
        match problems.len() {
            0 => Ok(()),
            1 => Err(Failure::failed("1 problem")),
            more => Err(Failure {
                exit: Exit::Failed,
                message: format!("{more} problems"),
                details: Vec::new(),
                document: None,
            }),
        }
    }
}

/// Refuses the definition of an exchange, with the command for it.
///
/// # Errors
/// If the text defines an exchange.
pub(super) fn refuse_exchange(file: &Path, text: &str, action: &str) -> Outcome {
    if definition::named(text).is_some() || definition::named_exchange(text).is_none() {
        return Ok(());
    }
    Err(Failure::failed(format!("{} is an exchange definition; use `tocsin exchange {action}`", file.display())))
}

#[cfg(test)]
mod tests {
    use tocsin_model::problem::{Code, Problem};

    use super::*;
    use crate::configuration::Configuration;

    #[test]
    fn resources_that_the_configuration_does_not_permit_are_warnings() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("app.yaml");
        let definition = "application: drops
events: { drop: { fields: { token: string } } }
sources:
  mails:
    kind: mail
    events: [drop]
    options:
      listen: 0.0.0.0:25
      recipients: ['*']
      fields: { token: subject }
  files: { kind: directory, events: [drop], options: { folder: in } }
  rows: { kind: query, events: [drop], options: { database: 'sqlite:/nowhere/rows.db', query: 'SELECT id FROM rows WHERE id > :mark', mark: id } }
";
        std::fs::write(&file, definition).expect("written");
        let check = |configuration: &Configuration, expected: &[&str]| {
            let found = platform::examine(&file, &|_| None, configuration).expect("it can be read");
            assert!(found.problems.is_empty(), "{:?}", found.problems);
            let shown: Vec<String> = found.warnings.iter().map(|warning| compiler_format(&file, warning)).collect();
            let shown: Vec<&str> =
                shown.iter().filter_map(|line| line.split_once("app.yaml")).map(|(_, line)| line).collect();
            assert_eq!(shown, expected);
        };
        let mut configuration = Configuration::default();
        let rows =
            ":12:61: sources.rows.options.database: /nowhere is not there: No such file or directory (os error 2)";
        check(
            &configuration,
            &[
                ":8:15: sources.mails.options.listen: a source may not listen at 0.0.0.0:25; `sources.allow_listen` in the \
                 configuration can open it",
                rows,
            ],
        );
        configuration.sources.allow_listen = vec!["0.0.0.0:25".parse().expect("an address")];
        check(&configuration, &[rows]);
    }

    /// A check passed, and the apply of the same definition was refused.
    #[test]
    fn files_and_programs_of_channels_that_the_configuration_does_not_permit_are_warnings() {
        let folder = tempfile::tempdir().expect("a folder");
        let [file, authority] = ["app.yaml", "ca.pem"].map(|name| folder.path().join(name));
        std::fs::write(&authority, "").expect("written");
        let definition = format!(
            "application: drops
events: {{ drop: {{ fields: {{ token: string }} }} }}
channels:
  out: {{ protocol: http, options: {{ url: 'https://a.example', ca_file: {} }} }}
  log: {{ protocol: file, options: {{ path: /elsewhere/log }} }}
  run: {{ protocol: process, options: {{ command: [/bin/true] }} }}
",
            authority.display()
        );
        std::fs::write(&file, definition).expect("written");
        let paths = |configuration: &Configuration| {
            let found = platform::examine(&file, &|_| None, configuration).expect("it can be read");
            assert!(found.problems.is_empty(), "{:?}", found.problems);
            found.warnings.into_iter().map(|warning| warning.path).collect::<Vec<_>>()
        };
        let mut configuration = Configuration::default();
        let closed = ["channels.out.options.ca_file", "channels.log.options.path", "channels.run.options.command"];
        assert_eq!(paths(&configuration), closed);
        configuration.delivery.allow_files = vec![folder.path().to_owned()];
        assert_eq!(paths(&configuration), closed[1..]);
    }

    #[test]
    fn the_definition_of_an_exchange_is_refused_with_the_command_for_it() {
        let check = |text: &str| refuse_exchange(Path::new("shop.yaml"), text, "check");
        let refused = check("exchange: shop\nreceive: {}\n").expect_err("an exchange").to_string();
        assert_eq!(refused, "shop.yaml is an exchange definition; use `tocsin exchange check`");
        for other in ["application: doors\n", "application: doors\nexchange: shop\n", "events: {}\n", ": ["] {
            assert!(check(other).is_ok(), "{other}");
        }
    }

    #[test]
    fn problems_are_printed_in_compiler_format() {
        let file = Path::new("app.yaml");
        let problem = Problem::new(Code::UnknownName, "rules.near.when", "`event.mag` does not exist")
            .hint("did you mean `event.magnitude`?")
            .position(4, 9);
        assert_eq!(
            compiler_format(file, &problem),
            "app.yaml:4:9: rules.near.when: `event.mag` does not exist; did you mean `event.magnitude`?"
        );
        assert_eq!(compiler_format(file, &Problem::new(Code::Empty, "", "is empty")), "app.yaml: is empty");
    }
}
