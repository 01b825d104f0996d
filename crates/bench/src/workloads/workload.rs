//! Published workload: rows of reported values, each with the figure of the same work.

use super::claim::Claim;
use crate::results::{FigureResult, Results};

/// Published workload.
pub struct Workload {
    /// Name.
    pub name: &'static str,
    /// Description of the work.
    pub about: &'static str,
    /// Reported values, row by row.
    pub rows: &'static [Row],
    /// Differences between the published work and the figure; empty if there are none.
    pub differs: &'static str,
}

/// Reported value, and the figure of the same work.
pub struct Row {
    /// Reported quantity.
    pub what: &'static str,
    /// Value in the paper's words; empty if there is only a graph.
    pub reported: &'static str,
    /// Numeric value in the unit of the figure, if there is one.
    pub value: Option<f64>,
    /// Name of the figure; empty if there is none yet.
    pub figure: &'static str,
    /// Whether the row corresponds to the figure's peer.
    pub is_peer: bool,
}

/// Row with a number.
pub const fn row(what: &'static str, reported: &'static str, value: f64, figure: &'static str) -> Row {
    Row { what, reported, value: Some(value), figure, is_peer: false }
}

/// Row without a number: only a graph or words.
pub const fn graph(what: &'static str, reported: &'static str, figure: &'static str) -> Row {
    Row { what, reported, value: None, figure, is_peer: false }
}

/// Row without a number that corresponds to the figure's peer: the same work without the measured feature.
pub const fn peer_row(what: &'static str, reported: &'static str, figure: &'static str) -> Row {
    Row { what, reported, value: None, figure, is_peer: true }
}

/// Workloads of one paper.
pub struct Family {
    /// Title.
    pub title: &'static str,
    /// Machine of the paper's measurements.
    pub machine: &'static str,
    /// Workloads.
    pub workloads: &'static [Workload],
    /// Claims of the paper.
    pub claims: &'static [Claim],
}

/// Workload of a family.
pub const fn workload(
    name: &'static str,
    about: &'static str,
    rows: &'static [Row],
    differs: &'static str,
) -> Workload {
    Workload { name, about, rows, differs }
}

impl Workload {
    /// Names of the figures, without duplicates.
    pub fn figures(&self) -> Vec<&'static str> {
        let mut figures: Vec<&str> =
            self.rows.iter().map(|row| row.figure).filter(|figure| !figure.is_empty()).collect();
        figures.sort_unstable();
        figures.dedup();
        figures
    }
}

impl Row {
    /// Result for this row.
    pub fn measured(&self, results: &Results) -> Option<FigureResult> {
        let measured = results.get(self.figure)?.clone();
        if !self.is_peer {
            return Some(measured);
        }
        let value = measured.peer_value?;
        Some(FigureResult { value, low: value, high: value, ..measured })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::line_of;

    #[test]
    fn a_peer_row_has_the_value_of_the_peer() {
        let results: Results = [line_of("a", 90.0, "")].into_iter().collect();
        let value = |row: Row| row.measured(&results).map(|measured| measured.value);
        assert_eq!((value(graph("", "", "a")), value(peer_row("", "", "a"))), (Some(90.0), Some(100.0)));
    }
}
