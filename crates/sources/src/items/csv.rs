use std::{io::BufRead, sync::Arc};

use tocsin_model::{
    csv_text::{self, Scanner},
    problem::{Code, Problem},
};

use super::{
    item::{Cell, Item, PositionedItem},
    layout::Layout,
    text::{Text, line_number, too_long, unreadable},
};

/// CSV records with the names of their columns (RFC 4180; lines end with LF, CRLF or CR).
///
/// The delimiter is that of the options, else that of a first line `sep=;`, else detected from the header. An invalid
/// record is an item of its own, so that the caller decides about the others.
pub(super) struct Records {
    text: Text,
    scanner: Scanner,
    delimiter: Option<u8>,
    bytes_max: usize,
    /// The number of the next line, from 1.
    line: u64,
    names: Option<Arc<[String]>>,
    required: Vec<String>,
    ended: bool,
}

/// A raw record, and the number of its first line.
struct Record {
    line: u64,
    bytes: Vec<u8>,
}

impl Records {
    pub fn new(text: Text, layout: &Layout) -> Records {
        let names = (!layout.columns.is_empty()).then(|| layout.columns.clone().into());
        let (delimiter, bytes_max) = (layout.delimiter, layout.item_bytes_max);
        Records {
            text,
            scanner: Scanner::new(delimiter),
            delimiter,
            bytes_max,
            line: 1,
            names,
            required: layout.required.clone(),
            ended: false,
        }
    }

    /// Splits off the next record. An unclosed quote takes no memory: a record that is too long is dropped.
    fn cut(&mut self) -> Result<Option<Record>, Problem> {
        let line = self.line;
        let mut bytes = Vec::new();
        loop {
            let buffer = self.text.fill_buf().map_err(|error| at_line(line, unreadable(&error)))?;
            if buffer.is_empty() {
                self.line += self.scanner.take_breaks();
                return match (self.scanner.is_quoted(), bytes.is_empty()) {
                    (true, _) => Err(at_line(line, unclosed())),
                    (false, true) => Ok(None),
                    (false, false) => Ok(Some(Record { line, bytes })),
                };
            }
            let end = self.scanner.scan(buffer);
            let length = end.unwrap_or(buffer.len());
            bytes.extend_from_slice(&buffer[..length]);
            self.text.consume(length);
            if bytes.len() > self.bytes_max {
                let problem = if self.scanner.is_quoted() { unclosed() } else { too_long(self.bytes_max) };
                return Err(at_line(line, problem));
            }
            if end.is_some() {
                self.line += self.scanner.take_breaks();
                return Ok(Some(Record { line, bytes }));
            }
        }
    }

    /// The next record that is not empty.
    fn record(&mut self) -> Result<Option<Record>, Problem> {
        loop {
            match self.cut()? {
                Some(record) if record.bytes.trim_ascii().is_empty() => {}
                other => return Ok(other),
            }
        }
    }

    /// The delimiter, from the first record.
    fn delimiter(&mut self, first: &mut Option<Record>) -> Result<u8, Problem> {
        if let Some(named) = first.as_ref().and_then(|record| csv_text::named_delimiter(&record.bytes)) {
            self.delimiter = Some(named);
            self.scanner.set_delimiter(named);
            *first = self.record()?;
        }
        let seen = self.delimiter.or_else(|| first.as_ref().map(|record| csv_text::delimiter_of(&record.bytes)));
        let delimiter = seen.unwrap_or(b',');
        self.delimiter = Some(delimiter);
        self.scanner.set_delimiter(delimiter);
        Ok(delimiter)
    }

    fn items(&mut self) -> Result<Option<PositionedItem>, Problem> {
        let is_first = self.line == 1;
        let mut record = self.record()?;
        let delimiter = match self.delimiter {
            Some(delimiter) if !is_first => delimiter,
            _ => self.delimiter(&mut record)?,
        };
        if self.names.is_none() {
            let Some(Record { line, bytes }) = record else {
                return Err(Problem::new(Code::Empty, "", "is empty: it has no first line with the names of columns"));
            };
            let cells = csv_text::text_cells(&bytes, delimiter).map_err(|problem| at_line(line, problem))?;
            let names = csv_text::head(&cells).map_err(|mut problems| at_line(line, problems.swap_remove(0)))?;
            if let Some(missing) = self.required.iter().find(|required| !names.contains(required)) {
                let text = format!("has no column `{missing}`, but {}", shown(&names));
                return Err(at_line(line, Problem::syntax("csv", "", text)));
            }
            self.names = Some(names.into());
            record = self.record()?;
        }
        let names = self.names.clone().unwrap_or_default();
        loop {
            let Some(Record { line, bytes }) = record else { return Ok(None) };
            let cells = csv_text::text_cells(&bytes, delimiter);
            let line_of = line_number(line);
            match cells.and_then(|cells| csv_text::fitted(cells, names.len())) {
                Ok(Some(cells)) => {
                    let cells = cells.into_iter().map(Cell::Text).collect();
                    return Ok(Some(PositionedItem { line: line_of, item: Item::Cells { names, cells } }));
                }
                Ok(None) => record = self.record()?,
                Err(problem) => {
                    let item = Item::Unreadable { problem: at_line(line, problem), text: bytes };
                    return Ok(Some(PositionedItem { line: line_of, item }));
                }
            }
        }
    }
}

fn at_line(line: u64, problem: Problem) -> Problem {
    Problem { line: line_number(line), ..problem }
}

/// The first column names, for messages.
fn shown(names: &[String]) -> String {
    let first: Vec<String> = names.iter().take(20).map(|name| name.chars().take(60).collect()).collect();
    first.join(", ")
}

fn unclosed() -> Problem {
    Problem::syntax("csv", "", "has a quote that is never closed, so the rest cannot be read")
        .hint("close it, or double a quote that belongs to the text of a quoted cell")
}

impl Iterator for Records {
    type Item = Result<PositionedItem, Problem>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let record = self.items().transpose();
        self.ended = !matches!(record, Some(Ok(_)));
        record
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Format, Layout, layout, of_text};
    use super::*;

    fn check(text: &[u8], expected: &str) {
        let shown: Vec<String> = of_text(&layout(Format::Csv, ""), text)
            .into_iter()
            .map(|found| match found {
                Ok(PositionedItem { item: Item::Unreadable { problem, .. }, .. }) => format!("! {problem}"),
                Ok(PositionedItem { line, item: Item::Cells { cells, .. } }) => {
                    let cells: Vec<&str> = cells.iter().filter_map(|cell| cell.text().expect("text")).collect();
                    format!("{}:{}", line.unwrap_or(0), cells.join("|"))
                }
                Ok(other) => panic!("{other:?}"),
                Err(problem) => format!("! {problem}"),
            })
            .collect();
        assert_eq!(shown.join(" "), expected);
    }

    #[test]
    fn records_have_the_columns_of_the_head() {
        check(b"a,b\r\n1,2\r\n3,\"x, \"\"y\"\"\nz\"\n4,5", "2:1|2 3:3|x, \"y\"\nz 5:4|5");
        check(b"a,b\n\n1,\"2\"\r\n\r\n", "3:1|2");
        check(b"\xef\xbb\xbfa\n1\n", "2:1");
        check(b"a,b\n", "");
        check(b"", "! is empty: it has no first line with the names of columns");
        check(b"a,b\n1\n1,2\n", "! 2: has 1 cells, but there are 2 columns 3:1|2");
        check(b"a,a\n1,2\n", "! 1: a: is a column twice");
        check(b"a\n\xff\n1\n", "! 2: [0]: is not text in UTF-8; name its encoding, such as `windows-1252` 3:1");
        check(&[b"a\n".as_slice(), &b"\r\n".repeat(100_000), b"1\n"].concat(), "100002:1");
    }

    #[test]
    fn a_quote_that_is_never_closed_takes_no_memory() {
        let layout = Layout { item_bytes_max: 100, ..layout(Format::Csv, "") };
        let text = format!("a\n1\n\"{}", "x".repeat(10 << 20));
        let found = of_text(&layout, text.as_bytes());
        assert!(found[1].as_ref().expect_err("long").message.contains("never closed"), "{:?}", found[1]);
    }

    #[test]
    fn d_lines_end_with_cr_alone_too() {
        check(b"id,note\r1,first\r2,second\r", "2:1|first 3:2|second");
        check(b"id,note\r1,\"a\rb\"\r\r2,c", "2:1|a\rb 5:2|c");
        check(b"id\r\n1\r2\n3", "2:1 3:2 4:3");
    }

    #[test]
    fn d_a_quote_that_is_never_closed_is_found_with_its_line() {
        let unclosed = "has a quote that is never closed, so the rest cannot be read; \
                        close it, or double a quote that belongs to the text of a quoted cell";
        check(b"a,b\n1,2\n3,\"x\n4,5\n", &format!("2:1|2 ! 3: {unclosed}"));
        check(b"a,\"b\n1,2\n", &format!("! 1: {unclosed}"));
    }

    #[test]
    fn d_the_delimiter_is_declared_or_detected() {
        check(b"a;b\n1,5;2\n", "2:1,5|2");
        check(b"a\tb\n1\t2\n", "2:1|2");
        check(b"sep=;\r\na;b\r\n1;2\r\n", "3:1|2");
        check(b"sep=|\na|\"b,c\"\n1|2\n", "3:1|2");
        check(b"a,b,\n1,2,\n3,4\n,,\n", "2:1|2 3:3|4");
        check(b"a, b \n5\" pipe,\"\"\"q\"\"\"\n", "2:5\" pipe|\"q\"");
        check(b"a,,b\n1,2,3\n", "! 1: has no name for column 2 in its header");
        check(b"\n\n", "! is empty: it has no first line with the names of columns");
        check(
            b"a,b\n1,\0\n2,x\n",
            "! 2: [1]: has the character NUL; is it UTF-16? then name the encoding, or begin it with a byte order mark 3:2|x",
        );
        let utf16: Vec<u8> = "\u{feff}a;ö\r\n1;ß\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        check(&utf16, "2:1|ß");
        let latin = Layout { encoding: Some("windows-1252".to_owned()), ..layout(Format::Csv, "") };
        let found = of_text(&latin, b"a;b\n1;\x80\xf6\n");
        assert!(format!("{found:?}").contains("€ö"), "{found:?}");
    }
}
