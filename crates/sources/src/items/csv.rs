use std::{
    io::Read,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use csv::{ByteRecord, Reader, ReaderBuilder};
use tocsin_model::problem::Problem;

use super::{Item, Layout, Placed, Text, line_number, too_long};

/// What the reader takes from the text at once.
const BUFFER_BYTES: usize = 8 << 10;

/// Records with the names of their columns (RFC 4180; lines end with LF or CRLF, a byte order mark is passed over).
pub(super) struct Records {
    reader: Reader<Measured>,
    /// Bytes that were read since the last record.
    measured: Arc<AtomicUsize>,
    bytes_max: usize,
    names: Option<Arc<[String]>>,
    ended: bool,
}

/// Refuses to read more for one record than it may have, so that a quote that is never closed takes no memory.
struct Measured {
    text: Text,
    measured: Arc<AtomicUsize>,
    bytes_max: usize,
}

impl Read for Measured {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let before = self.measured.load(Ordering::Relaxed);
        if before > self.bytes_max + BUFFER_BYTES {
            return Err(std::io::Error::from(std::io::ErrorKind::FileTooLarge));
        }
        let count = self.text.read(buffer)?;
        self.measured.store(before + count, Ordering::Relaxed);
        Ok(count)
    }
}

impl Records {
    pub fn new(text: Text, layout: &Layout) -> Records {
        let measured = Arc::new(AtomicUsize::new(0));
        let text = Measured { text, measured: measured.clone(), bytes_max: layout.item_bytes_max };
        let reader = ReaderBuilder::new()
            .delimiter(layout.delimiter)
            .has_headers(false)
            .flexible(true)
            // The reader's own way with CRLF counts lines wrong.
            .terminator(csv::Terminator::Any(b'\n'))
            .buffer_capacity(BUFFER_BYTES)
            .from_reader(text);
        let names = (!layout.columns.is_empty()).then(|| layout.columns.clone().into());
        Records { reader, measured, bytes_max: layout.item_bytes_max, names, ended: false }
    }

    fn cells(&mut self) -> Result<Option<(Option<u32>, Vec<String>)>, Problem> {
        let mut record = ByteRecord::new();
        self.measured.store(0, Ordering::Relaxed);
        let read = self.reader.read_byte_record(&mut record);
        let line = line_number(record.position().map_or(0, csv::Position::line));
        let problem = |problem: Problem| Problem { line, ..problem };
        match read {
            Ok(false) => return Ok(None),
            Ok(true) => {}
            Err(error) => {
                let too_large = matches!(error.kind(), csv::ErrorKind::Io(error) if error.kind() == std::io::ErrorKind::FileTooLarge);
                return Err(problem(match too_large {
                    true => too_long(self.bytes_max),
                    false => Problem::at("", format!("cannot be read: {error}")),
                }));
            }
        }
        if record.len() == 1 && record[0] == *b"\r" {
            return self.cells();
        }
        let mut cells = Vec::with_capacity(record.len());
        let last = record.len().saturating_sub(1);
        for (at, cell) in record.iter().enumerate() {
            let cell = if at == last { cell.strip_suffix(b"\r").unwrap_or(cell) } else { cell };
            match std::str::from_utf8(cell) {
                Ok(text) => cells.push(text.to_owned()),
                Err(_) => return Err(problem(Problem::at(format!("[{at}]"), "is not text in UTF-8"))),
            }
        }
        Ok(Some((line, cells)))
    }

    fn names(&mut self) -> Result<Option<Arc<[String]>>, Problem> {
        if let Some(names) = &self.names {
            return Ok(Some(names.clone()));
        }
        let Some((line, names)) = self.cells()? else { return Ok(None) };
        if let Some(twice) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            let problem = Problem::at("", format!("has the column `{}` twice in its head", twice.1));
            return Err(Problem { line, ..problem });
        }
        let names: Arc<[String]> = names.into();
        self.names = Some(names.clone());
        Ok(Some(names))
    }

    fn record(&mut self) -> Result<Option<Placed>, Problem> {
        let Some(names) = self.names()? else { return Ok(None) };
        let Some((line, cells)) = self.cells()? else { return Ok(None) };
        if cells.len() != names.len() {
            let message = format!("has {} cells, but there are {} columns", cells.len(), names.len());
            return Err(Problem { line, ..Problem::at("", message) });
        }
        let cells = cells.into_iter().map(Some).collect();
        Ok(Some(Placed { line, item: Item::Cells { names, cells } }))
    }
}

impl Iterator for Records {
    type Item = Result<Placed, Problem>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let record = self.record().transpose();
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
                Ok(Placed { line, item: Item::Cells { cells, .. } }) => {
                    let cells: Vec<String> = cells.into_iter().flatten().collect();
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
        check(b"a,b\n\n1,\"2\"\r\n\r\n", "2:1|2");
        check(b"\xef\xbb\xbfa\n1\n", "2:1");
        check(b"a,b\n", "");
        check(b"", "");
        check(b"a,b\n1\n", "! 2: has 1 cells, but there are 2 columns");
        check(b"a,a\n1,2\n", "! 1: has the column `a` twice in its head");
        check(b"a\n\xff\n", "! 2: [0]: is not text in UTF-8");
    }

    #[test]
    fn a_quote_that_is_never_closed_takes_no_memory() {
        let layout = Layout { item_bytes_max: 100, ..layout(Format::Csv, "") };
        let text = format!("a\n1\n\"{}", "x".repeat(10 << 20));
        let found = of_text(&layout, text.as_bytes());
        assert!(found[1].as_ref().expect_err("long").message.contains("longer than 100 bytes"), "{:?}", found[1]);
    }
}
