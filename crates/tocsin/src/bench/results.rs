//! The lines of earlier runs, read back.

use std::{collections::BTreeMap, fs, path::Path};

use serde::{Deserialize, Serialize};
use tocsin_model::problem::Problem;

use super::figure::{Counts, Predicted};
use crate::{
    commands::check::located,
    failure::{Failure, Outcome},
};

/// Most bytes of a file of results.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Where and by what figures were measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The version of this binary.
    pub version: String,
    /// Its size and when it was made, as versions are the same for long; older lines have none.
    #[serde(default)]
    pub build: String,
    /// The last commit that changed the code, and whether there were changes beside it; `None` where the binary was not built
    /// from the checkout in which it runs. Older lines have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The processor, its cores, the memory and the system.
    pub machine: String,
    /// What was chosen: `full` or `quick`, and where the data lay.
    pub settings: String,
    /// How often each figure was to be measured; some have fewer samples by their nature, and older lines do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<usize>,
    /// When it began.
    pub at: String,
}

impl Run {
    /// Whether runs of both are runs of the same code, on the same machine, in the same way.
    pub fn is_repetition_of(&self, other: &Run) -> bool {
        let is_known = self.commit.as_ref().is_some_and(|commit| !commit.ends_with(WITH_CHANGES));
        is_known && self.commit == other.commit && self.machine == other.machine && self.settings == other.settings
    }

    /// This one.
    pub fn now(settings: String) -> Run {
        Run {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            build: build(),
            commit: commit(),
            machine: machine(),
            settings,
            repeats: None,
            at: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }
    }
}

fn build() -> String {
    let found = std::env::current_exe().and_then(fs::metadata);
    let told = found.and_then(|found| Ok((found.len(), jiff::Timestamp::try_from(found.modified()?))));
    match told {
        Ok((bytes, Ok(made))) => format!("{bytes} bytes, {}", made.strftime("%Y-%m-%dT%H:%M:%SZ")),
        _ => "unknown".to_owned(),
    }
}

/// The answer of `git` about the checkout in which this process runs.
fn commit() -> Option<String> {
    /// Files that a binary is built from.
    const CODE: [&str; 4] = ["crates", "Cargo.toml", "Cargo.lock", ".cargo"];
    let git = |arguments: &[&str]| {
        let output = std::process::Command::new("git").args(arguments).arg("--").args(CODE).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    if !Path::new("crates/tocsin/Cargo.toml").exists() {
        return None;
    }
    let found = git(&["log", "-1", "--format=%h %ct"])?;
    let (commit, at) = found.split_once(' ')?;
    let committed = std::time::UNIX_EPOCH + std::time::Duration::from_secs(at.parse().ok()?);
    let built = std::env::current_exe().and_then(fs::metadata).and_then(|found| found.modified()).ok()?;
    match (built < committed, git(&["status", "--porcelain"])?.is_empty()) {
        (true, _) => None,
        (false, true) => Some(commit.to_owned()),
        (false, false) => Some(format!("{commit}{WITH_CHANGES}")),
    }
}

/// Follows a commit where the code has changes beside it.
const WITH_CHANGES: &str = " with changes";

/// What this machine is, as far as the system tells.
fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let after = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let processor = after(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kilobytes =
        after(&read("/proc/meminfo"), "MemTotal").and_then(|text| text.strip_suffix(" kB")?.parse::<f64>().ok());
    let memory = kilobytes.map_or_else(|| "unknown".to_owned(), gibibytes);
    let system = read("/proc/sys/kernel/osrelease").trim().to_owned();
    format!("{processor}, {cores} cores, {memory} of memory, {} {system}", std::env::consts::OS)
}

/// Whole ones only: what a kernel keeps for itself differs from one start to the next.
pub fn gibibytes(kilobytes: f64) -> String {
    format!("{:.0} GiB", kilobytes / 1_048_576.0)
}

/// A figure of an earlier run.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Measured {
    /// Its name.
    pub name: String,
    /// Of its numbers.
    pub unit: String,
    /// The median.
    pub value: f64,
    /// The smallest.
    pub low: f64,
    /// The largest.
    pub high: f64,
    /// How many runs there were.
    #[serde(default)]
    pub repeats: usize,
    /// Who did the same work.
    pub peer: Option<String>,
    /// Its median.
    pub peer_value: Option<f64>,
    /// Our median divided by it.
    pub ratio: Option<f64>,
    /// What else matters.
    #[serde(default)]
    pub conditions: String,
    /// Each run, if they were kept.
    #[serde(default)]
    pub samples: Vec<f64>,
    /// Each run of the peer, if they were kept.
    #[serde(default)]
    pub peer_samples: Vec<f64>,
    /// What was predicted, beside what came.
    #[serde(default)]
    pub predictions: Vec<Predicted>,
    /// Cost of each item to our server; older lines have none.
    #[serde(default)]
    pub counts: Option<Counts>,
    /// Where and by what; older lines have none.
    pub run: Option<Run>,
}

impl Measured {
    /// Whether it is shown that everything works, and nothing more.
    pub fn is_quick(&self) -> bool {
        self.conditions.contains("quick: nothing to quote")
    }

    /// When and by which commit it was measured.
    pub fn origin(&self) -> String {
        match &self.run {
            None => "not recorded".to_owned(),
            Some(run) => {
                let commit = run.commit.as_deref().unwrap_or("commit not recorded");
                format!("{}, {commit}", run.at.get(..10).unwrap_or(&run.at))
            }
        }
    }

    /// Every run, or what is left of them.
    pub fn runs(&self) -> Vec<f64> {
        match (self.samples.as_slice(), self.repeats) {
            ([], 0 | 1) => vec![self.value],
            ([], 2) => vec![self.low, self.high],
            ([], _) => vec![self.low, self.value, self.high],
            (samples, _) => samples.to_vec(),
        }
    }
}

/// The figures of a file, by name.
pub type Results = BTreeMap<String, Measured>;

/// The commit of the newest line that names one.
pub fn newest_commit(results: &Results) -> Option<&str> {
    let runs = results.values().filter_map(|measured| measured.run.as_ref());
    runs.filter(|run| run.commit.is_some()).max_by(|one, other| one.at.cmp(&other.at))?.commit.as_deref()
}

/// The number of lines of another commit than the newest one, or of none.
pub fn older_lines(results: &Results) -> usize {
    let newest = newest_commit(results);
    let commit = |measured: &Measured| measured.run.as_ref().and_then(|run| run.commit.clone());
    results.values().filter(|measured| newest.is_none() || commit(measured).as_deref() != newest).count()
}

/// Reads a file of results.
///
/// # Errors
/// It cannot be read, or a line is no result; every such line is named.
pub fn read(file: &Path) -> Outcome<Results> {
    Ok(read_all(file)?.into_iter().map(|measured| (measured.name.clone(), measured)).collect())
}

/// Reads all lines of a file, in its order.
///
/// # Errors
/// As [`read`].
pub fn read_all(file: &Path) -> Outcome<Vec<Measured>> {
    let length = fs::metadata(file).map_err(|error| Failure::file("read", file, &error))?.len();
    if length > FILE_BYTES_MAX {
        return Err(Failure::failed(format!(
            "{} is too long: {length} bytes of at most {FILE_BYTES_MAX}",
            file.display()
        )));
    }
    let text = fs::read_to_string(file).map_err(|error| Failure::file("read", file, &error))?;
    parse(&text).map_err(|problems| {
        let failure = Failure::failed(format!("{} holds lines that are no results", file.display()));
        problems.iter().take(20).fold(failure, |failure, problem| failure.detail(located(file, problem)))
    })
}

fn parse(text: &str) -> Result<Vec<Measured>, Vec<Problem>> {
    let (mut results, mut problems) = (Vec::new(), Vec::new());
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match serde_json::from_str::<Measured>(line) {
            Ok(measured) => results.push(measured),
            Err(error) => {
                let problem = Problem::at("", format!("is no result: {error}"));
                let hint = "each line is a figure as `tocsin bench --out` writes it";
                problems.push(problem.hint(hint).position(number as u32 + 1, error.column() as u32));
            }
        }
    }
    if problems.is_empty() { Ok(results) } else { Err(problems) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_this_version_and_older_ones_are_read() {
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
        let origins: Vec<String> = results.values().map(Measured::origin).collect();
        assert_eq!(origins, ["2026-11-01, one", "2026-11-02, two", "2026-11-03, commit not recorded", "not recorded"]);
    }
}
