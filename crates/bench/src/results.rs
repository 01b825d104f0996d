//! Reader for result lines of earlier runs.

use std::{collections::BTreeMap, fs, path::Path};

use serde::Deserialize;
use tocsin_model::problem::Problem;

use super::{
    figure::{Counts, Prediction},
    run::Run,
};
use crate::{
    failure::{Failure, Outcome},
    problems::compiler_format,
};

/// Maximum size of a results file in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Figure of an earlier run.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct FigureResult {
    /// Name of the figure.
    pub name: String,
    /// Unit of the numbers.
    pub unit: String,
    /// Median.
    pub value: f64,
    /// Smallest sample.
    pub low: f64,
    /// Largest sample.
    pub high: f64,
    /// Number of samples.
    #[serde(default)]
    pub repeats: usize,
    /// Peer that did the same work.
    pub peer: Option<String>,
    /// Median of the peer.
    pub peer_value: Option<f64>,
    /// `value` divided by `peer_value`.
    pub ratio: Option<f64>,
    /// Conditions of the measurement.
    #[serde(default)]
    pub conditions: String,
    /// All samples, if recorded.
    #[serde(default)]
    pub samples: Vec<f64>,
    /// All samples of the peer, if recorded.
    #[serde(default)]
    pub peer_samples: Vec<f64>,
    /// Predictions with their measured values.
    #[serde(default)]
    pub predictions: Vec<Prediction>,
    /// Server cost per item; missing in older lines.
    #[serde(default)]
    pub counts: Option<Counts>,
    /// Build, machine and time of the run; missing in older lines.
    pub run: Option<Run>,
}

impl FigureResult {
    /// Whether this is a smoke test, not a quotable figure.
    pub fn is_quick(&self) -> bool {
        self.conditions.contains("quick: nothing to quote")
    }

    /// Date and commit of the measurement.
    pub fn origin(&self) -> String {
        match &self.run {
            None => "not recorded".to_owned(),
            Some(run) => {
                let commit = run.commit.as_deref().unwrap_or("commit not recorded");
                format!("{}, {commit}", run.at.get(..10).unwrap_or(&run.at))
            }
        }
    }

    /// All samples, or low, value and high if they were not recorded.
    pub fn runs(&self) -> Vec<f64> {
        match (self.samples.as_slice(), self.repeats) {
            ([], 0 | 1) => vec![self.value],
            ([], 2) => vec![self.low, self.high],
            ([], _) => vec![self.low, self.value, self.high],
            (samples, _) => samples.to_vec(),
        }
    }
}

/// Figures of a file, by name.
pub type Results = BTreeMap<String, FigureResult>;

/// Commit of the newest line that has one.
pub fn newest_commit(results: &Results) -> Option<&str> {
    let runs = results.values().filter_map(|measured| measured.run.as_ref());
    runs.filter(|run| run.commit.is_some()).max_by(|one, other| one.at.cmp(&other.at))?.commit.as_deref()
}

/// Number of lines without a commit or of another commit than the newest.
pub fn older_lines(results: &Results) -> usize {
    let newest = newest_commit(results);
    let commit = |measured: &FigureResult| measured.run.as_ref().and_then(|run| run.commit.clone());
    results.values().filter(|measured| newest.is_none() || commit(measured).as_deref() != newest).count()
}

/// Reads a results file.
///
/// # Errors
/// If it cannot be read, or a line is invalid; the error lists every invalid line.
pub fn read(file: &Path) -> Outcome<Results> {
    Ok(read_all(file)?.into_iter().map(|measured| (measured.name.clone(), measured)).collect())
}

/// Reads all lines of a results file, in order.
///
/// # Errors
/// As [`read`].
pub fn read_all(file: &Path) -> Outcome<Vec<FigureResult>> {
    let length = fs::metadata(file).map_err(|error| Failure::file("read", file, &error))?.len();
    if length > FILE_BYTES_MAX {
        return Err(Failure::failed(format!(
            "{} is too long: {length} bytes of at most {FILE_BYTES_MAX}",
            file.display()
        )));
    }
    let text = fs::read_to_string(file).map_err(|error| Failure::file("read", file, &error))?;
    parse(&text).map_err(|problems| {
        let failure = Failure::failed(format!("{} contains invalid result lines", file.display()));
        problems.iter().take(20).fold(failure, |failure, problem| failure.detail(compiler_format(file, problem)))
    })
}

fn parse(text: &str) -> Result<Vec<FigureResult>, Vec<Problem>> {
    let (mut results, mut problems) = (Vec::new(), Vec::new());
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match serde_json::from_str::<FigureResult>(line) {
            Ok(measured) => results.push(measured),
            Err(error) => {
                let problem = Problem::syntax("json", "", format!("invalid result line: {error}"));
                let hint = "each line must be a figure as written by `tocsin bench --out`";
                problems.push(problem.hint(hint).position(number as u32 + 1, error.column() as u32));
            }
        }
    }
    if problems.is_empty() { Ok(results) } else { Err(problems) }
}

/// Result line of a figure whose peer has the value 100, for tests.
#[cfg(test)]
pub(crate) fn line_of(name: &str, value: f64, conditions: &str) -> (String, FigureResult) {
    let line = serde_json::json!({
        "name": name, "unit": "x/s", "value": value, "low": value, "high": value, "conditions": conditions,
        "peer": "another", "peer_value": 100.0, "ratio": value / 100.0,
    });
    (name.to_owned(), serde_json::from_value(line).expect("a result"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_this_and_older_versions_are_read() {
        let text = "{\"name\":\"a\",\"unit\":\"ms\",\"value\":2,\"low\":1,\"high\":3,\"repeats\":3,\"conditions\":\"\"}\n\n\
            {\"name\":\"b\",\"unit\":\"rows/s\",\"value\":2,\"low\":1,\"high\":3,\"repeats\":3,\"conditions\":\"x, quick: nothing to quote\",\
            \"samples\":[1,2,2,3],\"run\":{\"version\":\"1\",\"machine\":\"m\",\"settings\":\"s\",\"at\":\"t\"}}\n";
        let results = parse(text).expect("results");
        assert_eq!((results[0].runs(), results[1].runs()), (vec![1.0, 2.0, 3.0], vec![1.0, 2.0, 2.0, 3.0]));
        assert!(results[1].is_quick() && !results[0].is_quick());
        let problems = parse("{\"name\":\"a\"}\n").expect_err("no value");
        assert!(problems[0].to_string().starts_with("1:"), "{}", problems[0]);
    }

    #[test]
    fn b40_lines_of_other_commits_and_of_none_are_older() {
        let line = |name: &str, run: &str| {
            format!("{{\"name\":\"{name}\",\"unit\":\"ms\",\"value\":2,\"low\":1,\"high\":3{run}}}\n")
        };
        let run = |commit: &str, at: &str| {
            format!(
                ",\"run\":{{\"version\":\"1\",{commit}\"machine\":\"m\",\"settings\":\"s\",\"at\":\"{at}T00:00:00Z\"}}"
            )
        };
        let text = [
            line("a", &run("\"commit\":\"one\",", "2026-11-01")),
            line("b", &run("\"commit\":\"two\",", "2026-11-02")),
            line("c", &run("", "2026-11-03")),
            line("d", ""),
        ];
        let results: Results =
            parse(&text.concat()).expect("results").into_iter().map(|one| (one.name.clone(), one)).collect();
        assert_eq!((newest_commit(&results), older_lines(&results)), (Some("two"), 3));
        let origins: Vec<String> = results.values().map(FigureResult::origin).collect();
        assert_eq!(origins, ["2026-11-01, one", "2026-11-02, two", "2026-11-03, commit not recorded", "not recorded"]);
    }
}
