//! Command `compare`: significance test between two runs.

use std::path::PathBuf;

use crate::{
    failure::{Failure, Outcome},
    terminal::{Colour, Terminal},
    {
        compare::{Comparison, Verdict, compare},
        results,
    },
};

/// Arguments of `tocsin-bench compare`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Result lines of the first run
    before: PathBuf,
    /// Result lines of the second run
    after: PathBuf,
    /// Fail if a figure is significantly worse
    #[arg(long)]
    strict: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Compares the figures that both runs have.
    ///
    /// # Errors
    /// If a file cannot be read, the runs have no common figure, or with `strict` a figure is worse.
    pub fn run(self, terminal: &Terminal) -> Outcome {
        let found = compare(&results::read(&self.before)?, &results::read(&self.after)?);
        if found.is_empty() {
            return Err(Failure::failed("the two runs have no common figure"));
        }
        if self.json {
            terminal.json(&found)?;
        } else {
            print(terminal, &found)?;
        }
        let worse: Vec<&str> =
            found.iter().filter(|found| found.verdict == Verdict::Worse).map(|found| found.name.as_str()).collect();
        if self.strict && !worse.is_empty() {
            return Err(Failure::failed(format!("worse: {}", worse.join(", "))));
        }
        Ok(())
    }
}

fn print(terminal: &Terminal, found: &[Comparison]) -> Outcome {
    let row = |found: &Comparison| {
        vec![
            found.name.clone(),
            format!("{:.5}", found.before),
            format!("{:.5}", found.after),
            if found.compared == "ratio" { "times the peer".to_owned() } else { found.unit.clone() },
            format!("{:+.1} %", (found.change - 1.0) * 100.0),
            found.chance.map_or_else(|| "too few runs".to_owned(), |chance| format!("{chance:.3}")),
            found.verdict.word().to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    terminal.table(&["figure", "before", "after", "unit", "change", "p-value", "verdict"], &rows)?;
    let count = |wanted: &[Verdict]| found.iter().filter(|found| wanted.contains(&found.verdict)).count();
    let colour = if count(&[Verdict::Worse]) > 0 { Colour::Red } else { Colour::Green };
    let summary = format!(
        "{} better, {} worse, {} without a significant difference",
        count(&[Verdict::Better, Verdict::PerhapsBetter]),
        count(&[Verdict::Worse, Verdict::PerhapsWorse]),
        count(&[Verdict::Same])
    );
    Ok(terminal.line(terminal.paint(colour, summary))?)
}
