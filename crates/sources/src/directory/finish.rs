//! Completes or rejects a file: it gets a unique new name.

use std::{ffi::OsStr, fs, io, path::Path};

use rustix::fs::{CWD, RenameFlags};
use serde_json::json;
use tocsin_model::{problem::Problem, time::Timestamp};

use super::options::CompletionAction;

/// Most attempts to find a free name.
const COUNTERS_MAX: u32 = 100_000;

/// Most bytes of a name kept before `.20261122T101500Z.100000.err.json` and a leading dot: names in file systems have
/// at most 255 bytes.
const NAME_BYTES_MAX: usize = 220;

/// Completes a file whose events are all accepted.
pub(super) fn complete(folder: &Path, name: &str, done: CompletionAction, now: Timestamp) -> io::Result<()> {
    match done {
        CompletionAction::Remove => fs::remove_file(folder.join(name))?,
        CompletionAction::Rename => {
            rename_unique(folder, name.as_ref(), "done", now)?;
        }
    }
    sync(folder)
}

/// Rejects a file, and writes the problems next to it. Returns its new name.
pub(super) fn refuse(
    folder: &Path,
    file: &OsStr,
    accepted: u64,
    problems: &[Problem],
    now: Timestamp,
) -> io::Result<String> {
    let new = rename_unique(folder, file, "err", now)?;
    let reasons = json!({ "file": file.to_string_lossy(), "at": now, "accepted": accepted, "problems": problems });
    let mut text = serde_json::to_vec_pretty(&reasons).expect("it is JSON");
    text.push(b'\n');
    // Under a hidden name until it is complete.
    let hidden = folder.join(format!(".{new}.json"));
    fs::write(&hidden, text)?;
    fs::File::open(&hidden)?.sync_all()?;
    fs::rename(hidden, folder.join(format!("{new}.json")))?;
    sync(folder)?;
    Ok(new)
}

/// `NAME.20261122T101500Z.1.done`; never replaces another file. The new name is UTF-8.
fn rename_unique(folder: &Path, file: &OsStr, ending: &str, now: Timestamp) -> io::Result<String> {
    let time: String = now.to_string().chars().take(19).filter(|c| !matches!(c, '-' | ':')).collect();
    let name = file.to_string_lossy();
    // Long names are truncated: a file that cannot be renamed would block those behind it.
    let kept = &name[..name.floor_char_boundary(NAME_BYTES_MAX)];
    for counter in 1..=COUNTERS_MAX {
        let new = format!("{kept}.{time}Z.{counter}.{ending}");
        let (from, to) = (folder.join(file), folder.join(&new));
        match rustix::fs::renameat_with(CWD, &from, CWD, &to, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(new),
            Err(rustix::io::Errno::EXIST) => {}
            // The file system does not support it; no other process uses such names, since the folder is locked.
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
