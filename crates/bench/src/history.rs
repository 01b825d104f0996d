//! History of each figure: all runs, appended beside the results. The result line has the median of all runs of one
//! commit.
//!
//! Machines have fast and slow hours, so the last run alone would record the luckier one.

use std::{
    fs::OpenOptions,
    io::Write,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    figure::{Line, Samples, rounded},
    results::{self, FigureResult},
};
use crate::failure::{Failure, Outcome};

/// Path of the history of a results file: `latest.ndjson` has `latest.history.ndjson`.
pub fn path_for(results: &Path) -> PathBuf {
    results.with_extension("history.ndjson")
}

/// Appends a run to the history. Returns the line combined over all runs with the same commit, machine and settings;
/// the line itself if the commit is unknown.
///
/// # Errors
/// If the history cannot be read or written, or has invalid lines.
pub fn record(results: &Path, line: Line) -> Outcome<Line> {
    let file = path_for(results);
    let failed = |error: std::io::Error| Failure::file("write", &file, &error);
    let mut text = serde_json::to_string(&line).expect("a line is plain data");
    text.push('\n');
    let mut history = OpenOptions::new().create(true).append(true).open(&file).map_err(failed)?;
    history.write_all(text.as_bytes()).map_err(failed)?;
    let runs = results::read_all(&file)?;
    Ok(combined(line, &runs))
}

/// Combines the line with the runs of its history.
fn combined(line: Line, history: &[FigureResult]) -> Line {
    let Some(run) = &line.run else { return line };
    let is_same = |measured: &&FigureResult| {
        measured.name == line.name
            && measured.unit == line.unit
            && measured.peer == line.peer
            && measured.run.as_ref().is_some_and(|other| run.is_repetition_of(other))
    };
    let runs: Vec<&FigureResult> = history.iter().filter(is_same).collect();
    if runs.len() < 2 {
        return line;
    }
    let ours: Samples = runs.iter().flat_map(|measured| measured.runs()).collect();
    let peers: Samples = runs.iter().flat_map(|measured| measured.peer_samples.clone()).collect();
    let peer_value = (!peers.is_empty()).then(|| peers.median());
    let all = |samples: &Samples| -> Vec<Value> { samples.iter().map(|sample| rounded(sample, 5)).collect() };
    Line {
        value: rounded(ours.median(), 5),
        low: rounded(ours.low(), 5),
        high: rounded(ours.high(), 5),
        repeats: ours.len(),
        peer_value: peer_value.map(|peer| rounded(peer, 5)),
        ratio: peer_value.filter(|peer| *peer > 0.0).map(|peer| rounded(ours.median() / peer, 3)),
        samples: all(&ours),
        peer_samples: all(&peers),
        ..line
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{figure::Figure, run::Run},
        *,
    };

    fn line(samples: &[f64], peers: &[f64], commit: Option<&str>) -> Line {
        let figure =
            Figure::new("rows/s", samples.iter().copied().collect()).with_peer("peer", peers.iter().copied().collect());
        let run = Run { commit: commit.map(str::to_owned), ..Run::now("full".to_owned()) };
        Line { run: Some(run), ..figure.line("f") }
    }

    #[test]
    fn b40_a_line_has_the_median_of_all_runs_of_its_commit() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("latest.ndjson");
        let check = |samples: &[f64], peers: &[f64], commit, expected: (i64, i64, f64, usize)| {
            let line = record(&file, line(samples, peers, commit)).expect("recorded");
            let number = |value: &Value| value.as_i64().expect("a number");
            let ratio = line.ratio.as_ref().and_then(Value::as_f64).expect("a ratio");
            let peer = line.peer_value.as_ref().map(number).expect("a peer");
            assert_eq!((number(&line.value), peer, ratio, line.repeats), expected);
        };
        check(&[10.0], &[5.0], Some("a"), (10, 5, 2.0, 1));
        // The luckier run does not replace the other.
        check(&[20.0, 30.0], &[5.0, 5.0], Some("a"), (20, 5, 4.0, 3));
        check(&[40.0], &[8.0], Some("b"), (40, 8, 5.0, 1));
        check(&[50.0], &[10.0], Some("b with changes"), (50, 10, 5.0, 1));
        check(&[52.0], &[10.0], Some("b with changes"), (52, 10, 5.2, 1));
        check(&[60.0], &[10.0], None, (60, 10, 6.0, 1));
        check(&[62.0], &[10.0], None, (62, 10, 6.2, 1));
        check(&[0.0], &[5.0], Some("a"), (15, 5, 3.0, 4));
        let kept = std::fs::read_to_string(path_for(&file)).expect("a history");
        assert_eq!(kept.lines().count(), 8, "each run is recorded");
    }
}
