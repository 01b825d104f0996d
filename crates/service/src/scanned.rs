//! Results and extent of bounded searches, newest first.

use std::time::{Duration, Instant};

use tocsin_model::{problem::Code, time::Timestamp};

use crate::{Service, error::ServiceError};

/// Heads of batches that one search reads.
pub const HEADS_MAX: u64 = 10_000;
/// Batches that one search unpacks.
pub const BATCHES_MAX: u64 = 1_000;
/// Events or notifications that one search examines.
pub const ROWS_MAX: u64 = 500_000;
/// Longest duration of one search.
pub const DURATION_MAX: Duration = Duration::from_secs(2);
/// Maximum number of concurrent searches.
pub const CONCURRENT_MAX: usize = 4;
/// Heads read at a time.
pub(crate) const PAGE: usize = 256;
/// Batches overtake each other by at most this time in the order of their numbers.
pub(crate) const LEEWAY: Duration = Duration::from_secs(2);

/// Result of a bounded search.
#[derive(Debug, Clone, PartialEq)]
pub struct Scanned<T> {
    /// Results, newest first.
    pub items: Vec<T>,
    /// Cursor that continues the search; `None`: the whole period was searched.
    pub next: Option<String>,
    /// Time down to which the search came, if it is to be continued.
    pub scanned_to: Option<Timestamp>,
    /// Number of batches of which the head was read.
    pub batches: u64,
    /// Number of events or notifications examined.
    pub rows: u64,
}

impl<T> Scanned<T> {
    /// The result of a search of the whole period.
    pub(crate) fn whole(items: Vec<T>, budget: &ScanBudget) -> Scanned<T> {
        Scanned { items, next: None, scanned_to: None, batches: budget.heads, rows: budget.rows }
    }
}

/// Time range of a search: `from` inclusive, `to` exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// Start.
    pub from: Timestamp,
    /// End.
    pub to: Timestamp,
}

impl Period {
    /// A period; an end that is not given is open.
    ///
    /// # Errors
    /// It is empty.
    pub fn new(from: Option<Timestamp>, to: Option<Timestamp>) -> Result<Period, ServiceError> {
        let (from, to) = (from.unwrap_or(Timestamp(0)), to.unwrap_or(Timestamp(i64::MAX)));
        match from < to {
            true => Ok(Period { from, to }),
            false => Err(ServiceError::invalid(Code::OutOfRange, "to", "is not after `from`")),
        }
    }

    pub(crate) fn contains(&self, time: Timestamp) -> bool {
        self.from <= time && time < self.to
    }

    /// Whether all older batches are before the period too.
    pub(crate) fn is_over(&self, time: Timestamp) -> bool {
        time.0 < self.from.0.saturating_sub(LEEWAY.as_micros() as i64)
    }
}

impl Default for Period {
    fn default() -> Self {
        Period { from: Timestamp(0), to: Timestamp(i64::MAX) }
    }
}

/// Remaining budget of one search.
pub(crate) struct ScanBudget {
    pub heads: u64,
    batches: u64,
    pub rows: u64,
    end: Instant,
}

impl ScanBudget {
    pub fn new() -> ScanBudget {
        ScanBudget { heads: 0, batches: 0, rows: 0, end: Instant::now() + DURATION_MAX }
    }

    /// Counts a head; `false`: the limit is reached, and it was not counted.
    pub fn take_head(&mut self) -> bool {
        if self.heads == HEADS_MAX || self.is_late() {
            return false;
        }
        self.heads += 1;
        true
    }

    /// Counts a batch that is unpacked; `false`: the limit is reached.
    pub fn take_batch(&mut self) -> bool {
        if self.batches == BATCHES_MAX || self.rows >= ROWS_MAX {
            return false;
        }
        self.batches += 1;
        true
    }

    pub fn end(&self) -> Instant {
        self.end
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.end
    }
}

impl Service {
    /// Admits a search.
    pub(crate) fn search_permit(&self) -> Result<tokio::sync::SemaphorePermit<'_>, ServiceError> {
        self.searches.try_acquire().map_err(|_| ServiceError::TooMany {
            reason: format!("{CONCURRENT_MAX} searches run already"),
            retry_after: Duration::from_secs(1),
        })
    }
}
