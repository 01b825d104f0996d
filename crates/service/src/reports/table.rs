//! Tables with named columns.

use std::time::Duration;

use tocsin_model::{id::Name, time::Timestamp, value::Value};

/// A report: one table or several, and where to go on if there is more.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// Its name.
    pub name: &'static str,
    /// Its tables; of most there is one.
    pub tables: Vec<Table>,
    /// What to give as `before` for more of a list.
    pub next: Option<String>,
}

/// A table.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// What its rows are.
    pub name: &'static str,
    /// Its columns.
    pub columns: &'static [Column],
    /// Its rows, each with a cell for every column.
    pub rows: Vec<Vec<Cell>>,
}

/// A column. A name in `_ms` is of milliseconds, one in `_at` or `_from` and `_to` of a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// What it tells.
    pub description: &'static str,
}

/// A column.
pub(super) const fn column(name: &'static str, description: &'static str) -> Column {
    Column { name, description }
}

/// What stands at one place of a table.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Nothing.
    None,
    /// Yes or no.
    Flag(bool),
    /// How many.
    Count(u64),
    /// A rate or an average.
    Number(f64),
    /// How long, shown in milliseconds.
    Took(Duration),
    /// When.
    At(Timestamp),
    /// A name, an id or words.
    Text(String),
    /// The fields of an event or a notification.
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
        Report { name: "", tables: vec![self], next: None }
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
