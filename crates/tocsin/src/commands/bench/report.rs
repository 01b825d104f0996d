//! Shows results beside what papers published.

use std::{fs, path::PathBuf};

use clap::ValueEnum;

use crate::{
    bench::{results, summary},
    failure::{Failure, Outcome},
    terminal::Terminal,
};

/// Arguments of `tocsin bench report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The lines of a run
    #[arg(default_value = "bench/results/latest.ndjson")]
    results: PathBuf,
    /// How it is written
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Writes it to this file instead of printing it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table for a terminal
    Text,
    /// A page with plots that needs nothing else
    Html,
}

impl Args {
    /// Reads the lines and shows them.
    ///
    /// # Errors
    /// The lines cannot be read, or the file not written.
    pub fn run(self, terminal: &Terminal) -> Outcome {
        let results = results::read(&self.results)?;
        let written = match (self.format, &self.out) {
            (Format::Text, None) => return summary::print(terminal, &results),
            (Format::Text, Some(_)) => {
                let (into, captured) = Terminal::captured();
                summary::print(&into, &results)?;
                captured.text()
            }
            (Format::Html, _) => summary::results_page(&results),
        };
        let Some(file) = &self.out else { return Ok(terminal.line(written.trim_end())?) };
        fs::write(file, written).map_err(|error| Failure::file("write", file, &error))?;
        Ok(terminal.line(file.display())?)
    }
}
