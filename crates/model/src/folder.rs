//! Durable folders.
//!
//! After a power loss a file system may lose the entry of a file or folder whose parent was not synced, with
//! everything below it.

use std::{fs, io, os::unix::fs::DirBuilderExt, path::Path};

/// Creates a folder and its missing parents with this mode, and syncs the entry of each. Blocks.
///
/// # Errors
/// Those of the file system. An unreadable parent is not synced, which is not an error.
pub fn make(folder: &Path, mode: u32) -> io::Result<()> {
    let parent = folder.parent();
    let create = || fs::DirBuilder::new().mode(mode).create(folder);
    match create() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make(parent.ok_or(error)?, mode)?;
            // Not again after this: `/proc` and a removed working folder have no room for folders, as if missing.
            exists_after(folder, create())?;
        }
        created => exists_after(folder, created)?,
    }
    match parent {
        Some(parent) => sync(if parent.as_os_str().is_empty() { Path::new(".") } else { parent }),
        None => Ok(()),
    }
}

/// An existing folder is no error: its creator may have been killed before the sync.
fn exists_after(folder: &Path, created: io::Result<()>) -> io::Result<()> {
    if created.is_err() && folder.is_dir() { Ok(()) } else { created }
}

/// Syncs the entries of a folder. Blocks.
///
/// # Errors
/// Those of the disk. An unreadable folder, or a file system without folder syncs, is not an error.
pub fn sync(folder: &Path) -> io::Result<()> {
    match fs::File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
            ) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_parent_that_has_no_room_for_folders_is_an_error() {
        for folder in ["/proc/tocsin", "/proc/tocsin/a/b"] {
            assert!(make(Path::new(folder), 0o700).is_err(), "{folder}");
        }
    }

    #[test]
    fn folders_are_made_with_their_parents() {
        let temporary = std::env::temp_dir().join(format!("tocsin-folder-{}", std::process::id()));
        let deep = temporary.join("a/b");
        for _ in 0..2 {
            make(&deep, 0o700).expect("made");
            assert!(deep.is_dir());
        }
        fs::write(deep.join("file"), "").expect("written");
        assert!(make(&deep.join("file"), 0o700).is_err(), "a file is in its place");
        assert!(make(&deep.join("file/below"), 0o700).is_err(), "a file is above it");
        fs::remove_dir_all(&temporary).expect("removed");
    }
}
