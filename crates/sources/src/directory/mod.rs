//! Files that are dropped into a folder.
//!
//! Who drops a file writes it elsewhere on the same file system, or under a name that begins with a dot, and moves it
//! here. As not everybody does, a file is only read when it has not changed for a while. It is read twice: to see whether
//! all of it can be taken, and to take it, in portions. A file of which something is wrong is not taken at all: it becomes
//! `NAME.TIME.COUNTER.err`, with the reasons beside it in `NAME.TIME.COUNTER.err.json`. One that was taken becomes
//! `NAME.TIME.COUNTER.done`.
//!
//! The mark of a file says how many of its items are accepted. It is told from a later file of the same name by its inode,
//! size and time.

mod options; // what an operator may set
mod file; // a file that is being read, in portions
mod finish; // what becomes of it: `.done`, `.err` and the reasons
mod folder; // which file is next
mod watch; // the loop

#[cfg(test)]
mod suites;
#[cfg(test)]
mod tests;

pub use options::DirectoryOptions;
use tocsin_delivery::options::read;
use tocsin_model::{mark::Mark, problem::Problem};

use crate::source::{OpenSource, Setting};

pub(crate) fn open(setting: Setting, marks: Vec<Mark>) -> Result<Box<dyn OpenSource>, Vec<Problem>> {
    let options: DirectoryOptions = read(&setting.options, "")?;
    let at_folder = |text: String| vec![Problem::at("folder", text)];
    let path = options.folder(&setting.context).map_err(|problem| vec![problem])?;
    if options.folder.is_relative() {
        tocsin_model::folder::make(&path, 0o777)
            .map_err(|error| at_folder(format!("{} cannot be made: {error}", path.display())))?;
    }
    let watch = watch::Watch::open(setting, options, path, marks).map_err(|trouble| at_folder(trouble.text))?;
    Ok(Box::new(watch))
}
