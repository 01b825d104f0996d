//! Report of a run: result lines as a file and as a table.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    figure::{Line, Prediction},
    history,
    run::Run,
};
use crate::{
    failure::{Failure, Outcome},
    terminal::Terminal,
};

/// Result lines of a run.
#[derive(Debug, Default)]
pub struct Report {
    file: Option<PathBuf>,
    /// Lines of earlier runs, by name, that this run keeps.
    kept: Vec<(String, String)>,
    lines: Vec<Line>,
}

impl Report {
    /// Creates a report, optionally with a results file. A run of `some` figures keeps the file's other lines.
    ///
    /// # Errors
    /// If the file exists but cannot be read.
    pub fn new(file: Option<PathBuf>, some: bool) -> Outcome<Self> {
        let kept = match file.as_deref().filter(|file| some && file.exists()) {
            Some(file) => named_lines(&fs::read_to_string(file).map_err(|error| Failure::file("read", file, &error))?),
            None => Vec::new(),
        };
        Ok(Report { file, kept, lines: Vec::new() })
    }

    /// Requested repeats of the existing line with this name; `None` without a line of the same build, machine and
    /// settings.
    pub fn repeats(&self, name: &str, run: &Run) -> Option<usize> {
        let of_same_run = |line: &str| {
            let line: Value = serde_json::from_str(line).ok()?;
            let recorded: Run = serde_json::from_value(line["run"].clone()).ok()?;
            let repeats = recorded.repeats.or_else(|| usize::try_from(line["repeats"].as_u64()?).ok());
            let same = Run { at: run.at.clone(), repeats: run.repeats, ..recorded } == *run;
            repeats.filter(|_| same)
        };
        self.kept.iter().filter(|(kept, _)| kept == name).find_map(|(_, line)| of_same_run(line))
    }

    /// Adds a result. On return the file has the line combined over all runs of its commit, so that an interrupted run
    /// loses nothing.
    ///
    /// # Errors
    /// If the file or its history cannot be written.
    pub fn add(&mut self, line: Line) -> Outcome {
        self.kept.retain(|(name, _)| *name != line.name);
        let Some(file) = &self.file else {
            self.lines.push(line);
            return Ok(());
        };
        let failed = |error: std::io::Error| Failure::file("write", file, &error);
        if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        self.lines.push(history::record(file, line)?);
        let new = file.with_extension("new");
        fs::write(&new, self.text()).map_err(failed)?;
        fs::rename(&new, file).map_err(failed)
    }

    /// All lines, sorted by name.
    pub fn text(&self) -> String {
        let new = self.lines.iter().map(|line| {
            let text = serde_json::to_string(line).expect("a line is plain data");
            (line.name.clone(), text)
        });
        let mut lines: Vec<(String, String)> = self.kept.iter().cloned().chain(new).collect();
        lines.sort();
        lines.into_iter().map(|(_, line)| line + "\n").collect()
    }

    /// Prints the results of this run, without the conditions, which are long.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn print(&self, terminal: &Terminal) -> Outcome {
        let shown = |value: &Option<Value>| value.as_ref().map(Value::to_string).unwrap_or_default();
        let rows: Vec<Vec<String>> = self
            .lines
            .iter()
            .map(|line| {
                vec![
                    line.name.clone(),
                    line.value.to_string(),
                    line.unit.clone(),
                    format!("{} .. {}", line.low, line.high),
                    shown(&line.peer_value),
                    line.peer.clone().unwrap_or_default(),
                    shown(&line.ratio),
                ]
            })
            .collect();
        terminal.table(&["figure", "median", "unit", "extremes", "peer's", "peer", "ratio"], &rows)?;
        let predictions: Vec<&Prediction> = self.lines.iter().flat_map(|line| &line.predictions).collect();
        print_predictions(terminal, &predictions)
    }

    /// Path of the results file.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }
}

/// Prints the predictions with their measured values, if there are any.
///
/// # Errors
/// If the output cannot be written.
pub fn print_predictions(terminal: &Terminal, predictions: &[&Prediction]) -> Outcome {
    if predictions.is_empty() {
        return Ok(());
    }
    let rows: Vec<Vec<String>> = predictions
        .iter()
        .map(|predicted| {
            vec![
                predicted.what.clone(),
                predicted.predicted.to_string(),
                predicted.measured.to_string(),
                predicted.unit.clone(),
                format!("{:+.1} %", predicted.error() * 100.0),
            ]
        })
        .collect();
    terminal.line("")?;
    terminal.table(&["of what", "predicted", "measured", "unit", "error"], &rows)?;
    Ok(())
}

/// Named lines of a results file.
fn named_lines(text: &str) -> Vec<(String, String)> {
    let named = |line: &str| {
        let value: Value = serde_json::from_str(line).ok()?;
        Some((value["name"].as_str()?.to_owned(), line.to_owned()))
    };
    text.lines().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::figure::Figure, *};

    fn line(name: &str, value: f64) -> Line {
        Figure::new("rows/s", [value].into_iter().collect()).line(name)
    }

    fn names(text: &str) -> Vec<(String, i64)> {
        let parsed = |line| serde_json::from_str::<Value>(line).expect("each line is JSON");
        text.lines()
            .map(parsed)
            .map(|line| (line["name"].to_string(), line["value"].as_i64().expect("a number")))
            .collect()
    }

    #[test]
    fn a_run_of_some_figures_keeps_the_lines_of_the_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("results/latest.ndjson");
        let run = |some, lines: &[(&str, f64)]| {
            let mut report = Report::new(Some(file.clone()), some).expect("readable");
            for (name, value) in lines {
                report.add(line(name, *value)).expect("writable");
            }
            names(&fs::read_to_string(&file).expect("written"))
        };
        let expected = |lines: &[(&str, i64)]| {
            lines.iter().map(|(name, value)| (format!("\"{name}\""), *value)).collect::<Vec<_>>()
        };
        assert_eq!(run(false, &[("b", 2.0), ("a", 1.0)]), expected(&[("a", 1), ("b", 2)]));
        assert_eq!(run(true, &[("a", 7.0), ("c", 3.0)]), expected(&[("a", 7), ("b", 2), ("c", 3)]));
        assert_eq!(run(false, &[("c", 4.0)]), expected(&[("c", 4)]));
    }

    #[test]
    fn the_table_shows_the_results() {
        let (terminal, captured) = Terminal::captured();
        let mut report = Report::default();
        report.add(line("import.subscribers", 120_000.0)).expect("no file is written");
        report.print(&terminal).expect("writing to memory succeeds");
        assert!(
            captured.text().contains("import.subscribers  120000  rows/s  120000 .. 120000"),
            "{}",
            captured.text()
        );
    }

    #[test]
    fn figures_of_another_build_are_measured_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("latest.ndjson");
        let run = Run { repeats: Some(5), ..Run::now("full".to_owned()) };
        let mut report = Report::new(Some(file.clone()), true).expect("readable");
        report.add(Line { run: Some(run.clone()), ..line("a", 1.0) }).expect("writable");
        let of_old = Run { repeats: None, ..run.clone() };
        report.add(Line { run: Some(of_old), repeats: 3, ..line("old", 1.0) }).expect("writable");
        report.add(line("oldest", 1.0)).expect("writable");
        let report = Report::new(Some(file), true).expect("readable");
        let later = Run { at: "later".to_owned(), repeats: Some(7), ..run };
        let check = |name: &str, run: Run, expected| assert_eq!(report.repeats(name, &run), expected, "{name}");
        check("a", later.clone(), Some(5));
        check("old", later.clone(), Some(3));
        check("oldest", later.clone(), None);
        check("b", later.clone(), None);
        check("a", Run { build: "another".to_owned(), ..later.clone() }, None);
        check("a", Run { settings: "quick".to_owned(), ..later }, None);
    }
}
