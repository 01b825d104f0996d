//! Splits a byte stream into blocks of whole lines, in bounded memory.

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use tocsin_model::csv_text::Scanner;

/// Anything, as the source of an error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Maximum bytes of a line.
pub(crate) const LINE_BYTES_MAX: usize = 1024 * 1024;

/// Line separator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lines {
    /// Every line feed.
    Plain,
    /// Every line break outside of double quotes: records of RFC 4180, whose lines end with LF, CRLF or CR.
    Quoted,
}

/// A piece of the stream.
#[derive(Debug, PartialEq)]
pub(crate) enum Block {
    /// Whole lines.
    Lines {
        /// The number of the first, from 1.
        first: u64,
        /// Their bytes; only the very last may lack its line break.
        bytes: Bytes,
    },
    /// A line longer than [`LINE_BYTES_MAX`]; it is skipped.
    TooLong {
        /// Its number.
        line: u64,
    },
    /// A record with an unclosed quote, which contains the rest of the stream.
    Unclosed {
        /// The number of its first line.
        line: u64,
    },
}

/// Reads blocks of up to `lines_max` lines, or about a mebibyte.
pub(crate) struct Blocks<S> {
    chunks: S,
    lines_max: usize,
    buffer: BytesMut,
    /// The number of the line at the start of the buffer.
    line: u64,
    /// Progress of the scan in the buffer: end of the last whole line, number of lines and line feeds, and whether a
    /// quote is open.
    scanned: usize,
    whole: usize,
    count: usize,
    feeds: u64,
    feeds_open: u64,
    /// Finds the ends of records of CSV; `None`: every line feed is an end.
    scanner: Option<Scanner>,
    /// First line of a record that is skipped because of its length.
    skipping: Option<u64>,
    ended: bool,
}

impl<S: Stream<Item = Result<Bytes, BoxError>> + Unpin> Blocks<S> {
    pub(crate) fn new(chunks: S, kind: Lines, lines_max: usize) -> Self {
        Blocks {
            chunks,
            scanner: (kind == Lines::Quoted).then(|| Scanner::new(None)),
            lines_max,
            buffer: BytesMut::new(),
            line: 1,
            scanned: 0,
            whole: 0,
            count: 0,
            feeds: 0,
            feeds_open: 0,
            skipping: None,
            ended: false,
        }
    }

    /// The first record alone, with any delimiter.
    pub(crate) async fn next_record(&mut self) -> Option<Result<Block, BoxError>> {
        let lines_max = std::mem::replace(&mut self.lines_max, 1);
        let next = self.next().await;
        self.lines_max = lines_max;
        next
    }

    /// Names the delimiter of the records that follow.
    pub(crate) fn set_delimiter(&mut self, delimiter: u8) {
        if let Some(scanner) = &mut self.scanner {
            scanner.set_delimiter(delimiter);
        }
    }

    /// The next block; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Result<Block, BoxError>> {
        loop {
            self.scan();
            if let Some(line) = self.skipping {
                // The end of the line that was too long, or nothing of interest.
                let found = self.count > 0;
                if found || !self.ended {
                    let end = if found { self.whole } else { self.buffer.len() };
                    self.line += self.feeds + if found { 0 } else { self.feeds_open };
                    let _ = self.buffer.split_to(end);
                    (self.scanned, self.whole, self.count, self.feeds, self.feeds_open) = (0, 0, 0, 0, 0);
                    if found {
                        self.skipping = None;
                        continue;
                    }
                } else {
                    self.buffer.clear();
                    self.skipping = None;
                    let is_open = self.scanner.as_ref().is_some_and(Scanner::is_quoted);
                    return is_open.then_some(Ok(Block::Unclosed { line }));
                }
            } else if self.count >= self.lines_max || (self.count > 0 && self.buffer.len() >= LINE_BYTES_MAX) {
                return Some(Ok(self.cut(self.whole)));
            } else if self.buffer.len() - self.whole > LINE_BYTES_MAX {
                if self.count > 0 {
                    return Some(Ok(self.cut(self.whole)));
                }
                let line = self.line;
                self.skipping = Some(line);
                self.line += self.feeds_open;
                self.buffer.clear();
                (self.scanned, self.feeds_open) = (0, 0);
                return Some(Ok(Block::TooLong { line }));
            } else if self.ended {
                let (end, is_open) = (self.buffer.len(), self.scanner.as_ref().is_some_and(Scanner::is_quoted));
                if is_open && self.count > 0 {
                    return Some(Ok(self.cut(self.whole)));
                }
                if end == 0 {
                    return None;
                }
                let line = self.line;
                let block = self.cut(end);
                return Some(Ok(if is_open { Block::Unclosed { line } } else { block }));
            }
            match self.chunks.next().await {
                Some(Ok(chunk)) => self.buffer.extend_from_slice(&chunk),
                Some(Err(error)) => return Some(Err(error)),
                None => self.ended = true,
            }
        }
    }

    /// Scans new data, up to as many lines as a block takes (one, while skipping).
    fn scan(&mut self) {
        let requested = if self.skipping.is_some() { 1 } else { self.lines_max };
        while self.count < requested && self.scanned < self.buffer.len() {
            let rest = &self.buffer[self.scanned..];
            let (end, feeds) = match &mut self.scanner {
                None => (rest.iter().position(|byte| *byte == b'\n').map(|at| at + 1), 1),
                Some(scanner) => (scanner.scan(rest), scanner.take_breaks()),
            };
            match end {
                None => {
                    self.scanned = self.buffer.len();
                    self.feeds_open += if self.scanner.is_some() { feeds } else { 0 };
                    return;
                }
                Some(length) => {
                    self.scanned += length;
                    self.whole = self.scanned;
                    self.count += 1;
                    self.feeds += std::mem::take(&mut self.feeds_open) + feeds;
                }
            }
        }
    }

    fn cut(&mut self, end: usize) -> Block {
        let first = self.line;
        self.line += self.feeds;
        let bytes = self.buffer.split_to(end).freeze();
        self.rest_scan();
        Block::Lines { first, bytes }
    }

    /// The part behind the last whole line is scanned again: it is short.
    fn rest_scan(&mut self) {
        (self.scanned, self.whole, self.count, self.feeds, self.feeds_open) = (0, 0, 0, 0, 0);
        if let Some(scanner) = &mut self.scanner {
            scanner.start_anew();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn blocks(chunks: &[&str], kind: Lines, lines_max: usize) -> Vec<String> {
        let stream =
            futures_util::stream::iter(chunks.iter().map(|chunk| Ok(Bytes::copy_from_slice(chunk.as_bytes()))));
        let mut blocks = Blocks::new(stream, kind, lines_max);
        let mut found = Vec::new();
        while let Some(block) = blocks.next().await {
            found.push(match block.expect("no error") {
                Block::Lines { first, bytes } => format!("{first}:{}", String::from_utf8_lossy(&bytes)),
                Block::TooLong { line } => format!("{line} too long"),
                Block::Unclosed { line } => format!("{line} unclosed"),
            });
        }
        found
    }

    #[tokio::test]
    async fn lines_are_cut_wherever_the_chunks_end() {
        let expected = vec!["1:a\nbc\n", "3:d\ne"];
        for chunks in [&["a\nbc\nd\ne"][..], &["a", "\n", "b", "c\nd", "\ne"], &["a\nb", "c\n", "", "d\ne"]] {
            assert_eq!(blocks(chunks, Lines::Plain, 2).await, expected);
        }
        assert_eq!(blocks(&[], Lines::Plain, 2).await, Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_quoted_line_feed_does_not_end_a_record() {
        let found = blocks(&["a,\"b\nc", "\"\nd,", "e\nf,g\n"], Lines::Quoted, 1).await;
        assert_eq!(found, ["1:a,\"b\nc\"\n", "3:d,e\n", "4:f,g\n"]);
    }

    #[tokio::test]
    async fn a_line_too_long_is_passed_over_and_counted() {
        let long = "x".repeat(LINE_BYTES_MAX + 5);
        let found = blocks(&["a\n", &long, &long, "\nb\nc"], Lines::Plain, 1).await;
        assert_eq!(found, ["1:a\n", "2 too long", "3:b\n", "4:c"]);
        assert_eq!(blocks(&[&long], Lines::Plain, 1).await, ["1 too long"]);
    }

    #[tokio::test]
    async fn d_records_end_with_any_line_break_and_an_open_quote_is_found() {
        for size in 1..20 {
            let text = "a,b\r1,\"x\ry\"\r2,5\" pipe\r\n3,\"open\n4,z\n";
            let chunks: Vec<String> =
                text.as_bytes().chunks(size).map(|piece| String::from_utf8_lossy(piece).into_owned()).collect();
            let chunks: Vec<&str> = chunks.iter().map(String::as_str).collect();
            let found = blocks(&chunks, Lines::Quoted, 1).await;
            assert_eq!(found, ["1:a,b\r", "2:1,\"x\ry\"\r", "4:2,5\" pipe\r\n", "5 unclosed"], "{size}");
        }
        let long = format!("1,\"{}\n", "x".repeat(2 * LINE_BYTES_MAX));
        assert_eq!(blocks(&["a,b\n", &long, "2,b\n"], Lines::Quoted, 1).await, ["1:a,b\n", "2 too long", "2 unclosed"]);
    }
}
