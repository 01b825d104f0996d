//! Reading of lines, and what each kind of line defines: its columns, its checks, its store.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::Stream;
use tocsin_model::{
    charset::CharsetError,
    csv_text::{self, Scanner},
    field::FieldType,
    json::{self, VALUES_MAX},
    problem::{Code, Problem},
    time::Timestamp,
    value::Value,
};
use tocsin_store::error::StoreError;

use super::results::RejectedLine;
use crate::{
    Service,
    error::ServiceError,
    lines::{Block, Blocks, BoxError, LINE_BYTES_MAX},
};

/// The header of CSV.
pub(super) struct Header {
    names: Vec<String>,
    delimiter: u8,
}

/// Result of storing an item.
pub(super) type Written = Result<(), Problem>;

pub(super) fn written<T>(stored: Result<T, StoreError>) -> Written {
    stored.map(drop).map_err(|error| {
        let code = match &error {
            StoreError::Missing(_) => Code::UnknownReference,
            StoreError::Taken(_) => Code::Duplicate,
            StoreError::Changed(_) | StoreError::Fenced(_) => Code::Conflict,
            StoreError::Full(_) | StoreError::Unavailable(_) => Code::Unavailable,
            StoreError::Damaged(_) => Code::DamagedData,
        };
        Problem::new(code, "", error.to_string())
    })
}

/// Returns the parsed item, or all problems of the line.
pub(super) fn joined<T>(mut problems: Vec<Problem>, checked: Result<T, Vec<Problem>>) -> Result<T, Vec<Problem>> {
    match checked {
        Ok(item) if problems.is_empty() => Ok(item),
        Ok(_) => Err(problems),
        Err(found) => {
            problems.extend(found);
            Err(problems)
        }
    }
}

/// The lines of a block.
pub(super) struct Read<T> {
    pub(super) items: Vec<(u64, T)>,
    pub(super) refusals: Vec<RejectedLine>,
    pub(super) warnings: Vec<RejectedLine>,
}

impl<T> Read<T> {
    fn new() -> Self {
        Read { items: Vec::new(), refusals: Vec::new(), warnings: Vec::new() }
    }

    fn take(&mut self, line: u64, read: Result<ReadLine<T>, Vec<Problem>>) {
        match read {
            Ok((item, warnings)) => {
                self.items.push((line, item));
                if !warnings.is_empty() {
                    self.warnings.push(RejectedLine { line, problems: warnings });
                }
            }
            Err(problems) => self.refusals.push(RejectedLine { line, problems }),
        }
    }
}

/// The item of a line, with its warnings.
pub(super) type ReadLine<T> = (T, Vec<Problem>);

/// An importable kind of line, and how it is stored.
pub(super) trait LineKind: Send + Sync + 'static {
    type Item: Send + 'static;
    /// Facet of the records that stores the items.
    type Store: ?Sized + Send + Sync + 'static;

    fn facet(service: &Service) -> Arc<Self::Store>;

    fn read_json(&self, line: &[u8]) -> Result<ReadLine<Self::Item>, Vec<Problem>>;
    /// The problem of a column of this name, if any. `exported`: the header is of an export.
    fn check_column(&self, name: &str, exported: bool) -> Option<Problem>;
    fn read_cells(&self, header: &[String], cells: &[String]) -> Result<ReadLine<Self::Item>, Vec<Problem>>;
    fn store(
        records: &Self::Store,
        items: Vec<Self::Item>,
        now: Timestamp,
    ) -> impl Future<Output = Result<Vec<Written>, StoreError>> + Send;
}

pub(super) fn read_ndjson<L: LineKind>(kind: &L, first: u64, bytes: &[u8]) -> Read<L::Item> {
    let mut read = Read::new();
    for (line, text) in (first..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
        let text = text.trim_ascii();
        if text.is_empty() {
            continue;
        }
        let read_line = || {
            json::check(text, VALUES_MAX).map_err(|problem| vec![in_line(problem)])?;
            kind.read_json(json::without_mark(text))
        };
        read.take(line, read_line());
    }
    read
}

pub(super) fn read_csv<L: LineKind>(kind: &L, header: &Header, first: u64, bytes: &[u8]) -> Read<L::Item> {
    let mut read = Read::new();
    let mut scanner = Scanner::new(Some(header.delimiter));
    let (mut line, mut rest) = (first, bytes);
    while !rest.is_empty() {
        let (record, after) = rest.split_at(scanner.scan(rest).unwrap_or(rest.len()));
        let at = line;
        (line, rest) = (line + scanner.take_breaks(), after);
        if record.trim_ascii().is_empty() {
            continue;
        }
        let cells = csv_text::text_cells(record, header.delimiter);
        let cells = match cells.and_then(|cells| csv_text::fitted(cells, header.names.len())) {
            Ok(Some(cells)) => cells,
            Ok(None) => continue,
            Err(problem) => {
                read.refusals.push(RejectedLine { line: at, problems: vec![problem] });
                continue;
            }
        };
        read.take(at, kind.read_cells(&header.names, &cells));
    }
    read
}

/// The first non-empty record.
async fn first_record<S: Stream<Item = Result<Bytes, BoxError>> + Unpin>(
    blocks: &mut Blocks<S>,
) -> Result<(u64, Bytes), ServiceError> {
    loop {
        let problem = match blocks.next_record().await {
            Some(Ok(Block::Lines { bytes, .. })) if bytes.trim_ascii().is_empty() => continue,
            Some(Ok(Block::Lines { first, bytes })) => return Ok((first, bytes)),
            Some(Ok(Block::TooLong { line })) => {
                Problem::new(Code::TooLong, "", format!("is longer than {LINE_BYTES_MAX} bytes"))
                    .param("limit", LINE_BYTES_MAX)
                    .param("unit", "bytes")
                    .position(position(line), 1)
            }
            Some(Ok(Block::Unclosed { line })) => unclosed().position(position(line), 1),
            Some(Err(error)) => return Err(broken(error)),
            None => Problem::new(Code::Required, "", "has no header row").position(1, 1),
        };
        return Err(ServiceError::Invalid(vec![problem]));
    }
}

/// The header, possibly after a line that names the delimiter. Without such a line the delimiter is detected in the
/// header.
pub(super) async fn read_header<L: LineKind, S: Stream<Item = Result<Bytes, BoxError>> + Unpin>(
    blocks: &mut Blocks<S>,
    kind: Arc<L>,
) -> Result<Header, ServiceError> {
    let (mut line, mut record) = first_record(blocks).await?;
    let delimiter = match csv_text::named_delimiter(&record) {
        Some(named) => {
            blocks.set_delimiter(named);
            (line, record) = first_record(blocks).await?;
            named
        }
        None => csv_text::delimiter_of(&record),
    };
    blocks.set_delimiter(delimiter);
    // A header has up to half a million names, and the closest known name is computed for each unknown one.
    let checked = tokio::task::spawn_blocking(move || check_header(&*kind, line, &record, delimiter));
    checked.await.map_err(|error| ServiceError::Unavailable(error.into()))?
}

fn check_header<L: LineKind>(kind: &L, line: u64, record: &[u8], delimiter: u8) -> Result<Header, ServiceError> {
    let cells = csv_text::text_cells(record, delimiter).map_err(|problem| vec![problem]);
    let mut problems = Vec::new();
    let names = match cells.and_then(|cells| csv_text::head(&cells)) {
        Ok(names) => names,
        Err(found) => {
            problems = found;
            Vec::new()
        }
    };
    let exported = names.iter().any(|name| name == MARK_OF_EXPORTS);
    problems.extend(names.iter().filter_map(|name| kind.check_column(name, exported)));
    match problems.is_empty() {
        true => Ok(Header { names, delimiter }),
        false => {
            let problems = problems.into_iter().map(|problem| problem.position(position(line), 1)).collect();
            Err(ServiceError::Invalid(problems))
        }
    }
}

fn position(line: u64) -> u32 {
    u32::try_from(line).unwrap_or(u32::MAX)
}

/// Columns that an export writes and an import ignores.
pub(super) const PASSED_OVER: [&str; 3] = ["created_at", "updated_at", MARK_OF_EXPORTS];
/// The member or column that marks a line as written by an export.
const MARK_OF_EXPORTS: &str = "revision";

pub(super) fn is_exported(header: &[String], cells: &[String]) -> bool {
    header.iter().zip(cells).any(|(name, cell)| name == MARK_OF_EXPORTS && !cell.is_empty())
}

pub(super) fn unknown_column<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Problem {
    let known: Vec<&str> = known.into_iter().collect();
    let problem = Problem::new(Code::UnknownMember, name, "is not a column that can be imported");
    match tocsin_model::problem::closest(name, known.iter().copied()) {
        Some(meant) => problem.hint(format!("did you mean `{meant}`?")),
        None => problem.hint(format!("columns are {}", known.join(", "))),
    }
}

pub(super) fn boolean(path: &str, cell: &str, problems: &mut Vec<Problem>) -> Option<bool> {
    match FieldType::Boolean.read_text(cell) {
        Value::Boolean(value) => Some(value),
        _ => {
            problems.push(Problem::new(Code::WrongType, path, format!("should be `true` or `false`, not `{cell}`")));
            None
        }
    }
}

/// Reason why a stream ended early: invalid encoding, or a broken connection.
pub(super) fn broken(error: BoxError) -> ServiceError {
    match error.downcast::<CharsetError>() {
        Ok(error) => {
            ServiceError::from(Problem::new(Code::InvalidFormat, "", error.to_string()).param("format", "charset"))
        }
        Err(error) => ServiceError::BrokenStream(error),
    }
}

pub(super) fn unclosed() -> Problem {
    Problem::syntax("csv", "", "has a quote that is never closed, so this record and all behind it are not read")
        .hint("close it, or double a quote that belongs to the text of a quoted cell")
}

/// The rejection names the line; the position within it keeps only its column.
pub(super) fn in_line(problem: Problem) -> Problem {
    Problem { line: None, ..problem }
}
