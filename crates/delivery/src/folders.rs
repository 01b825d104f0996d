//! Write policy of channels. A definition may come over the network from any holder of a key. So a channel writes
//! only into the data folder, except the server's own files, and into folders that the operator has allowed.

use std::{
    io,
    path::{Component, Path, PathBuf},
};

/// Folders in the data folder that belong to the server.
const OWN_FOLDERS: [&str; 3] = ["backups", "drop", "refused"];
/// Prefix of the folders into which a restore moves existing files.
const OWN_FOLDER_START: &str = "replaced-";
/// Files in the data folder that belong to the server: its lock, and the records of work that may crash the process.
const OWN_FILES: [&str; 4] = ["lock", "pipeline.work", "pipeline.suspects", "exchange.steps"];
/// Endings of the server's own files: databases and their side files, keys, certificates, the configuration, marks.
const OWN_ENDINGS: [&str; 11] = [
    ".db",
    ".db-wal",
    ".db-shm",
    ".db-journal",
    ".db.lock",
    ".db.damaged",
    ".key",
    ".keys",
    ".pem",
    ".toml",
    ".unfinished",
];

/// The folders outside the data folder that channels may write to; none by default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Folders {
    /// Folders, with all below them.
    pub allow: Vec<PathBuf>,
}

impl Folders {
    /// The file to write to, with links resolved. Creates nothing. The error says why it is not written to.
    pub fn resolve_allowed(&self, path: &Path, data_folder: &Path) -> Result<PathBuf, String> {
        let unknown = |error: io::Error| format!("{} cannot be opened: {error}", path.display());
        let found = resolve(&data_folder.join(path)).map_err(unknown)?;
        let inside = found.strip_prefix(resolve(data_folder).map_err(unknown)?).ok();
        if inside.is_some_and(is_own) {
            return Err(own_file(&found));
        }
        let allows = |allowed: &PathBuf| allowed.canonicalize().is_ok_and(|allowed| found.starts_with(allowed));
        if inside.is_some() || self.allow.iter().any(allows) {
            return Ok(found);
        }
        Err(format!(
            "{} is outside the data folder; `delivery.allow_folders` in the configuration can open its folder",
            found.display()
        ))
    }
}

/// The error for a file of the server.
pub(crate) fn own_file(path: &Path) -> String {
    format!("{} is a name that the server keeps for itself; choose another", path.display())
}

/// Whether a path in the data folder may belong to the server.
pub(crate) fn is_own(inside: &Path) -> bool {
    let lowered = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_string_lossy().to_ascii_lowercase()),
        _ => None,
    };
    let names: Vec<String> = inside.components().filter_map(lowered).collect();
    let is_own_name = |name: &String| name.starts_with('.') || OWN_ENDINGS.iter().any(|end| name.ends_with(end));
    let is_own_entry = |name: &String| {
        let listed = OWN_FOLDERS.contains(&name.as_str()) || OWN_FILES.contains(&name.as_str());
        listed || name.starts_with(OWN_FOLDER_START)
    };
    names.is_empty() || names.iter().any(is_own_name) || names.first().is_some_and(is_own_entry)
}

/// A path with its links resolved, as far as it exists.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let (mut there, mut missing) = (path, Vec::new());
    let found = loop {
        match there.canonicalize() {
            Ok(found) => break found,
            // A dangling link could get a target later.
            Err(error) if error.kind() != io::ErrorKind::NotFound || there.is_symlink() => return Err(error),
            Err(error) => missing.push(there.file_name().ok_or(error)?),
        }
        there = match there.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => return Err(io::ErrorKind::NotFound.into()),
        };
    };
    Ok(missing.into_iter().rev().fold(found, |path, name| path.join(name)))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn channels_cannot_write_outside_allowed_folders_or_over_server_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        for name in ["data/drop", "data/logs", "open", "open-not"] {
            fs::create_dir_all(path(name)).expect("a folder");
        }
        fs::write(path("data/journal.db"), "").expect("a file");
        symlink(path("data/journal.db"), path("data/innocent")).expect("a link");
        symlink(path("data"), path("open/data")).expect("a link");
        symlink(path("open-not"), path("data/away")).expect("a link");
        symlink(path("nowhere"), path("data/dangling")).expect("a link");
        let folders = Folders { allow: vec![path("open"), path("gone")] };
        let check = |name: &str, expected: &str| {
            let error = folders.resolve_allowed(Path::new(name), &path("data")).err().unwrap_or_default();
            assert!(error.contains(expected) && error.is_empty() == expected.is_empty(), "{name}: {error}");
        };
        let own = "keeps for itself";
        let out = "`delivery.allow_folders` in the configuration can open its folder";
        let absolute = |name: &str| path(name).to_string_lossy().into_owned();
        for name in
            ["log", "log.ndjson", "logs/lock", "logs/pipeline.work", "new/folder/log.csv", "a\nb ..ndjson", "database"]
        {
            check(name, "");
        }
        for name in [
            "journal.db",
            "./journal.db",
            "Records.DB-wal",
            "spool-3.db-shm",
            "admin.key",
            "tocsin.toml",
            "lock",
            "Pipeline.work",
            "pipeline.suspects",
            "./exchange.steps",
            "records.db.lock",
            "tracking.db.damaged",
            "innocent",
        ] {
            check(name, own);
        }
        for name in
            ["drop/a.csv", "backups/b/inbox.db", "refused/a.ndjson", "replaced-1/x", ".hidden", "logs/x.db", "."]
        {
            check(name, own);
        }
        check(&absolute("data/journal.db"), own);
        check(&absolute("data/log.ndjson"), "");
        check(&absolute("open/log.ndjson"), "");
        check(&absolute("open/data/journal.db"), own);
        check(&absolute("open-not/log.ndjson"), out);
        check("away/log.ndjson", out);
        check("dangling", "cannot be opened");
        assert!(Folders::default().resolve_allowed(&path("open/log"), &path("data")).is_err());
    }
}
