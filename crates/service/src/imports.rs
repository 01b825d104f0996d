//! Bulk import of subscribers, subscriptions or suppressions from lines: NDJSON, or CSV with a header.
//!
//! A stream of any length is processed in bounded memory. While one block of lines is being stored, the next is read
//! and checked; each block is one commit. A bad line is reported and skipped.
//!
//! A line of an export may be older than the current version of its application. Parts that do not fit that version
//! are skipped with a warning.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use tocsin_model::{
    charset::{self, CharsetError, Syntax, Utf8Decoder},
    csv_text::{self, Scanner},
    field::{FieldType, Fields},
    id::Name,
    json::{self, VALUES_MAX},
    mailbox::MailChannels,
    problem::{Code, Problem, and_more},
    suppression::Suppression,
    time::Timestamp,
    value::Value,
};
use tocsin_pipeline::Compiled;
use tocsin_store::{
    error::StoreError,
    records::{NewSubscriber, NewSubscription, SubscriberStore, SubscriptionStore, SuppressionStore},
};

use crate::{
    Service, csv_cells,
    error::{ServiceError, read_object},
    keys::{Caller, Scope},
    lines::{Block, Blocks, BoxError, LINE_BYTES_MAX, Lines},
    subscribers,
    subscriptions::{self, Basis},
    suppressions,
};

/// Maximum number of lines per commit. Unsorted lines each touch a page of the subscribers' index, so a commit of few
/// lines writes many pages; a block is limited to a mebibyte in any case.
pub const LINES_PER_COMMIT: usize = 10_000;
/// Maximum number of rejected lines reported; all are counted.
pub const REFUSALS_MAX: usize = 1_000;
/// Maximum number of problems reported per line.
const LINE_PROBLEMS_MAX: usize = 10;
/// Maximum number of concurrent imports.
pub const CONCURRENT_MAX: usize = 4;

/// Format of the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line.
    Ndjson,
    /// RFC 4180 with a header row.
    Csv,
}

/// Input of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Format.
    pub format: Format,
    /// Name of the character encoding, such as `windows-1252`. Default: by byte-order mark, else UTF-8.
    pub charset: Option<String>,
}

impl From<Format> for Input {
    fn from(format: Format) -> Input {
        Input { format, charset: None }
    }
}

/// A line that was rejected, or stored with a warning.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RejectedLine {
    /// Line number, from 1; in CSV the header is line 1.
    pub line: u64,
    /// Problems of the line.
    pub problems: Vec<Problem>,
}

/// Result of an import.
#[derive(Debug, Default)]
pub struct Imported {
    /// Non-empty lines, without the header.
    pub lines: u64,
    /// Lines stored.
    pub stored: u64,
    /// Lines rejected.
    pub failed: u64,
    /// The first rejected lines, in order.
    pub refusals: Vec<RejectedLine>,
    /// Lines stored with a warning: a line of an export does not fit the current version of its application in every
    /// part, or a schedule has ended.
    pub warned: u64,
    /// The first of them, in order, with their warnings.
    pub warnings: Vec<RejectedLine>,
    /// Reason why the import ended early. Lines stored before stay stored.
    pub stopped: Option<ServiceError>,
}

impl Imported {
    fn refuse(&mut self, refusals: Vec<RejectedLine>) {
        self.failed += refusals.len() as u64;
        keep_first(&mut self.refusals, refusals);
    }

    fn warn(&mut self, warnings: Vec<RejectedLine>) {
        self.warned += warnings.len() as u64;
        keep_first(&mut self.warnings, warnings);
    }
}

/// Adds lines up to the limit, and truncates the problems of each.
fn keep_first(kept: &mut Vec<RejectedLine>, more: Vec<RejectedLine>) {
    kept.extend(more);
    kept.sort_by_key(|line| line.line);
    kept.truncate(REFUSALS_MAX);
    for line in kept {
        let more = line.problems.len().saturating_sub(LINE_PROBLEMS_MAX);
        if more > 1 {
            line.problems.truncate(LINE_PROBLEMS_MAX);
            line.problems.push(and_more(more));
        }
    }
}

impl Service {
    /// Imports subscribers from lines of [`subscribers::Draft`]s. A line replaces the subscriber of its id.
    ///
    /// # Errors
    /// The scope `subscribers:write` is missing, or [`CONCURRENT_MAX`] imports are running. All other problems are
    /// part of the result.
    pub async fn import_subscribers(
        &self,
        caller: &Caller,
        input: impl Into<Input>,
        chunks: impl Stream<Item = Result<Bytes, BoxError>> + Unpin,
    ) -> Result<Imported, ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let declared = DeclaredAttributes::of(self.pipeline.status().iter().filter_map(|(name, _)| {
            let compiled = self.pipeline.application(name)?;
            Some(compiled.application.attributes.clone())
        }));
        self.import(input.into(), chunks, Arc::new(SubscriberLines { declared, mail: self.mail_channels() })).await
    }

    /// Imports subscriptions from lines of [`subscriptions::Draft`]s. A line with a key replaces the subscription of
    /// its subscriber, class and key. `application` and `class` are defaults for the lines; a line that names others
    /// is rejected.
    ///
    /// # Errors
    /// As [`Service::import_subscribers`]; also if both are given and the class does not exist.
    pub async fn import_subscriptions(
        &self,
        caller: &Caller,
        application: Option<&str>,
        class: Option<&str>,
        input: impl Into<Input>,
        chunks: impl Stream<Item = Result<Bytes, BoxError>> + Unpin,
    ) -> Result<Imported, ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let whole = match (application, class) {
            (Some(application), Some(class)) => Some(self.named_class(application, class)?),
            _ => None,
        };
        let lines = SubscriptionLines {
            application: application.map(str::to_owned),
            class: class.map(str::to_owned),
            whole,
            known: self
                .pipeline
                .status()
                .iter()
                .filter_map(|(name, _)| {
                    let used = subscriptions::Used::of(&self.pipeline, name);
                    Some(KnownApplication::of(&self.pipeline.application(name)?, used))
                })
                .collect(),
            now: self.clock.now(),
        };
        self.import(input.into(), chunks, Arc::new(lines)).await
    }

    /// Imports suppressions from lines of [`suppressions::Draft`]s. A line replaces the suppression of its target.
    ///
    /// # Errors
    /// As [`Service::import_subscribers`].
    pub async fn import_suppressions(
        &self,
        caller: &Caller,
        input: impl Into<Input>,
        chunks: impl Stream<Item = Result<Bytes, BoxError>> + Unpin,
    ) -> Result<Imported, ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let lines = SuppressionLines { origin: caller.key().to_owned(), now: self.clock.now() };
        self.import(input.into(), chunks, Arc::new(lines)).await
    }

    async fn import<L: LineKind>(
        &self,
        input: Input,
        chunks: impl Stream<Item = Result<Bytes, BoxError>> + Unpin,
        kind: Arc<L>,
    ) -> Result<Imported, ServiceError> {
        let _permit = self.imports.try_acquire().map_err(|_| ServiceError::TooMany {
            reason: format!("{CONCURRENT_MAX} imports run already"),
            retry_after: std::time::Duration::from_secs(5),
        })?;
        let Input { format, charset } = input;
        charset::decode(b"", Syntax::Text, charset.as_deref())
            .map_err(|error| ServiceError::invalid(Code::Unsupported, "charset", error.to_string()))?;
        let lines = match format {
            Format::Ndjson => Lines::Plain,
            Format::Csv => Lines::Quoted,
        };
        let mut blocks = Blocks::new(decoded(chunks, charset), lines, LINES_PER_COMMIT);
        let mut imported = Imported::default();
        let mut header: Option<Arc<Header>> = None;
        if format == Format::Csv {
            match read_header(&mut blocks, kind.clone()).await {
                Ok(found) => header = Some(Arc::new(found)),
                Err(error) => return Ok(Imported { stopped: Some(error), ..imported }),
            }
        }
        let mut storing: Option<Storing> = None;
        while let Some(block) = blocks.next().await {
            let mut refuse = |line: u64, problem: Problem| {
                imported.lines += 1;
                imported.refuse(vec![RejectedLine { line, problems: vec![problem] }]);
            };
            let (first, bytes) = match block {
                Ok(Block::Lines { first, bytes }) => (first, bytes),
                Ok(Block::TooLong { line }) => {
                    refuse(
                        line,
                        Problem::new(Code::TooLong, "", format!("is longer than {LINE_BYTES_MAX} bytes"))
                            .param("limit", LINE_BYTES_MAX)
                            .param("unit", "bytes"),
                    );
                    continue;
                }
                Ok(Block::Unclosed { line }) => {
                    refuse(line, unclosed());
                    continue;
                }
                Err(error) => {
                    imported.stopped = Some(broken(error));
                    break;
                }
            };
            let (kind, header) = (kind.clone(), header.clone());
            let reading = tokio::task::spawn_blocking(move || match header {
                Some(header) => read_csv(&*kind, &header, first, &bytes),
                None => read_ndjson(&*kind, first, &bytes),
            });
            let read = match reading.await {
                Ok(read) => read,
                Err(error) => {
                    imported.stopped = Some(ServiceError::Unavailable(error.into()));
                    break;
                }
            };
            imported.lines += read.items.len() as u64 + read.refusals.len() as u64;
            imported.refuse(read.refusals);
            imported.warn(read.warnings);
            if let Some(stored) = storing.take()
                && let Err(error) = finish_storing(stored, &mut imported).await
            {
                imported.stopped = Some(error);
                break;
            }
            if !read.items.is_empty() {
                storing = Some(store::<L>(L::facet(self), read.items, self.clock.now()));
            }
        }
        if let Some(stored) = storing.take()
            && let Err(error) = finish_storing(stored, &mut imported).await
        {
            imported.stopped = Some(error);
        }
        // A stream without lines is the wrong file, or could not be read.
        if imported.lines == 0 && imported.stopped.is_none() {
            let text = match format {
                Format::Ndjson => "has no lines, so nothing was imported",
                Format::Csv => "has no records behind its header, so nothing was imported",
            };
            imported.stopped = Some(ServiceError::invalid(Code::Empty, "", text));
        }
        Ok(imported)
    }
}

/// Converts the stream to UTF-8 without a byte-order mark.
fn decoded(
    chunks: impl Stream<Item = Result<Bytes, BoxError>> + Unpin,
    charset: Option<String>,
) -> impl Stream<Item = Result<Bytes, BoxError>> + Unpin {
    let decoder = Utf8Decoder::new(Syntax::Text, charset);
    Box::pin(stream::unfold(Some((chunks, decoder)), |state| async move {
        let (mut chunks, mut decoder) = state?;
        match chunks.next().await {
            Some(Ok(chunk)) => match decoder.push(&chunk) {
                Ok(text) => Some((Ok(Bytes::from(text)), Some((chunks, decoder)))),
                Err(error) => Some((Err(error.into()), None)),
            },
            Some(Err(error)) => Some((Err(error), None)),
            None => match decoder.finish() {
                Ok(text) => Some((Ok(Bytes::from(text)), None)),
                Err(error) => Some((Err(error.into()), None)),
            },
        }
    }))
}

/// Reason why a stream ended early: invalid encoding, or a broken connection.
fn broken(error: BoxError) -> ServiceError {
    match error.downcast::<CharsetError>() {
        Ok(error) => {
            ServiceError::from(Problem::new(Code::InvalidFormat, "", error.to_string()).param("format", "charset"))
        }
        Err(error) => ServiceError::BrokenStream(error),
    }
}

fn unclosed() -> Problem {
    Problem::syntax("csv", "", "has a quote that is never closed, so this record and all behind it are not read")
        .hint("close it, or double a quote that belongs to the text of a quoted cell")
}

/// The header of CSV.
struct Header {
    names: Vec<String>,
    delimiter: u8,
}

type Storing = tokio::task::JoinHandle<(Vec<u64>, Result<Vec<Written>, StoreError>)>;

/// Result of storing an item.
type Written = Result<(), Problem>;

fn written<T>(stored: Result<T, StoreError>) -> Written {
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
fn joined<T>(mut problems: Vec<Problem>, checked: Result<T, Vec<Problem>>) -> Result<T, Vec<Problem>> {
    match checked {
        Ok(item) if problems.is_empty() => Ok(item),
        Ok(_) => Err(problems),
        Err(found) => {
            problems.extend(found);
            Err(problems)
        }
    }
}

/// Stores a block in a separate task, so that the next one can be read meanwhile.
fn store<L: LineKind>(facet: Arc<L::Store>, items: Vec<(u64, L::Item)>, now: Timestamp) -> Storing {
    tokio::spawn(async move {
        let (lines, items): (Vec<u64>, Vec<L::Item>) = items.into_iter().unzip();
        (lines, L::store(&facet, items, now).await)
    })
}

async fn finish_storing(storing: Storing, imported: &mut Imported) -> Result<(), ServiceError> {
    let (lines, written) = storing.await.map_err(|error| ServiceError::Unavailable(error.into()))?;
    let mut refusals = Vec::new();
    for (line, written) in lines.into_iter().zip(written?) {
        match written {
            Ok(()) => imported.stored += 1,
            Err(problem) => refusals.push(RejectedLine { line, problems: vec![problem] }),
        }
    }
    imported.refuse(refusals);
    Ok(())
}

struct Read<T> {
    items: Vec<(u64, T)>,
    refusals: Vec<RejectedLine>,
    warnings: Vec<RejectedLine>,
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
type ReadLine<T> = (T, Vec<Problem>);

/// An importable kind of line, and how it is stored.
trait LineKind: Send + Sync + 'static {
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

fn read_ndjson<L: LineKind>(kind: &L, first: u64, bytes: &[u8]) -> Read<L::Item> {
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

fn read_csv<L: LineKind>(kind: &L, header: &Header, first: u64, bytes: &[u8]) -> Read<L::Item> {
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
async fn read_header<L: LineKind, S: Stream<Item = Result<Bytes, BoxError>> + Unpin>(
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
const PASSED_OVER: [&str; 3] = ["created_at", "updated_at", MARK_OF_EXPORTS];
/// The member or column that marks a line as written by an export.
const MARK_OF_EXPORTS: &str = "revision";

fn is_exported(header: &[String], cells: &[String]) -> bool {
    header.iter().zip(cells).any(|(name, cell)| name == MARK_OF_EXPORTS && !cell.is_empty())
}

fn unknown_column<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Problem {
    let known: Vec<&str> = known.into_iter().collect();
    let problem = Problem::new(Code::UnknownMember, name, "is not a column that can be imported");
    match tocsin_model::problem::closest(name, known.iter().copied()) {
        Some(meant) => problem.hint(format!("did you mean `{meant}`?")),
        None => problem.hint(format!("columns are {}", known.join(", "))),
    }
}

fn boolean(path: &str, cell: &str, problems: &mut Vec<Problem>) -> Option<bool> {
    match FieldType::Boolean.read_text(cell) {
        Value::Boolean(value) => Some(value),
        _ => {
            problems.push(Problem::new(Code::WrongType, path, format!("should be `true` or `false`, not `{cell}`")));
            None
        }
    }
}

/// Attribute types declared by applications.
struct DeclaredAttributes(BTreeMap<String, FieldType>);

impl DeclaredAttributes {
    /// Merges the declarations of all applications. If two differ about an attribute, text wins if either declares
    /// it; otherwise no type is declared.
    fn of(applications: impl Iterator<Item = Fields>) -> DeclaredAttributes {
        let mut declared: BTreeMap<String, Option<FieldType>> = BTreeMap::new();
        for fields in applications {
            for field in fields.iter() {
                let known = declared.entry(field.name.to_string()).or_insert(Some(field.kind));
                if *known != Some(field.kind) {
                    let is_text = *known == Some(FieldType::String) || field.kind == FieldType::String;
                    *known = is_text.then_some(FieldType::String);
                }
            }
        }
        DeclaredAttributes(declared.into_iter().filter_map(|(name, kind)| Some((name, kind?))).collect())
    }

    /// Parses a cell. A cell of an export that does not fit its declared type is read as untyped.
    fn read(&self, name: &str, cell: &str, exported: bool, problems: &mut Vec<Problem>) -> Value {
        let Some(kind) = self.0.get(name) else { return csv_cells::value(cell) };
        let value = csv_cells::attribute_value(cell, *kind);
        if let Err(problem) = kind.accept(value.clone()) {
            let shown: String = cell.chars().take(60).collect();
            problems.push(Problem::new(Code::WrongType, format!("attributes.{name}"), format!("{problem}: `{shown}`")));
            if exported {
                return csv_cells::value(cell);
            }
        }
        value
    }
}

struct SubscriberLines {
    declared: DeclaredAttributes,
    mail: MailChannels,
}

impl SubscriberLines {
    fn check(&self, draft: subscribers::Draft) -> Result<ReadLine<NewSubscriber>, Vec<Problem>> {
        match draft.revision {
            Some(_) => subscribers::check_export(draft, &self.mail),
            None => Ok((subscribers::check(draft, None, &BTreeMap::new(), &self.mail)?, Vec::new())),
        }
    }
}

impl LineKind for SubscriberLines {
    type Item = NewSubscriber;
    type Store = dyn SubscriberStore;

    fn facet(service: &Service) -> Arc<dyn SubscriberStore> {
        service.subscriber_store.clone()
    }

    fn read_json(&self, line: &[u8]) -> Result<ReadLine<NewSubscriber>, Vec<Problem>> {
        self.check(read_object(line).map_err(|problem| vec![in_line(problem)])?)
    }

    fn check_column(&self, name: &str, _exported: bool) -> Option<Problem> {
        let known = ["id", "enabled", "locale", "time_zone"];
        let is_device = name.strip_prefix("device.").and_then(|rest| rest.rsplit_once('.'));
        let fits = known.contains(&name)
            || PASSED_OVER.contains(&name)
            || name.strip_prefix("attributes.").is_some_and(|name| !name.is_empty())
            || is_device.is_some_and(|(name, part)| {
                name.parse::<Name>().is_ok() && matches!(part, "channel" | "address" | "state")
            });
        let all = known.into_iter().chain([
            "attributes.<name>",
            "device.<name>.channel",
            "device.<name>.address",
            "device.<name>.state",
        ]);
        (!fits).then(|| unknown_column(name, all))
    }

    fn read_cells(&self, header: &[String], cells: &[String]) -> Result<ReadLine<NewSubscriber>, Vec<Problem>> {
        let (mut problems, mut passed_over) = (Vec::new(), Vec::new());
        let exported = is_exported(header, cells);
        let mut draft = subscribers::Draft::default();
        let mut attributes: BTreeMap<String, Value> = BTreeMap::new();
        let mut devices: BTreeMap<&str, [Option<&str>; 3]> = BTreeMap::new();
        let mut has_devices = false;
        for (name, cell) in header.iter().map(String::as_str).zip(cells) {
            let cell = csv_cells::unguarded(cell);
            if let Some(device) = name.strip_prefix("device.") {
                has_devices = true;
                if let Some((device, part)) = device.rsplit_once('.')
                    && !cell.is_empty()
                {
                    let at = ["channel", "address", "state"].iter().position(|known| *known == part);
                    devices.entry(device).or_default()[at.expect("the column was checked")] = Some(cell);
                }
            } else if cell.is_empty() {
            } else if let Some(attribute) = name.strip_prefix("attributes.") {
                let differing = if exported { &mut passed_over } else { &mut problems };
                attributes.insert(attribute.to_owned(), self.declared.read(attribute, cell, exported, differing));
            } else {
                match name {
                    "id" => draft.id = Some(cell.to_owned()),
                    "enabled" => draft.enabled = boolean("enabled", cell, &mut problems),
                    "locale" => draft.locale = Some(cell.to_owned()),
                    "time_zone" => draft.time_zone = Some(cell.to_owned()),
                    _ => {}
                }
            }
        }
        let devices = devices.into_iter().filter_map(|(name, [channel, address, state])| {
            let mut needed = |part: &str, cell: Option<&str>| {
                if cell.is_none() {
                    problems.push(Problem::new(
                        Code::Required,
                        format!("device.{name}.{part}"),
                        "is required where the device is given",
                    ));
                }
                cell.map(str::to_owned)
            };
            let (channel, address) = (needed("channel", channel), needed("address", address));
            let state = match state.map(|state| serde_json::from_value(serde_json::Value::from(state))) {
                None => tocsin_model::subscriber::DeviceState::default(),
                Some(Ok(state)) => state,
                Some(Err(_)) => {
                    let problem = Problem::new(Code::UnknownValue, format!("device.{name}.state"), "is not a state");
                    problems.push(problem.hint("states are active, disabled, bounced, failed"));
                    return None;
                }
            };
            Some((name.to_owned(), subscribers::DeviceDraft { channel: channel?, address: address?, state }))
        });
        let devices: BTreeMap<_, _> = devices.collect();
        draft.attributes = Some(attributes);
        draft.devices = has_devices.then_some(devices);
        draft.revision = exported.then_some(serde::de::IgnoredAny);
        let (item, warnings) = joined(problems, self.check(draft))?;
        passed_over.extend(warnings);
        Ok((item, passed_over))
    }

    async fn store(
        records: &dyn SubscriberStore,
        items: Vec<NewSubscriber>,
        now: Timestamp,
    ) -> Result<Vec<Written>, StoreError> {
        Ok(records.put_subscribers(items, now).await?.into_iter().map(written).collect())
    }
}

struct SubscriptionLines {
    /// Application and class of the whole import, if given.
    application: Option<String>,
    class: Option<String>,
    /// Class of all lines, if both are given.
    whole: Option<subscriptions::Class>,
    /// Applications that were running when the import began.
    known: Vec<KnownApplication>,
    now: Timestamp,
}

struct KnownApplication {
    compiled: Arc<Compiled>,
    classes: Vec<subscriptions::Class>,
}

impl KnownApplication {
    fn of(compiled: &Arc<Compiled>, used: Option<subscriptions::Used>) -> KnownApplication {
        let classes = compiled.application.subscriptions.keys();
        let classes = classes.filter_map(|class| subscriptions::Class::of(compiled, class.as_str()).ok());
        KnownApplication { compiled: compiled.clone(), classes: classes.map(|class| class.within(used)).collect() }
    }
}

impl SubscriptionLines {
    /// Class of a line. Lines of an export name it; it must agree with that of the import.
    fn class_of(&self, application: Option<&str>, class: Option<&str>) -> Result<&subscriptions::Class, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut named = |path: &str, in_line: Option<&str>, of_all: &Option<String>| match (in_line, of_all.as_deref())
        {
            (Some(given), Some(requested)) if given != requested => {
                problems.push(
                    Problem::new(Code::Mismatch, path, format!("is `{given}`, but this import is for `{requested}`"))
                        .param("expected", requested)
                        .param("value", given.to_string()),
                );
                None
            }
            (None, None) => {
                let problem = Problem::new(Code::Required, path, "is required: give a string");
                problems.push(problem.hint(format!("or give `{path}` once for the whole import")));
                None
            }
            (given, requested) => given.or(requested).map(str::to_owned),
        };
        let application = named("application", application, &self.application);
        let class = named("class", class, &self.class);
        let (Some(application), Some(class), true) = (application, class, problems.is_empty()) else {
            return Err(problems);
        };
        if let Some(whole) = &self.whole {
            return Ok(whole);
        }
        let Some(known) = self.known.iter().find(|known| known.compiled.application.name.as_str() == application)
        else {
            return Err(vec![
                Problem::new(Code::UnknownReference, "application", format!("`{application}` does not run here"))
                    .param("kind", "application")
                    .param("value", application.to_string()),
            ]);
        };
        match known.classes.iter().find(|known| known.name.as_str() == class) {
            Some(class) => Ok(class),
            None => Err(subscriptions::Class::of(&known.compiled, &class).err().into_iter().collect()),
        }
    }
}

impl SubscriptionLines {
    fn check(
        &self,
        draft: subscriptions::Draft<'_>,
        class: &subscriptions::Class,
    ) -> Result<ReadLine<subscriptions::Checked>, Vec<Problem>> {
        let basis = if draft.revision.is_some() { Basis::Export } else { Basis::New };
        let mut checked = subscriptions::check(draft, class, &basis)?;
        let mut warnings = std::mem::take(&mut checked.warnings);
        warnings.extend(checked.ended_warning(self.now));
        Ok((checked, warnings))
    }
}

impl LineKind for SubscriptionLines {
    type Item = subscriptions::Checked;
    type Store = dyn SubscriptionStore;

    fn facet(service: &Service) -> Arc<dyn SubscriptionStore> {
        service.subscription_store.clone()
    }

    fn read_json(&self, line: &[u8]) -> Result<ReadLine<subscriptions::Checked>, Vec<Problem>> {
        let draft: subscriptions::Draft<'_> = read_object(line).map_err(|problem| vec![in_line(problem)])?;
        let class = self.class_of(draft.application.as_deref(), draft.class.as_deref())?;
        self.check(draft, class)
    }

    fn check_column(&self, name: &str, exported: bool) -> Option<Problem> {
        let known = [
            "id",
            "application",
            "class",
            "subscriber",
            "key",
            "device",
            "enabled",
            "snoozed_until",
            "filter",
            "schedule",
        ];
        if let Some(field) = name.strip_prefix("values.") {
            // If lines name their classes, each line is checked separately.
            let fields = &self.whole.as_ref()?.fields;
            let unknown = || Problem { path: name.to_owned(), ..fields.unknown(field) };
            return (fields.position(field).is_none() && !exported).then(unknown);
        }
        let fits = known.contains(&name) || PASSED_OVER.contains(&name);
        (!fits).then(|| unknown_column(name, known.into_iter().chain(["values.<field>"])))
    }

    fn read_cells(
        &self,
        header: &[String],
        cells: &[String],
    ) -> Result<ReadLine<subscriptions::Checked>, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut draft = subscriptions::Draft::default();
        draft.revision = is_exported(header, cells).then_some(serde::de::IgnoredAny);
        let mut values: Vec<(&str, &str)> = Vec::new();
        for (name, cell) in header.iter().map(String::as_str).zip(cells) {
            let cell = csv_cells::unguarded(cell);
            if cell.is_empty() {
                continue;
            }
            if let Some(field) = name.strip_prefix("values.") {
                values.push((field, cell));
                continue;
            }
            match name {
                "application" => draft.application = Some(Cow::Borrowed(cell)),
                "class" => draft.class = Some(Cow::Borrowed(cell)),
                "subscriber" => draft.subscriber = Some(Cow::Borrowed(cell)),
                "key" => draft.key = Some(cell.to_owned()),
                "device" => draft.device = Some(Cow::Borrowed(cell)),
                "enabled" => draft.enabled = boolean("enabled", cell, &mut problems),
                "snoozed_until" => match cell.parse() {
                    Ok(until) => draft.snoozed_until = Some(until),
                    Err(error) => problems.push(
                        Problem::new(Code::InvalidFormat, "snoozed_until", format!("is no time: {error}"))
                            .param("format", "timestamp"),
                    ),
                },
                "filter" => draft.filter = Some(subscriptions::FilterDraft::Text(cell.to_owned())),
                "schedule" => draft.schedule = Some(subscriptions::ScheduleDraft::Text(cell.to_owned())),
                _ => {}
            }
        }
        let class = self.class_of(draft.application.as_deref(), draft.class.as_deref())?;
        let value = |(field, cell): (&str, &str)| {
            let known = class.fields.position(field).map(|at| class.fields[at].kind);
            // An unknown field is reported by the check of the whole line.
            (field.into(), known.map_or_else(|| csv_cells::value(cell), |kind| csv_cells::typed_value(cell, kind)))
        };
        let values = Value::Map(values.into_iter().map(value).collect());
        let json = serde_json::value::to_raw_value(&values).expect("a value is always JSON");
        draft.values = Some(&json);
        joined(problems, self.check(draft, class))
    }

    async fn store(
        records: &dyn SubscriptionStore,
        items: Vec<subscriptions::Checked>,
        now: Timestamp,
    ) -> Result<Vec<Written>, StoreError> {
        let mut refused = BTreeMap::new();
        let mut fitting: Vec<NewSubscription> = Vec::with_capacity(items.len());
        for (at, item) in items.into_iter().enumerate() {
            match item.within(records).await? {
                Ok(new) => fitting.push(new),
                Err(problem) => drop(refused.insert(at, problem)),
            }
        }
        let mut all: Vec<Written> = records.put_subscriptions(fitting, now).await?.into_iter().map(written).collect();
        for (at, problem) in refused {
            all.insert(at, Err(problem));
        }
        Ok(all)
    }
}

struct SuppressionLines {
    origin: String,
    now: Timestamp,
}

impl LineKind for SuppressionLines {
    type Item = Suppression;
    type Store = dyn SuppressionStore;

    fn facet(service: &Service) -> Arc<dyn SuppressionStore> {
        service.suppression_store.clone()
    }

    fn read_json(&self, line: &[u8]) -> Result<ReadLine<Suppression>, Vec<Problem>> {
        let draft = read_object(line).map_err(|problem| vec![in_line(problem)])?;
        Ok((suppressions::check(draft, &self.origin, self.now)?, Vec::new()))
    }

    fn check_column(&self, name: &str, _exported: bool) -> Option<Problem> {
        let known = ["protocol", "address", "subscriber", "device", "cause", "origin", "detail", "since", "expires_at"];
        let passed_over = ["in_force", "bounces", "notification", "updated_at"];
        let fits = known.contains(&name) || passed_over.contains(&name);
        (!fits).then(|| unknown_column(name, known))
    }

    fn read_cells(&self, header: &[String], cells: &[String]) -> Result<ReadLine<Suppression>, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut draft = suppressions::Draft::default();
        let mut time = |path: &str, cell: &str| {
            let wrong = |_| {
                problems.push(
                    Problem::new(Code::InvalidFormat, path, format!("`{cell}` is not a time of RFC 3339"))
                        .param("format", "timestamp")
                        .param("value", cell.to_string()),
                )
            };
            cell.parse::<Timestamp>().map_err(wrong).ok()
        };
        for (name, cell) in header.iter().map(String::as_str).zip(cells) {
            let cell = csv_cells::unguarded(cell);
            if cell.is_empty() {
                continue;
            }
            match name {
                "since" => draft.since = time(name, cell),
                "expires_at" => draft.expires_at = time(name, cell),
                _ => {
                    let text = Some(cell.to_owned());
                    match name {
                        "protocol" => draft.protocol = text,
                        "address" => draft.address = text,
                        "subscriber" => draft.subscriber = text,
                        "device" => draft.device = text,
                        "cause" => draft.cause = text,
                        "origin" => draft.origin = text,
                        "detail" => draft.detail = text,
                        _ => {}
                    }
                }
            }
        }
        Ok((joined(problems, suppressions::check(draft, &self.origin, self.now))?, Vec::new()))
    }

    async fn store(
        records: &dyn SuppressionStore,
        items: Vec<Suppression>,
        _now: Timestamp,
    ) -> Result<Vec<Written>, StoreError> {
        let count = items.len();
        records.put_suppressions(items).await?;
        Ok(std::iter::repeat_with(|| Ok(())).take(count).collect())
    }
}

/// The rejection names the line; the position within it keeps only its column.
fn in_line(problem: Problem) -> Problem {
    Problem { line: None, ..problem }
}
