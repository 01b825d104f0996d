//! A text that is read line by line, within bounds.

use std::io::{BufRead, Read};

use tocsin_model::problem::{Code, Problem};

use super::item::PositionedItem;

/// The items of a text in order. An error ends the sequence.
pub(crate) type Items = Box<dyn Iterator<Item = Result<PositionedItem, Problem>> + Send>;

/// A text that is being read.
pub(crate) type Text = Box<dyn BufRead + Send>;

pub(super) fn too_long(bytes_max: usize) -> Problem {
    Problem::new(Code::TooLong, "", format!("is longer than {bytes_max} bytes"))
        .param("limit", bytes_max)
        .param("unit", "bytes")
        .hint("`item_bytes_max` can be raised")
}

/// A line that was not read completely.
pub(super) enum LineError {
    /// The line is too long; its beginning has been read.
    TooLong,
    /// The text cannot be read.
    Broken(Problem),
}

/// Reads a line of at most so many bytes into `line`, which is cleared first.
pub(super) fn read_line(
    text: &mut (impl BufRead + ?Sized),
    line: &mut Vec<u8>,
    bytes_max: usize,
) -> Result<bool, LineError> {
    line.clear();
    let limit = bytes_max as u64 + 1;
    let read = text.take(limit).read_until(b'\n', line);
    read.map_err(|error| LineError::Broken(unreadable(&error)))?;
    match line.last() {
        None => Ok(false),
        Some(b'\n') => Ok(true),
        Some(_) if line.len() > bytes_max => Err(LineError::TooLong),
        Some(_) => Ok(true),
    }
}

pub(super) fn unreadable(error: &std::io::Error) -> Problem {
    Problem::new(Code::Unreadable, "", format!("cannot be read: {error}"))
}

/// A line number for display.
pub(super) fn line_number(number: u64) -> Option<u32> {
    u32::try_from(number).ok()
}
