//! Splits a byte stream into CSV records (RFC 4180) in bounded memory.
//!
//! Lines end with LF, CRLF or CR alone. A quote opens at the start of a cell only; within other text it stands for
//! itself. A test compares the cells with those of the crate `csv`. That crate neither reports an unclosed quote nor
//! counts lines that end with CR alone, so records are split here.

use std::{borrow::Cow, collections::HashSet};

use crate::problem::{Code, Problem};

/// Delimiters that are detected if none is given, by preference.
const DELIMITERS: [u8; 4] = [b',', b';', b'\t', b'|'];

/// Splits records out of bytes that arrive in pieces.
#[derive(Debug, Clone)]
pub struct Scanner {
    /// `None`: each of [`DELIMITERS`] ends a cell.
    delimiter: Option<u8>,
    state: State,
    /// Whether the record ended with CR, which may be the first half of CRLF.
    ends_in_cr: bool,
    /// Whether the last byte within quotes was CR.
    was_cr: bool,
    breaks: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    CellStart,
    Plain,
    Quoted,
    /// After a quote within quotes: the end of the cell, or the first half of two quotes.
    Quote,
}

impl Scanner {
    /// A scanner for this delimiter, or for any of the common ones.
    pub fn new(delimiter: Option<u8>) -> Scanner {
        Scanner { delimiter, state: State::CellStart, ends_in_cr: false, was_cr: false, breaks: 0 }
    }

    /// Scans more bytes. Returns the number of these bytes that belong to the record, if it ends in or before
    /// them.
    pub fn scan(&mut self, bytes: &[u8]) -> Option<usize> {
        for (at, byte) in bytes.iter().enumerate() {
            if self.ends_in_cr {
                self.ends_in_cr = false;
                return Some(if *byte == b'\n' { at + 1 } else { at });
            }
            if self.state == State::Quoted {
                match byte {
                    b'"' => self.state = State::Quote,
                    b'\r' => self.breaks += 1,
                    b'\n' if !self.was_cr => self.breaks += 1,
                    _ => {}
                }
                self.was_cr = *byte == b'\r';
                continue;
            }
            self.state = match (self.state, byte) {
                (State::CellStart | State::Quote, b'"') => State::Quoted,
                (_, b'\n') => {
                    (self.state, self.breaks) = (State::CellStart, self.breaks + 1);
                    return Some(at + 1);
                }
                (_, b'\r') => {
                    (self.ends_in_cr, self.breaks) = (true, self.breaks + 1);
                    State::CellStart
                }
                (_, byte) if is_delimiter(self.delimiter, *byte) => State::CellStart,
                _ => State::Plain,
            };
            self.was_cr = false;
        }
        None
    }

    /// Whether a quote is open. At the end of a text this is an error.
    pub fn is_quoted(&self) -> bool {
        self.state == State::Quoted
    }

    /// The number of lines that ended since the last call.
    pub fn take_breaks(&mut self) -> u64 {
        std::mem::take(&mut self.breaks)
    }

    /// Discards an abandoned record, with its open quote.
    pub fn start_anew(&mut self) {
        (self.state, self.ends_in_cr, self.was_cr) = (State::CellStart, false, false);
    }

    /// Sets the delimiter of all following records.
    pub fn set_delimiter(&mut self, delimiter: u8) {
        self.delimiter = Some(delimiter);
    }
}

fn is_delimiter(requested: Option<u8>, byte: u8) -> bool {
    match requested {
        Some(requested) => byte == requested,
        None => DELIMITERS.contains(&byte),
    }
}

/// A record without the line break at its end.
fn without_break(record: &[u8]) -> &[u8] {
    let record = record.strip_suffix(b"\n").unwrap_or(record);
    record.strip_suffix(b"\r").unwrap_or(record)
}

/// The cells of a record.
pub fn cells(record: &[u8], delimiter: u8) -> Vec<Cow<'_, [u8]>> {
    let mut cells = Vec::new();
    let mut rest = without_break(record);
    loop {
        let (cell, after) = match rest.strip_prefix(b"\"") {
            Some(quoted) => quoted_cell(quoted, delimiter),
            None => {
                let end = rest.iter().position(|byte| *byte == delimiter).unwrap_or(rest.len());
                (Cow::Borrowed(&rest[..end]), &rest[end..])
            }
        };
        cells.push(cell);
        match after.strip_prefix(&[delimiter]) {
            Some(next) => rest = next,
            None => return cells,
        }
    }
}

/// A cell after its opening quote, and the rest. Text between the closing quote and the delimiter belongs to the
/// cell.
fn quoted_cell(quoted: &[u8], delimiter: u8) -> (Cow<'_, [u8]>, &[u8]) {
    let mut at = 0;
    let mut cell = Cow::Borrowed(&quoted[..0]);
    loop {
        let end = quoted[at..].iter().position(|byte| *byte == b'"').map_or(quoted.len(), |length| at + length);
        let piece = &quoted[at..end];
        match cell.is_empty() {
            true => cell = Cow::Borrowed(piece),
            false => cell.to_mut().extend_from_slice(piece),
        }
        if quoted.get(end + 1) != Some(&b'"') {
            let rest = quoted.get(end + 1..).unwrap_or_default();
            let length = rest.iter().position(|byte| *byte == delimiter).unwrap_or(rest.len());
            if length > 0 {
                cell.to_mut().extend_from_slice(&rest[..length]);
            }
            return (cell, &rest[length..]);
        }
        cell.to_mut().push(b'"');
        at = end + 2;
    }
}

/// The delimiter in a first line `sep=;`, as spreadsheets write it.
pub fn named_delimiter(record: &[u8]) -> Option<u8> {
    let line = without_break(record);
    let line = line.strip_prefix(b"\"").and_then(|line| line.strip_suffix(b"\"")).unwrap_or(line);
    match line {
        [s, e, p, b'=', delimiter] if [*s, *e, *p].eq_ignore_ascii_case(b"sep") && delimiter.is_ascii() => {
            Some(*delimiter)
        }
        _ => None,
    }
}

/// Detects the delimiter of a header: the most frequent of the common ones outside of quotes, else a comma.
pub fn delimiter_of(head: &[u8]) -> u8 {
    let mut scanner = Scanner::new(None);
    let mut counts = [0u32; DELIMITERS.len()];
    for byte in without_break(head) {
        let was_quoted = scanner.is_quoted();
        scanner.scan(std::slice::from_ref(byte));
        if let Some(at) = DELIMITERS.iter().position(|known| known == byte).filter(|_| !was_quoted) {
            counts[at] += 1;
        }
    }
    let most = counts.iter().copied().max().unwrap_or_default();
    counts.iter().position(|count| *count == most).map_or(b',', |at| DELIMITERS[at])
}

/// Column names, trimmed. Empty ones at the end are dropped, because some programs end each line with a delimiter.
///
/// # Errors
/// A column has no name, or the name of another one.
pub fn head(cells: &[String]) -> Result<Vec<String>, Vec<Problem>> {
    let mut names: Vec<String> = cells.iter().map(|name| name.trim().to_owned()).collect();
    while names.last().is_some_and(String::is_empty) {
        names.pop();
    }
    let (mut problems, mut known) = (Vec::new(), HashSet::with_capacity(names.len()));
    for (at, name) in names.iter().enumerate() {
        if name.is_empty() {
            problems.push(Problem::new(Code::Required, "", format!("has no name for column {} in its header", at + 1)));
        } else if !known.insert(name.as_str()) {
            problems.push(Problem::new(Code::Duplicate, name.as_str(), "is a column twice"));
        }
    }
    if names.is_empty() {
        problems.push(Problem::new(Code::Required, "", "has no names of columns in its first line"));
    }
    if problems.is_empty() { Ok(names) } else { Err(problems) }
}

/// A record fitted to its columns. `None`: it is blank.
///
/// # Errors
/// It has more or fewer cells. Empty ones at the end, beyond the last column, do not count.
pub fn fitted(mut cells: Vec<String>, columns: usize) -> Result<Option<Vec<String>>, Problem> {
    if cells.iter().all(String::is_empty) && (cells.len() > 1 || columns > 1) {
        return Ok(None);
    }
    let given = cells.len();
    while cells.len() > columns && cells.last().is_some_and(String::is_empty) {
        cells.pop();
    }
    match cells.len() == columns {
        true => Ok(Some(cells)),
        false => Err(Problem::syntax("csv", "", format!("has {given} cells, but there are {columns} columns"))),
    }
}

/// The cells of a record as text.
///
/// # Errors
/// A cell is not UTF-8, or contains NUL, which indicates UTF-16.
pub fn text_cells(record: &[u8], delimiter: u8) -> Result<Vec<String>, Problem> {
    let text = |(at, cell): (usize, Cow<'_, [u8]>)| {
        if cell.contains(&0) {
            let problem = Problem::new(Code::InvalidCharacters, format!("[{at}]"), "has the character NUL");
            return Err(problem.hint("is it UTF-16? then name the encoding, or begin it with a byte order mark"));
        }
        String::from_utf8(cell.into_owned()).map_err(|_| {
            let problem =
                Problem::new(Code::InvalidFormat, format!("[{at}]"), "is not text in UTF-8").param("format", "utf_8");
            problem.hint("name its encoding, such as `windows-1252`")
        })
    };
    cells(record, delimiter).into_iter().enumerate().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All records, each with its line, in pieces of this size.
    fn records(text: &[u8], delimiter: u8, size: usize) -> Vec<(u64, Vec<String>)> {
        read(text, delimiter, size).0
    }

    /// The same, and whether a quote is open at the end.
    fn read(text: &[u8], delimiter: u8, size: usize) -> (Vec<(u64, Vec<String>)>, bool) {
        let mut scanner = Scanner::new(Some(delimiter));
        let (mut found, mut record, mut line) = (Vec::new(), Vec::new(), 1);
        let mut push = |record: &mut Vec<u8>, line: u64| {
            let cells = cells(record, delimiter);
            found.push((line, cells.iter().map(|cell| String::from_utf8_lossy(cell).into_owned()).collect()));
            record.clear();
        };
        for mut piece in text.chunks(size.max(1)) {
            while let Some(end) = scanner.scan(piece) {
                record.extend_from_slice(&piece[..end]);
                push(&mut record, line);
                line += scanner.take_breaks();
                piece = &piece[end..];
            }
            record.extend_from_slice(piece);
        }
        if !record.is_empty() {
            push(&mut record, line);
        }
        (found, scanner.is_quoted())
    }

    #[test]
    fn d_records_end_with_any_line_break_and_know_their_line() {
        let expected = |lines: [u64; 3]| {
            lines
                .into_iter()
                .zip([["a", "b"], ["1", "x \"y\"\nz"], ["5\" pipe", "\"q\" r"]])
                .map(|(line, cells)| (line, cells.map(str::to_owned).to_vec()))
        };
        for ending in ["\n", "\r\n", "\r"] {
            let text = format!("a,b{ending}1,\"x \"\"y\"\"\nz\"{ending}5\" pipe,\"\"\"q\"\" r\"");
            for size in 1..=text.len() {
                let found = records(text.as_bytes(), b',', size);
                assert_eq!(found, expected([1, 2, 4]).collect::<Vec<_>>(), "{ending:?} {size}");
            }
        }
    }

    #[test]
    fn d_a_delimiter_is_named_or_seen() {
        assert_eq!(named_delimiter(b"sep=;\r\n"), Some(b';'));
        assert_eq!(named_delimiter(b"\"SEP=\t\"\n"), Some(b'\t'));
        assert_eq!((named_delimiter(b"sep="), named_delimiter(b"sep;=a")), (None, None));
        for (head, expected) in [
            ("id;note\n", b';'),
            ("id\tnote,s\tx", b'\t'),
            ("id", b','),
            ("id,note;x", b','),
            ("\"a,b,c\";d", b';'),
            ("a|b|c", b'|'),
        ] {
            assert_eq!(char::from(delimiter_of(head.as_bytes())), char::from(expected), "{head:?}");
        }
    }

    #[test]
    fn d_heads_and_records_of_the_field_are_fitted() {
        let texts = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
        assert_eq!(head(&texts(&["id ", " note", "", ""])), Ok(texts(&["id", "note"])));
        for wrong in [&["id", "id"][..], &["id", "", "x"], &["", ""], &[]] {
            assert!(head(&texts(wrong)).is_err(), "{wrong:?}");
        }
        assert_eq!(fitted(texts(&["1", "x", ""]), 2), Ok(Some(texts(&["1", "x"]))));
        assert_eq!(fitted(texts(&["", ""]), 2), Ok(None));
        assert_eq!(fitted(texts(&[""]), 2), Ok(None));
        assert_eq!(fitted(texts(&[""]), 1), Ok(Some(texts(&[""]))));
        assert!(fitted(texts(&["1"]), 2).is_err() && fitted(texts(&["1", "2", "3"]), 2).is_err());
    }

    /// A header that fits in a line of 1 MiB: its names were compared in pairs, which took minutes.
    #[test]
    fn d_a_header_with_many_columns_is_read_at_once() {
        let started = std::time::Instant::now();
        let mut cells: Vec<String> = (0..150_000).map(|column| format!("c{column}")).collect();
        assert_eq!(head(&cells).map(|names| names.len()), Ok(150_000));
        cells.push("c7".to_owned());
        let problems = head(&cells).expect_err("a duplicate name");
        assert_eq!(problems, [Problem::new(Code::Duplicate, "c7", "is a column twice")]);
        let taken = started.elapsed();
        assert!(taken < std::time::Duration::from_secs(10), "{taken:?}");
    }

    proptest::proptest! {
        #[test]
        fn d_the_crate_csv_reads_the_same_cells(text in "[ab,;\"\r\n]{0,40}") {
            let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
            let theirs: Vec<Vec<String>> = reader
                .records()
                .map(|record| record.expect("text").iter().map(str::to_owned).collect())
                .collect();
            let (own, is_open) = read(text.as_bytes(), b',', 7);
            proptest::prop_assume!(!is_open);
            // The crate skips empty lines.
            let own: Vec<Vec<String>> = own.into_iter().map(|(_, cells)| cells).filter(|cells| *cells != [""] ).collect();
            let theirs: Vec<Vec<String>> = theirs.into_iter().filter(|cells| *cells != [""]).collect();
            proptest::prop_assert_eq!(own, theirs);
        }
    }
}
