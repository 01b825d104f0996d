//! Report tables with named, typed columns.

use std::time::Duration;

use tocsin_model::{id::Name, time::Timestamp, value::Value};
use tocsin_store::journal::Window;

use crate::{error::ServiceError, page};

/// A report: its tables, and the cursor of the next page.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// Its name.
    pub name: &'static str,
    /// Tables; most reports have one.
    pub tables: Vec<Table>,
    /// Period of the figures, for reports with intervals: whole minutes.
    pub window: Option<(Timestamp, Timestamp)>,
    /// Cursor of the next page.
    pub next: Option<String>,
}

/// A table.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Meaning of its rows.
    pub name: &'static str,
    /// Its columns.
    pub columns: &'static [Column],
    /// Its rows, each with a cell for every column.
    pub rows: Vec<Vec<Cell>>,
}

/// A column. Names in `_ms` are durations in milliseconds; names in `_at`, `_from` and `_to` are timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// Description.
    pub description: &'static str,
}

/// A column.
pub(super) const fn column(name: &'static str, description: &'static str) -> Column {
    Column { name, description }
}

/// A cell of a table.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Empty.
    None,
    /// A Boolean.
    Flag(bool),
    /// A count.
    Count(u64),
    /// A rate or an average.
    Number(f64),
    /// A duration, shown in milliseconds.
    Took(Duration),
    /// A timestamp.
    At(Timestamp),
    /// Text: a name, an id or a description.
    Text(String),
    /// Fields of an event or a notification.
    Fields(Vec<(String, Value)>),
}

impl Table {
    pub(super) fn new(name: &'static str, columns: &'static [Column]) -> Table {
        Table { name, columns, rows: Vec::new() }
    }

    pub(super) fn push<const N: usize>(&mut self, row: [Cell; N]) {
        assert_eq!(N, self.columns.len(), "a row of `{}` has a cell for each column", self.name);
        self.rows.push(row.into());
    }

    pub(super) fn alone(self) -> Report {
        Report { tables: vec![self], ..Report::default() }
    }
}

/// Maximum number of rows of a report that is computed as a whole; also the default limit.
pub(super) const ROWS_MAX: usize = 10_000;

impl Report {
    /// Cuts a report that is computed as a whole: skips rows, and keeps up to `limit`, over all its tables. A first
    /// table that describes the subject is on each page.
    pub(super) fn page(mut self, skipped: Option<usize>, limit: Option<usize>) -> Result<Report, ServiceError> {
        let limit = match limit {
            None => ROWS_MAX,
            Some(_) => page::limit(limit)?,
        };
        let skipped = skipped.unwrap_or(0);
        let (mut to_skip, mut room, mut left) = (skipped, limit, 0);
        let heads = usize::from(self.tables.len() > 1);
        for table in self.tables.iter_mut().skip(heads) {
            let passed = to_skip.min(table.rows.len());
            table.rows.drain(..passed);
            to_skip -= passed;
            let shown = room.min(table.rows.len());
            left += table.rows.len() - shown;
            table.rows.truncate(shown);
            room -= shown;
        }
        self.next = (left > 0).then(|| (skipped + limit).to_string());
        Ok(self)
    }

    pub(super) fn of_window(self, window: &Window) -> Report {
        Report { window: Some((window.from, window.to)), ..self }
    }
}

impl From<bool> for Cell {
    fn from(flag: bool) -> Cell {
        Cell::Flag(flag)
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Cell {
        Cell::Count(count)
    }
}

impl From<u32> for Cell {
    fn from(count: u32) -> Cell {
        Cell::Count(count.into())
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Cell {
        Cell::Number(number)
    }
}

impl From<Duration> for Cell {
    fn from(took: Duration) -> Cell {
        Cell::Took(took)
    }
}

impl From<Timestamp> for Cell {
    fn from(at: Timestamp) -> Cell {
        Cell::At(at)
    }
}

impl From<&Name> for Cell {
    fn from(name: &Name) -> Cell {
        Cell::Text(name.to_string())
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(cell: Option<T>) -> Cell {
        cell.map_or(Cell::None, Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[column("n", "A number.")];

    fn report(sizes: &[u64]) -> Report {
        let table = |size: &u64| {
            let mut table = Table::new("t", COLUMNS);
            (0..*size).for_each(|number| table.push([number.into()]));
            table
        };
        Report { tables: sizes.iter().map(table).collect(), ..Report::default() }
    }

    fn sizes(report: &Report) -> Vec<usize> {
        report.tables.iter().map(|table| table.rows.len()).collect()
    }

    #[test]
    fn b12_a_report_that_is_computed_whole_has_pages() {
        let check = |of: &[u64], skipped: Option<usize>, limit: Option<usize>, rows: &[usize], next: Option<&str>| {
            let page = report(of).page(skipped, limit).expect("a page");
            assert_eq!((sizes(&page).as_slice(), page.next.as_deref()), (rows, next), "{of:?} {skipped:?} {limit:?}");
        };
        check(&[5], None, None, &[5], None);
        check(&[5], None, Some(5), &[5], None);
        check(&[5], None, Some(2), &[2], Some("2"));
        check(&[5], Some(4), Some(2), &[1], None);
        check(&[1, 3, 2, 4], None, Some(4), &[1, 3, 1, 0], Some("4"));
        check(&[1, 3, 2, 4], Some(4), Some(4), &[1, 0, 1, 3], Some("8"));
        check(&[1, 3, 2, 4], Some(8), Some(4), &[1, 0, 0, 1], None);
        check(&[10_001], None, None, &[10_000], Some("10000"));
        assert!(report(&[1]).page(None, Some(0)).is_err());
        assert!(report(&[1]).page(None, Some(1_001)).is_err());
    }
}
