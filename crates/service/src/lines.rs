//! Cuts a stream of bytes into blocks of whole lines, in bounded memory.

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};

/// Anything, as the source of an error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Longest line, in bytes.
pub(crate) const LINE_BYTES_MAX: usize = 1024 * 1024;

/// What separates lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lines {
    /// Every line feed.
    Plain,
    /// Every line feed outside of double quotes: a record of RFC 4180.
    Quoted,
}

/// A piece of the stream.
#[derive(Debug, PartialEq)]
pub(crate) enum Block {
    /// Whole lines.
    Lines {
        /// The number of the first, from 1.
        first: u64,
        /// Their bytes; only the very last may lack its line feed.
        bytes: Bytes,
    },
    /// A line that is longer than [`LINE_BYTES_MAX`]; it is passed over.
    TooLong {
        /// Its number.
        line: u64,
    },
}

/// Reads blocks of up to `lines_max` lines, or about a mebibyte.
pub(crate) struct Blocks<S> {
    chunks: S,
    kind: Lines,
    lines_max: usize,
    buffer: BytesMut,
    /// The number of the line at the start of the buffer.
    line: u64,
    /// How far the buffer has been looked through, and what was found: where the last whole line ends, how many there
    /// are, how many line feeds they hold, and whether a quote is open.
    scanned: usize,
    whole: usize,
    count: usize,
    feeds: u64,
    feeds_open: u64,
    quoted: bool,
    skipping: bool,
    ended: bool,
}

impl<S: Stream<Item = Result<Bytes, BoxError>> + Unpin> Blocks<S> {
    pub(crate) fn new(chunks: S, kind: Lines, lines_max: usize) -> Self {
        Blocks {
            chunks,
            kind,
            lines_max,
            buffer: BytesMut::new(),
            line: 1,
            scanned: 0,
            whole: 0,
            count: 0,
            feeds: 0,
            feeds_open: 0,
            quoted: false,
            skipping: false,
            ended: false,
        }
    }

    /// The next block; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Result<Block, BoxError>> {
        loop {
            self.scan();
            if self.skipping {
                // The end of the line that was too long, or nothing of interest.
                let end = if self.count > 0 { self.whole } else { self.buffer.len() };
                let found = self.count > 0;
                if found || !self.ended {
                    self.line += self.feeds;
                    let _ = self.buffer.split_to(end);
                    self.rest_scan();
                    if found {
                        self.skipping = false;
                        continue;
                    }
                } else {
                    self.buffer.clear();
                    return None;
                }
            } else if self.count >= self.lines_max || (self.count > 0 && self.buffer.len() >= LINE_BYTES_MAX) {
                return Some(Ok(self.cut(self.whole)));
            } else if self.buffer.len() - self.whole > LINE_BYTES_MAX {
                if self.count > 0 {
                    return Some(Ok(self.cut(self.whole)));
                }
                let line = self.line;
                self.skipping = true;
                self.line += self.feeds_open;
                self.buffer.clear();
                self.scanned = 0;
                self.feeds_open = 0;
                return Some(Ok(Block::TooLong { line }));
            } else if self.ended {
                let end = self.buffer.len();
                return if end > 0 { Some(Ok(self.cut(end))) } else { None };
            }
            match self.chunks.next().await {
                Some(Ok(chunk)) => self.buffer.extend_from_slice(&chunk),
                Some(Err(error)) => return Some(Err(error)),
                None => self.ended = true,
            }
        }
    }

    /// Looks through what is new, up to as many lines as a block takes (one, while skipping).
    fn scan(&mut self) {
        let wanted = if self.skipping { 1 } else { self.lines_max };
        while self.count < wanted && self.scanned < self.buffer.len() {
            let rest = &self.buffer[self.scanned..];
            let found = match self.kind {
                Lines::Plain => rest.iter().position(|byte| *byte == b'\n'),
                Lines::Quoted => rest.iter().position(|byte| matches!(byte, b'\n' | b'"')),
            };
            let Some(at) = found else {
                self.scanned = self.buffer.len();
                return;
            };
            let is_feed = rest[at] == b'\n';
            self.scanned += at + 1;
            if !is_feed {
                self.quoted = !self.quoted;
                continue;
            }
            self.feeds_open += 1;
            if !self.quoted {
                self.whole = self.scanned;
                self.count += 1;
                self.feeds += std::mem::take(&mut self.feeds_open);
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

    /// What lies behind the last whole line is looked through again: it is short.
    fn rest_scan(&mut self) {
        (self.scanned, self.whole, self.count, self.feeds, self.feeds_open) = (0, 0, 0, 0, 0);
        self.quoted = self.quoted && self.skipping;
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
}
