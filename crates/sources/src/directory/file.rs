//! A file that is being read, in portions.

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
    problem::Problem,
};

use super::folder::Identity;
use crate::{
    items::{Items, Layout, Placed, Text},
    mapping::Mapping,
    source::{Gives, Message, PORTION_BYTES_MAX, PORTION_EVENTS_MAX},
};

/// Most problems that are told of one file.
const PROBLEMS_MAX: usize = 100;

/// How files become rows, or messages.
pub(super) struct Reading {
    pub layout: Layout,
    pub mapping: Mapping,
    pub gives: Gives,
    pub file_bytes_max: u64,
}

/// A file that was found good, somewhere between its beginning and its end.
pub(super) struct Opened {
    path: PathBuf,
    identity: Identity,
    items: Items,
    /// How many items were taken.
    pub taken: u64,
}

/// Some of a file.
pub(super) struct Part {
    pub events: PackedEvents,
    /// The file itself, where it is a message.
    pub message: Option<Message>,
    /// Whether that was all.
    pub is_last: bool,
}

/// Why a file cannot be taken.
#[derive(Debug)]
pub(super) enum Refused {
    /// Something is wrong with what it says.
    Problems(Vec<Problem>),
    /// It cannot be read now.
    Io(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Refused::Io(error)
    }
}

impl Reading {
    /// Opens a file behind so many items. Unless some were taken already, it is read to its end before.
    pub fn open(&self, path: &Path, identity: Identity, taken: u64) -> Result<Opened, Refused> {
        if identity.bytes > self.file_bytes_max {
            let message = format!("has {} bytes; at most {} are read", identity.bytes, self.file_bytes_max);
            return Err(Refused::Problems(vec![Problem::at("", message).hint("`file_bytes_max` can be raised")]));
        }
        if matches!(self.gives, Gives::Messages { .. }) {
            return Ok(Opened { path: path.to_owned(), identity, items: Box::new(std::iter::empty()), taken });
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
        Ok(Opened { path: path.to_owned(), identity, items, taken })
    }

    /// Reads a file to its end and tells what is wrong with it.
    fn check(&self, path: &Path, identity: Identity) -> Result<(), Refused> {
        self.layout.examine(text_of(path, identity)?, None).map_err(|problem| Refused::Problems(vec![problem]))?;
        let mut problems = Vec::new();
        for (at, item) in self.layout.items(text_of(path, identity)?, None).enumerate() {
            match item {
                Ok(item) => problems.extend(self.row(&item, at as u64).err().into_iter().flatten()),
                Err(problem) => problems.push(problem),
            }
            if problems.len() >= PROBLEMS_MAX {
                problems.truncate(PROBLEMS_MAX);
                problems.push(Problem::at("", "has more problems than are told here"));
                break;
            }
        }
        // What was read while somebody wrote may be wrong only for that.
        still_is(path, identity)?;
        if problems.is_empty() { Ok(()) } else { Err(Refused::Problems(problems)) }
    }

    /// The next part of an open file.
    pub fn next(&self, opened: &mut Opened) -> Result<Part, Refused> {
        let Gives::Events(fields) = &self.gives else { return self.whole(opened) };
        let mut packer = EventPacker::new(fields.clone());
        let mut is_last = false;
        while packer.count() < PORTION_EVENTS_MAX as u32 && packer.bytes() < PORTION_BYTES_MAX {
            match opened.items.next() {
                None => {
                    is_last = true;
                    break;
                }
                Some(Ok(item)) => packer.push(&self.row(&item, opened.taken).map_err(Refused::Problems)?),
                Some(Err(problem)) => return Err(Refused::Problems(vec![problem])),
            }
            opened.taken += 1;
        }
        still_is(&opened.path, opened.identity)?;
        Ok(Part { events: packer.finish(), message: None, is_last })
    }

    /// An open file as one message.
    fn whole(&self, opened: &mut Opened) -> Result<Part, Refused> {
        let mut body = Vec::new();
        text_of(&opened.path, opened.identity)?.take(self.file_bytes_max).read_to_end(&mut body)?;
        still_is(&opened.path, opened.identity)?;
        opened.taken = 1;
        let name = opened.path.file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned();
        let headers = vec![("file-name".to_owned(), name)];
        let message = Message { content_type: String::new(), headers, body: body.into() };
        Ok(Part { events: PackedEvents::default(), message: Some(message), is_last: true })
    }

    fn row(&self, placed: &Placed, at: u64) -> Result<Row, Vec<Problem>> {
        let place = |problem: Problem| match placed.line {
            Some(line) => Problem { line: Some(line), column: problem.column, ..problem },
            None if problem.path.is_empty() => Problem { path: format!("[{at}]"), line: None, column: None, ..problem },
            None => Problem { path: format!("[{at}].{}", problem.path), line: None, column: None, ..problem },
        };
        self.mapping.row(&placed.item).map_err(|problems| problems.into_iter().map(place).collect())
    }
}

/// The text of the file of this identity. Links are not followed.
fn text_of(path: &Path, identity: Identity) -> Result<Text, Refused> {
    let file = File::options().read(true).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32).open(path)?;
    match Identity::of(&file.metadata()?) == identity {
        true => Ok(Box::new(BufReader::with_capacity(64 << 10, file))),
        false => Err(changed()),
    }
}

fn still_is(path: &Path, identity: Identity) -> Result<(), Refused> {
    match Identity::of(&fs::symlink_metadata(path)?) == identity {
        true => Ok(()),
        false => Err(changed()),
    }
}

fn changed() -> Refused {
    let problem = Problem::at("", "was changed while it was read");
    Refused::Problems(vec![problem.hint("write files elsewhere and move them here when they are whole")])
}
