//! Takes files from a watched folder.
//!
//! Producers write a file elsewhere on the same file system, or under a name that begins with a dot, and move it here.
//! Since not all producers do, a file is read only when it has been unchanged for a while. It is read twice: to check
//! it completely, and to take it in batches. An invalid file is rejected as a whole: it is renamed to
//! `NAME.TIME.COUNTER.err`, with the problems in `NAME.TIME.COUNTER.err.json`. A completed file is renamed to
//! `NAME.TIME.COUNTER.done`.
//!
//! The mark (checkpoint) of a file is the number of accepted items. Inode, size and time distinguish the file from a
//! later one of the same name.

mod options; // the options of an operator
mod file; // reads a file in parts
mod finish; // renames completed and rejected files
mod folder; // scans the folder for the next file
mod watch; // the watch loop

#[cfg(test)]
mod suites;
#[cfg(test)]
mod tests;

pub use options::DirectoryOptions;
use tocsin_connect::options::read;
use tocsin_model::{
    mark::Mark,
    problem::{Code, Problem},
};

use crate::{
    description::{KindDescription, LocationDescription, Opened, SourceResource, check_of, not_allowed_of, schema_of},
    source::SourceSettings,
};

/// Its row in the table of kinds.
pub(crate) static KIND: KindDescription = KindDescription {
    name: "directory",
    summary: "files dropped into a folder: JSON lines, JSON, CSV or XML",
    schema: schema_of::<DirectoryOptions>,
    needs: &[SourceResource::WatchedFolders],
    secrets: &[],
    location: Some(LocationDescription {
        event_options: &["format", "items", "schema", "fields", "delimiter", "columns", "item_bytes_max"],
    }),
    check: check_of::<DirectoryOptions>,
    not_allowed: not_allowed_of::<DirectoryOptions>,
    open,
};

fn open(setting: SourceSettings, marks: Vec<Mark>) -> Opened {
    let options: DirectoryOptions = read(&setting.options, "")?;
    let at_folder = |text: String| vec![Problem::new(Code::NotAllowed, "folder", text)];
    let path = options.folder(&setting.context).map_err(|problem| vec![problem])?;
    if options.folder.is_relative() {
        tocsin_model::folder::make(&path, 0o777)
            .map_err(|error| at_folder(format!("{} cannot be made: {error}", path.display())))?;
    }
    let watch = watch::FolderWatcher::open(setting, options, path, marks).map_err(|error| at_folder(error.text))?;
    Ok(Box::new(watch))
}
