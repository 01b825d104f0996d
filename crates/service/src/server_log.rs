//! The newest lines of the server's log, in memory, with secrets masked.

mod redact; // masks secrets in text

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;
use tocsin_model::time::Timestamp;

use redact::{is_secret_name, masked};

/// Lines that are kept.
pub const LINES_MAX: usize = 10_000;
/// Bytes of a message or value that are kept.
const TEXT_BYTES_MAX: usize = 4_096;
/// Fields of a line that are kept.
const FIELDS_MAX: usize = 32;

/// Severity of a line, the highest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// A failure.
    Error,
    /// Something that needs attention.
    Warn,
    /// A decision or a change.
    Info,
    /// Details.
    Debug,
    /// All details.
    Trace,
}

impl LogLevel {
    /// All levels, the highest first.
    pub const ALL: [LogLevel; 5] = [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug, LogLevel::Trace];

    /// Canonical spelling.
    pub fn word(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Number, from 1 since the start of the process.
    pub number: u64,
    /// Time.
    pub at: Timestamp,
    /// Severity.
    pub level: LogLevel,
    /// Module that wrote it.
    pub target: String,
    /// Message.
    pub message: String,
    /// Fields by name.
    pub fields: BTreeMap<String, String>,
}

/// Lines to return.
#[derive(Debug, Clone, Default)]
pub struct LogQuery {
    /// Lines of this level and higher ones; `None`: all.
    pub level: Option<LogLevel>,
    /// Lines whose message, target or field contains this text, in any case.
    pub contains: Option<String>,
    /// Lines after this number; `None`: the newest ones.
    pub after: Option<u64>,
    /// Maximum number of lines.
    pub limit: usize,
}

/// Lines of the log, oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPage {
    /// The lines.
    pub lines: Vec<LogLine>,
    /// Number of the oldest line in memory; `None`: there is none.
    pub first: Option<u64>,
    /// Number up to which all lines were looked at: continue after it.
    pub last: u64,
}

/// Ring of the newest lines.
#[derive(Debug, Default)]
pub struct ServerLog(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<LogLine>,
    written: u64,
}

impl ServerLog {
    /// Appends a line. Secrets are masked, and long texts cut.
    pub fn push(
        &self,
        at: Timestamp,
        level: LogLevel,
        target: &str,
        message: &str,
        fields: impl IntoIterator<Item = (String, String)>,
    ) {
        let field = |(name, value): (String, String)| {
            let value = if is_secret_name(&name) { "********".to_owned() } else { masked(cut(&value)) };
            (name, value)
        };
        let fields = fields.into_iter().take(FIELDS_MAX).map(field).collect();
        let (target, message) = (target.to_owned(), masked(cut(message)));
        let mut ring = self.0.lock();
        ring.written += 1;
        let number = ring.written;
        if ring.lines.len() >= LINES_MAX {
            ring.lines.pop_front();
        }
        ring.lines.push_back(LogLine { number, at, level, target, message, fields });
    }

    /// The lines that a query selects.
    pub fn page(&self, query: &LogQuery) -> LogPage {
        let contains = query.contains.as_ref().map(|text| text.to_lowercase());
        let is_in = |text: &str, part: &str| text.to_lowercase().contains(part);
        let is_selected = |line: &&LogLine| {
            query.level.is_none_or(|level| line.level <= level)
                && contains.as_ref().is_none_or(|part| {
                    is_in(&line.message, part)
                        || is_in(&line.target, part)
                        || line.fields.values().any(|value| is_in(value, part))
                })
        };
        let ring = self.0.lock();
        let first = ring.lines.front().map(|line| line.number);
        let Some(after) = query.after else {
            let mut lines: Vec<LogLine> =
                ring.lines.iter().rev().filter(is_selected).take(query.limit).cloned().collect();
            lines.reverse();
            return LogPage { lines, first, last: ring.written };
        };
        let start = ring.lines.partition_point(|line| line.number <= after);
        let lines: Vec<LogLine> = ring.lines.range(start..).filter(is_selected).take(query.limit).cloned().collect();
        let last = match lines.last() {
            Some(last) if lines.len() == query.limit => last.number,
            _ => ring.written,
        };
        LogPage { lines, first, last }
    }
}

fn cut(text: &str) -> &str {
    match text.len() > TEXT_BYTES_MAX {
        true => &text[..text.floor_char_boundary(TEXT_BYTES_MAX)],
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(page: &LogPage) -> Vec<u64> {
        page.lines.iter().map(|line| line.number).collect()
    }

    #[test]
    fn the_ring_keeps_the_newest_lines_and_continues_after_one() {
        let log = ServerLog::default();
        for at in 1..=LINES_MAX as u64 + 5 {
            let level = if at % 2 == 0 { LogLevel::Info } else { LogLevel::Error };
            log.push(Timestamp(0), level, "tocsin_test", &format!("line {at}"), []);
        }
        let newest = LINES_MAX as u64 + 5;
        let page = log.page(&LogQuery { limit: 2, ..LogQuery::default() });
        assert_eq!((numbers(&page), page.first, page.last), (vec![newest - 1, newest], Some(6), newest));
        let errors = |after, limit| LogQuery { level: Some(LogLevel::Error), after, limit, ..LogQuery::default() };
        let page = log.page(&errors(Some(0), 2));
        assert_eq!((numbers(&page), page.last), (vec![7, 9], 9));
        let page = log.page(&errors(Some(newest - 1), 2));
        assert_eq!((numbers(&page), page.last), (vec![newest], newest));
        let page = log.page(&LogQuery { contains: Some("LINE 10001".to_owned()), limit: 9, ..LogQuery::default() });
        assert_eq!(numbers(&page), [10_001]);
    }

    #[test]
    fn lines_are_masked_and_cut() {
        let log = ServerLog::default();
        let long = "x".repeat(TEXT_BYTES_MAX + 10);
        let fields = [("api_key".to_owned(), "abc".to_owned()), ("long".to_owned(), long)];
        log.push(Timestamp(0), LogLevel::Warn, "tocsin_test", "sent Authorization: Bearer abcdef", fields);
        let line = log.page(&LogQuery { limit: 1, ..LogQuery::default() }).lines.remove(0);
        assert_eq!(line.message, "sent Authorization: Bearer ********");
        assert_eq!((line.fields["api_key"].as_str(), line.fields["long"].len()), ("********", TEXT_BYTES_MAX));
    }
}
