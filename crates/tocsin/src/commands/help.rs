//! `help`, `version`, `completions` and `man`: information about the command line itself.

use std::path::PathBuf;

use clap::Command;
use clap_complete::Shell;

use crate::{
    cli,
    failure::{Failure, Outcome},
    terminal::Terminal,
};

/// Arguments of `tocsin help`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Command, such as `publish` or `sync devices`
    command: Vec<String>,
}

impl Args {
    /// Prints what `--help` prints.
    ///
    /// # Errors
    /// No command has this name, or the output cannot be written.
    pub fn run(self, terminal: &Terminal) -> Outcome {
        let help = find(&self.command)?.render_help();
        let text = if terminal.is_coloured() { help.ansi().to_string() } else { help.to_string() };
        Ok(terminal.bytes(text.as_bytes())?)
    }
}

/// Arguments of `tocsin version`.
#[derive(Debug, clap::Args)]
pub struct Version {}

impl Version {
    /// Prints name and version.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn run(self, terminal: &Terminal) -> Outcome {
        Ok(terminal.line(concat!("tocsin ", env!("CARGO_PKG_VERSION")))?)
    }
}

/// Arguments of `tocsin completions`.
#[derive(Debug, clap::Args)]
pub struct Completions {
    /// Shell
    shell: Shell,
}

impl Completions {
    /// Prints the script.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn run(self, terminal: &Terminal) -> Outcome {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut cli::command(), "tocsin", &mut script);
        Ok(terminal.bytes(&script)?)
    }
}

/// Arguments of `tocsin man`.
#[derive(Debug, clap::Args)]
pub struct Man {
    /// Command, such as `publish` or `sync devices`
    command: Vec<String>,
    /// Write the pages of all commands to this folder instead
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    out: Option<PathBuf>,
}

impl Man {
    /// Prints the page in roff, or writes all pages to a folder.
    ///
    /// # Errors
    /// No command has this name, the folder cannot be written, or the output cannot be written.
    pub fn run(self, terminal: &Terminal) -> Outcome {
        let Some(folder) = &self.out else {
            let mut page = Vec::new();
            clap_mangen::Man::new(find(&self.command)?).render(&mut page)?;
            return Ok(terminal.bytes(&page)?);
        };
        std::fs::create_dir_all(folder).map_err(|error| Failure::file("create", folder, &error))?;
        clap_mangen::generate_to(built(), folder).map_err(|error| Failure::file("write pages to", folder, &error))?;
        Ok(terminal.line(format_args!("manual pages written to {}", folder.display()))?)
    }
}

/// The command line with the full name of each subcommand, as usage lines need it.
fn built() -> Command {
    let mut root = cli::command();
    root.build();
    root
}

/// The command at a path of names; the root for an empty path.
fn find(path: &[String]) -> Outcome<Command> {
    let root = built();
    let mut at = &root;
    // `tocsin help "sync devices"` is read like two names.
    for name in path.iter().flat_map(|part| part.split_whitespace()) {
        at = at.find_subcommand(name).ok_or_else(|| {
            Failure::usage(format!("`{}` has no command `{name}`; `tocsin help` lists the commands", at.get_name()))
        })?;
    }
    Ok(at.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn help_of(path: &[&str]) -> Outcome<String> {
        let (terminal, captured) = Terminal::captured();
        Args { command: path.iter().map(|&name| name.to_owned()).collect() }.run(&terminal)?;
        Ok(captured.text())
    }

    #[test]
    fn help_names_each_command_in_its_group() {
        let text = help_of(&[]).expect("the root has a help");
        assert!(text.contains("\nRun:\n  serve          Run the server\n"), "{text}");
        assert!(text.contains("\nAdminister:\n"), "{text}");
    }

    #[test]
    fn help_finds_nested_commands_and_refuses_unknown_ones() {
        for path in [&["sync", "devices"][..], &["sync devices"]] {
            let text = help_of(path).expect("the command exists");
            assert!(text.contains("Usage: tocsin sync devices"), "{text}");
        }
        let failure = help_of(&["sync", "nonsense"]).expect_err("there is no such command");
        assert_eq!(failure.to_string(), "`sync` has no command `nonsense`; `tocsin help` lists the commands");
    }

    #[test]
    fn completions_and_manual_pages_name_the_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let (terminal, captured) = Terminal::captured();
            Completions { shell }.run(&terminal).expect("a script");
            assert!(captured.text().contains("publish"), "{shell}");
        }
        let (terminal, captured) = Terminal::captured();
        Man { command: vec!["publish".into()], out: None }.run(&terminal).expect("a page");
        assert!(captured.text().contains(".TH"), "{}", captured.text());
        let folder = tempfile::tempdir().expect("a folder");
        let (terminal, _) = Terminal::captured();
        Man { command: vec![], out: Some(folder.path().to_owned()) }.run(&terminal).expect("pages");
        assert!(folder.path().join("tocsin-publish.1").exists());
    }
}
