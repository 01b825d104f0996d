//! Command `report`: results with published numbers.

use std::{fs, path::PathBuf};

use clap::ValueEnum;

use crate::{
    failure::{Failure, Outcome},
    terminal::Terminal,
    {results, summary},
};

/// Arguments of `tocsin-bench report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Result lines of a run
    #[arg(default_value = "bench/results/latest.ndjson")]
    results: PathBuf,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Output file; default is standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Table for a terminal
    Text,
    /// Self-contained HTML page with plots
    Html,
}

impl Args {
    /// Reads the results and prints the report.
    ///
    /// # Errors
    /// If the results cannot be read, or the file cannot be written.
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
