//! What becomes of a file: it gets a name that says so, once for ever.

use std::{fs, io, path::Path};

use rustix::fs::{CWD, RenameFlags};
use serde_json::json;
use tocsin_model::{problem::Problem, time::Timestamp};

use super::options::Done;

/// Tries of a name that is taken.
const COUNTERS_MAX: u32 = 100_000;

/// Takes a file away whose events are all accepted.
pub(super) fn done(folder: &Path, name: &str, done: Done, now: Timestamp) -> io::Result<()> {
    match done {
        Done::Remove => fs::remove_file(folder.join(name))?,
        Done::Rename => {
            move_aside(folder, name, "done", now)?;
        }
    }
    sync(folder)
}

/// Takes a file away that cannot be taken, and says why. Gives its new name.
pub(super) fn refuse(
    folder: &Path,
    name: &str,
    accepted: u64,
    problems: &[Problem],
    now: Timestamp,
) -> io::Result<String> {
    let new = move_aside(folder, name, "err", now)?;
    let reasons = json!({ "file": name, "at": now, "accepted": accepted, "problems": problems });
    let mut text = serde_json::to_vec_pretty(&reasons).expect("it is JSON");
    text.push(b'\n');
    // Under a name that nobody reads until it is whole.
    let hidden = folder.join(format!(".{new}.json"));
    fs::write(&hidden, text)?;
    fs::File::open(&hidden)?.sync_all()?;
    fs::rename(hidden, folder.join(format!("{new}.json")))?;
    sync(folder)?;
    Ok(new)
}

/// `NAME.20261122T101500Z.1.done`; never in the place of another file.
fn move_aside(folder: &Path, name: &str, ending: &str, now: Timestamp) -> io::Result<String> {
    let time: String = now.to_string().chars().take(19).filter(|c| !matches!(c, '-' | ':')).collect();
    for counter in 1..=COUNTERS_MAX {
        let new = format!("{name}.{time}Z.{counter}.{ending}");
        let (from, to) = (folder.join(name), folder.join(&new));
        match rustix::fs::renameat_with(CWD, &from, CWD, &to, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(new),
            Err(rustix::io::Errno::EXIST) => {}
            // A file system that cannot promise it: nobody else gives such names, since the folder is locked.
            Err(rustix::io::Errno::INVAL) if !to.exists() => {
                fs::rename(from, to)?;
                return Ok(new);
            }
            Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("all names for {name} are taken")))
}

fn sync(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}
