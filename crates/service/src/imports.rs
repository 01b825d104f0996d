//! Bulk import of subscribers, subscriptions or suppressions from lines: NDJSON, or CSV with a header.
//!
//! A stream of any length is processed in bounded memory. While one block of lines is being stored, the next is read
//! and checked; each block is one commit. A bad line is reported and skipped.
//!
//! A line of an export may be older than the current version of its application. Parts that do not fit that version
//! are skipped with a warning.
//!
//! A dry run reads and checks the lines and stores nothing.

mod lines; // reading of lines, and what each kind of line defines
mod results; // results of imports
mod subscribers;
mod subscriptions;
mod suppressions;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use tocsin_model::{
    charset::{self, Syntax, Utf8Decoder},
    consent::ConsentMethod,
    problem::{Code, Problem},
    time::Timestamp,
};
use tocsin_store::{audit, error::StoreError};

pub use self::results::{Imported, REFUSALS_MAX, RejectedLine};
use self::{
    lines::{Header, LineKind, Written, broken, read_csv, read_header, read_ndjson, unclosed},
    subscribers::{DeclaredAttributes, SubscriberLines},
    subscriptions::{KnownApplication, SubscriptionLines},
    suppressions::SuppressionLines,
};
use crate::{
    Service,
    consent_actor::ConsentActor,
    error::ServiceError,
    keys::{Caller, Scope},
    lines::{Block, Blocks, BoxError, LINE_BYTES_MAX, Lines},
    run_mode::RunMode,
    subscriptions::Used,
};

/// Maximum number of lines per commit. Unsorted lines each touch a page of the subscribers' index, so a commit of few
/// lines writes many pages; a block is limited to a mebibyte in any case.
pub const LINES_PER_COMMIT: usize = 10_000;
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
    /// Whether the lines are stored, or only checked.
    pub mode: RunMode,
}

impl From<Format> for Input {
    fn from(format: Format) -> Input {
        Input { format, charset: None, mode: RunMode::Apply }
    }
}

impl Service {
    /// Imports subscribers from lines. A line replaces the subscriber of its id.
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

    /// Imports subscriptions from lines. A line with a key replaces the subscription of its subscriber, class and key.
    /// A `quiet` import makes no lifecycle events. `application` and `class` are defaults for the lines; a line that names others
    /// is rejected.
    ///
    /// # Errors
    /// As [`Service::import_subscribers`]; also if both are given and the class does not exist, and if the application could
    /// not be started. A line that names such an application is rejected as `unavailable`: it can be repeated.
    pub async fn import_subscriptions(
        &self,
        caller: &Caller,
        application: Option<&str>,
        class: Option<&str>,
        quiet: bool,
        input: impl Into<Input>,
        chunks: impl Stream<Item = Result<Bytes, BoxError>> + Unpin,
    ) -> Result<Imported, ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let failed: Vec<_> = self.pipeline.failed_applications().into_iter().map(|(name, _)| name).collect();
        if let Some(failed) = failed.iter().find(|failed| Some(failed.as_str()) == application) {
            return Err(self.no_running(failed));
        }
        let whole = match (application, class) {
            (Some(application), Some(class)) => Some(self.named_class(application, class)?),
            _ => None,
        };
        let lines = SubscriptionLines {
            actor: Arc::new(ConsentActor::of(caller, ConsentMethod::Import)),
            quiet,
            application: application.map(str::to_owned),
            class: class.map(str::to_owned),
            whole,
            known: self
                .pipeline
                .status()
                .iter()
                .filter_map(|(name, _)| {
                    let used = Used::of(&self.pipeline, name);
                    Some(KnownApplication::of(&self.pipeline.application(name)?, used))
                })
                .collect(),
            failed,
            now: self.clock.now(),
        };
        self.import(input.into(), chunks, Arc::new(lines)).await
    }

    /// Imports suppressions from lines. A line replaces the suppression of its target.
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
        let Input { format, charset, mode } = input;
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
            if mode.is_dry() {
                // Refusals of the store, such as an unknown subscriber, are not found.
                imported.stored += read.items.len() as u64;
            } else if !read.items.is_empty() {
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

type Storing = tokio::task::JoinHandle<(Vec<u64>, Result<Vec<Written>, StoreError>)>;

/// Stores a block in a separate task, so that the next one can be read meanwhile.
fn store<L: LineKind>(facet: Arc<L::Store>, items: Vec<(u64, L::Item)>, now: Timestamp) -> Storing {
    tokio::spawn(audit::inherit(async move {
        let (lines, items): (Vec<u64>, Vec<L::Item>) = items.into_iter().unzip();
        (lines, L::store(&facet, items, now).await)
    }))
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
