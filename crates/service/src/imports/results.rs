//! Results of imports.

use serde::Serialize;
use tocsin_model::problem::{Problem, and_more};

use crate::error::ServiceError;

/// Maximum number of rejected lines reported; all are counted.
pub const REFUSALS_MAX: usize = 1_000;
/// Maximum number of problems reported per line.
const LINE_PROBLEMS_MAX: usize = 10;

/// A line that was rejected, or stored with a warning.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RejectedLine {
    /// Line number, from 1; in CSV the header is line 1.
    pub line: u64,
    /// Problems of the line.
    pub problems: Vec<Problem>,
}

/// Result of an import.
#[derive(Debug, Default)]
pub struct Imported {
    /// Non-empty lines, without the header.
    pub lines: u64,
    /// Lines stored.
    pub stored: u64,
    /// Lines rejected.
    pub failed: u64,
    /// The first rejected lines, in order.
    pub refusals: Vec<RejectedLine>,
    /// Lines stored with a warning: a line of an export does not fit the current version of its application in every
    /// part, or a schedule has ended.
    pub warned: u64,
    /// The first of them, in order, with their warnings.
    pub warnings: Vec<RejectedLine>,
    /// Reason why the import ended early. Lines stored before stay stored.
    pub stopped: Option<ServiceError>,
}

impl Imported {
    pub(super) fn refuse(&mut self, refusals: Vec<RejectedLine>) {
        self.failed += refusals.len() as u64;
        keep_first(&mut self.refusals, refusals);
    }

    pub(super) fn warn(&mut self, warnings: Vec<RejectedLine>) {
        self.warned += warnings.len() as u64;
        keep_first(&mut self.warnings, warnings);
    }
}

/// Adds lines up to the limit, and truncates the problems of each.
fn keep_first(kept: &mut Vec<RejectedLine>, more: Vec<RejectedLine>) {
    kept.extend(more);
    kept.sort_by_key(|line| line.line);
    kept.truncate(REFUSALS_MAX);
    for line in kept {
        let more = line.problems.len().saturating_sub(LINE_PROBLEMS_MAX);
        if more > 1 {
            line.problems.truncate(LINE_PROBLEMS_MAX);
            line.problems.push(and_more(more));
        }
    }
}
