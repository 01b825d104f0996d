//! Values of columns: words as their position in a list, and texts that are parsed.

use std::{fmt, str::FromStr};

use rusqlite::{Row, types::Type};

/// Position of a value in its list, as stored in a column.
pub(super) fn ordinal_of<T: PartialEq>(all: &[T], one: T) -> u32 {
    let at = all.iter().position(|known| *known == one).expect("every word is among all");
    u32::try_from(at).expect("there are few words")
}

/// Names cannot borrow from the row, so the head is parsed from its text at once.
pub(super) fn head(row: &Row<'_>, at: usize) -> rusqlite::Result<crate::spool::Head> {
    let text = row.get_ref(at)?.as_str()?;
    serde_json::from_str(text).map_err(|error| damaged(at, &error.to_string()))
}

/// Value at a stored position.
pub(super) fn word<T: Copy>(row: &Row<'_>, at: usize, all: &[T]) -> rusqlite::Result<T> {
    let place: usize = row.get(at)?;
    all.get(place).copied().ok_or_else(|| damaged(at, "unknown position"))
}

pub(super) fn parsed<T: FromStr<Err: fmt::Display>>(row: &Row<'_>, at: usize) -> rusqlite::Result<T> {
    row.get_ref(at)?.as_str()?.parse().map_err(|error: T::Err| damaged(at, &error.to_string()))
}

fn damaged(at: usize, why: &str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, Type::Text, why.to_owned().into())
}
