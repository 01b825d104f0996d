//! Build, machine and settings of a run, as recorded in each result line.

use std::{fs, path::Path};

use serde::{Deserialize, Serialize};

/// Build, machine and settings of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Version of this binary.
    pub version: String,
    /// Size and modification time of the binary, since versions change rarely; missing in older lines.
    #[serde(default)]
    pub build: String,
    /// Last commit that changed the code, with a mark for uncommitted changes; `None` if the binary was not built from
    /// the current checkout. Missing in older lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Processor, cores, memory and operating system.
    pub machine: String,
    /// Settings: `full` or `quick`, and the data folder.
    pub settings: String,
    /// Requested repeats. Some figures have fewer samples by design; missing in older lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<usize>,
    /// Start time.
    pub at: String,
}

impl Run {
    /// Whether both runs have the same known commit, machine and settings.
    pub fn is_repetition_of(&self, other: &Run) -> bool {
        let is_known = self.commit.as_ref().is_some_and(|commit| !commit.ends_with(WITH_CHANGES));
        is_known && self.commit == other.commit && self.machine == other.machine && self.settings == other.settings
    }

    /// Describes the current run.
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
    let metadata = found.and_then(|found| Ok((found.len(), jiff::Timestamp::try_from(found.modified()?))));
    match metadata {
        Ok((bytes, Ok(made))) => format!("{bytes} bytes, {}", made.strftime("%Y-%m-%dT%H:%M:%SZ")),
        _ => "unknown".to_owned(),
    }
}

/// Commit of the checkout in which this process runs, by `git`.
fn commit() -> Option<String> {
    /// Files from which the binary is built.
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

/// Suffix of a commit with uncommitted code changes.
const WITH_CHANGES: &str = " with changes";

/// Description of this machine, as far as the system provides it.
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

/// Memory in whole GiB: the part reserved by a kernel differs between boots.
pub fn gibibytes(kilobytes: f64) -> String {
    format!("{:.0} GiB", kilobytes / 1_048_576.0)
}
