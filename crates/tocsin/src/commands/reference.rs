//! Command `reference`: prints the reference pages generated from the code.

use std::fmt::Write;

use clap::{CommandFactory, ValueEnum};

use crate::{cli::Cli, configuration, failure::Outcome, metrics, terminal::Terminal};

/// Arguments of `tocsin reference`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Page to print
    page: Page,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Page {
    Commands,
    Configuration,
    Metrics,
}

impl Args {
    /// Prints the page.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn run(self, terminal: &Terminal) -> Outcome {
        let page = match self.page {
            Page::Commands => commands_page(),
            Page::Configuration => configuration::reference_page(),
            Page::Metrics => metrics::reference_page(),
        };
        Ok(terminal.bytes(page.as_bytes())?)
    }
}

/// Page `docs/reference/commands.md`.
pub fn commands_page() -> String {
    let mut root = Cli::command();
    root.build();
    let mut page = format!(
        "# Commands\n\n<!-- Generated from crates/tocsin/src/commands; `UPDATE=1 cargo test -p tocsin` regenerates it. -->\n\n{}\n\n\
         Exit codes: 0 success, 1 failure, 2 invalid usage.\n\n## Options of all commands\n\n",
        root.get_long_about().map(ToString::to_string).unwrap_or_default()
    );
    options(&root, true, &mut page);
    for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
        describe(command, "tocsin", 2, &mut page);
    }
    page
}

fn describe(command: &clap::Command, parent: &str, depth: usize, page: &mut String) {
    let name = format!("{parent} {}", command.get_name());
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let _ = write!(page, "\n{} {name}\n\n{}.\n\n", "#".repeat(depth), about.trim_end_matches('.'));
    let usage = command.clone().render_usage().to_string();
    let _ = writeln!(page, "```\n{}\n```\n", usage.trim_start_matches("Usage: ").trim());
    options(command, false, page);
    if let Some(text) = command.get_after_help() {
        let text = text.to_string();
        let (note, examples) = text.split_once("Example").unwrap_or((&text, ""));
        if !note.trim().is_empty() {
            let _ = writeln!(page, "\n{}", note.trim().replace('\n', " "));
        }
        if let Some((_, lines)) = examples.split_once('\n') {
            let lines: Vec<&str> = lines.lines().map(|line| line.strip_prefix("  ").unwrap_or(line)).collect();
            let _ = writeln!(page, "\n```\n{}\n```", lines.join("\n"));
        }
    }
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        describe(sub, &name, depth + 1, page);
    }
}

fn options(command: &clap::Command, global: bool, page: &mut String) {
    for arg in command.get_arguments().filter(|arg| arg.is_global_set() == global && !arg.is_hide_set()) {
        if matches!(arg.get_id().as_str(), "help" | "version") {
            continue;
        }
        let values =
            arg.get_value_names().unwrap_or_default().iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ");
        let shown = match (arg.get_long(), arg.get_action().takes_values()) {
            (Some(long), true) => format!("--{long} {values}"),
            (Some(long), false) => format!("--{long}"),
            (None, _) => values,
        };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let _ = write!(page, "- `{shown}`: {help}");
        let choices: Vec<String> =
            arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
        if !choices.is_empty() && arg.get_action().takes_values() {
            let _ = write!(page, "; one of {}", choices.join(", "));
        }
        let defaults: Vec<String> =
            arg.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
        if !defaults.is_empty() && arg.get_action().takes_values() {
            let _ = write!(page, "; default {}", defaults.join(", "));
        }
        if let Some(variable) = arg.get_env() {
            let _ = write!(page, "; variable `{}`", variable.to_string_lossy());
        }
        page.push('\n');
    }
}
