//! Command `config`: prints the effective configuration with the source of each value.

use serde_json::{Value, json};

use crate::{
    configuration::{self, ConfigurationArgs, Source},
    failure::Outcome,
    terminal::{Colour, Terminal},
};

/// Arguments of `tocsin config`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print only values that differ from the default
    #[arg(long)]
    changed: bool,
}

impl Args {
    /// Prints the configuration.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn run(self, terminal: &Terminal, configuration: &ConfigurationArgs) -> Outcome {
        let layered = configuration::load(configuration, &[])?;
        let rows = layered.shown().filter_map(|(key, value, source)| {
            (!self.changed || *source != Source::Default).then(|| (key.path.clone(), value, source.clone()))
        });
        if self.json {
            let all: serde_json::Map<String, Value> = rows
                .map(|(path, value, source)| (path, json!({"value": value, "source": source.to_string()})))
                .collect();
            return Ok(terminal.json(&all)?);
        }
        let rows: Vec<Vec<String>> = rows
            .map(|(path, value, source)| {
                let colour = if source == Source::Default { Colour::Dim } else { Colour::Green };
                vec![path, value.to_string(), terminal.paint(colour, source)]
            })
            .collect();
        terminal.table(&["key", "value", "source"], &rows)?;
        for warning in &layered.warnings {
            terminal.line(terminal.paint(Colour::Yellow, format_args!("warning: {warning}")))?;
        }
        Ok(())
    }
}
