//! Reads a file, in parts.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, BufReader, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use tocsin_model::{
    event::{EventPacker, PackedEvents},
    field::Row,
    problem::{Code, Problem},
};

use super::folder::Identity;
use crate::{
    items::{Items, Layout, PositionedItem, Text},
    mapping::Mapping,
    source::{BATCH_BYTES_MAX, BATCH_EVENTS_MAX, Message, SourceOutput},
};

/// Most problems reported per file.
const PROBLEMS_MAX: usize = 100;

/// The conversion of files to rows or messages.
pub(super) struct FileReader {
    pub layout: Layout,
    pub mapping: Mapping,
    pub output: SourceOutput,
    pub file_bytes_max: u64,
}

/// An open file that passed the check, at a position.
pub(super) struct OpenFile {
    path: PathBuf,
    identity: Identity,
    items: Items,
    /// The number of items taken.
    pub taken: u64,
}

/// A part of a file.
pub(super) struct FilePart {
    pub events: PackedEvents,
    /// The whole file, as a message.
    pub message: Option<Message>,
    /// Whether it is the last part.
    pub is_last: bool,
}

/// The error of a file.
#[derive(Debug)]
pub(super) enum FileError {
    /// The content is invalid.
    Problems(Vec<Problem>),
    /// The file cannot be read now.
    Io(io::Error),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        FileError::Io(error)
    }
}

impl FileReader {
    /// Opens a file at an item. A file of which no item was taken is checked to its end first.
    pub fn open(&self, path: &Path, identity: Identity, taken: u64) -> Result<OpenFile, FileError> {
        if identity.bytes > self.file_bytes_max {
            let message = format!("has {} bytes; at most {} are read", identity.bytes, self.file_bytes_max);
            return Err(FileError::Problems(vec![
                Problem::new(Code::TooLong, "", message)
                    .param("given", identity.bytes)
                    .param("limit", self.file_bytes_max)
                    .param("unit", "bytes")
                    .hint("`file_bytes_max` can be raised"),
            ]));
        }
        if matches!(self.output, SourceOutput::Messages { .. }) {
            return Ok(OpenFile { path: path.to_owned(), identity, items: Box::new(std::iter::empty()), taken });
        }
        if taken == 0 {
            self.check(path, identity)?;
        }
        let mut items = self.layout.items(text_of(path, identity)?, None);
        for _ in 0..taken {
            if !matches!(items.next(), Some(Ok(_))) {
                return Err(changed());
            }
        }
        Ok(OpenFile { path: path.to_owned(), identity, items, taken })
    }

    /// Reads a file to its end and reports its problems.
    fn check(&self, path: &Path, identity: Identity) -> Result<(), FileError> {
        self.layout.examine(text_of(path, identity)?, None).map_err(|problem| FileError::Problems(vec![problem]))?;
        let mut problems = Vec::new();
        for (at, item) in self.layout.items(text_of(path, identity)?, None).enumerate() {
            match item {
                Ok(item) => problems.extend(self.row(&item, at as u64).err().into_iter().flatten()),
                Err(problem) => problems.push(problem),
            }
            if problems.len() >= PROBLEMS_MAX {
                problems.truncate(PROBLEMS_MAX);
                problems.push(Problem::new(Code::MoreProblems, "", "has further problems, not listed here"));
                break;
            }
        }
        // A change during reading can be the cause of problems.
        still_is(path, identity)?;
        if problems.is_empty() { Ok(()) } else { Err(FileError::Problems(problems)) }
    }

    /// The next part of an open file.
    pub fn next(&self, opened: &mut OpenFile) -> Result<FilePart, FileError> {
        let SourceOutput::Events(fields) = &self.output else { return self.whole(opened) };
        let mut packer = EventPacker::new(fields.clone());
        let mut is_last = false;
        while packer.count() < BATCH_EVENTS_MAX as u32 && packer.bytes() < BATCH_BYTES_MAX {
            match opened.items.next() {
                None => {
                    is_last = true;
                    break;
                }
                Some(Ok(item)) => packer.push(&self.row(&item, opened.taken).map_err(FileError::Problems)?),
                Some(Err(problem)) => return Err(FileError::Problems(vec![problem])),
            }
            opened.taken += 1;
        }
        still_is(&opened.path, opened.identity)?;
        Ok(FilePart { events: packer.finish(), message: None, is_last })
    }

    /// An open file as one message.
    fn whole(&self, opened: &mut OpenFile) -> Result<FilePart, FileError> {
        let mut body = Vec::new();
        text_of(&opened.path, opened.identity)?.take(self.file_bytes_max).read_to_end(&mut body)?;
        still_is(&opened.path, opened.identity)?;
        opened.taken = 1;
        let name = opened.path.file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned();
        let headers = vec![("file-name".to_owned(), name)];
        let message = Message { content_type: String::new(), headers, body: body.into() };
        Ok(FilePart { events: PackedEvents::default(), message: Some(message), is_last: true })
    }

    fn row(&self, placed: &PositionedItem, at: u64) -> Result<Row, Vec<Problem>> {
        let place = |problem: Problem| match placed.line {
            Some(line) => Problem { line: Some(line), column: problem.column, ..problem },
            None if problem.path.is_empty() => Problem { path: format!("[{at}]"), line: None, column: None, ..problem },
            None => Problem { path: format!("[{at}].{}", problem.path), line: None, column: None, ..problem },
        };
        self.mapping.row(&placed.item).map_err(|problems| problems.into_iter().map(place).collect())
    }
}

/// The text of the file with this identity. Symbolic links are not followed.
fn text_of(path: &Path, identity: Identity) -> Result<Text, FileError> {
    let file = File::options().read(true).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32).open(path)?;
    match Identity::of(&file.metadata()?) == identity {
        true => Ok(Box::new(BufReader::with_capacity(64 << 10, file))),
        false => Err(changed()),
    }
}

fn still_is(path: &Path, identity: Identity) -> Result<(), FileError> {
    match Identity::of(&fs::symlink_metadata(path)?) == identity {
        true => Ok(()),
        false => Err(changed()),
    }
}

fn changed() -> FileError {
    let problem = Problem::new(Code::ChangedWhileRead, "", "was changed while it was read");
    FileError::Problems(vec![problem.hint("write files elsewhere and move them here when they are whole")])
}
