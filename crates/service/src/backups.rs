//! Backups in the data folder: list, verification, restore drills.

mod drills; // restore drills of this process

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tocsin_model::id::Name;
use tocsin_store::{
    error::StoreError,
    sqlite::backup::{self, MANIFEST, Manifest},
};

pub(crate) use drills::Drills;
pub use drills::{DrillState, RestoreDrill};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
};

/// Backups that are listed.
const LISTED_MAX: usize = 1_000;

/// State of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupState {
    /// It has a manifest and all files of it.
    Complete,
    /// It is being taken, or the attempt was interrupted.
    Unfinished,
    /// Its manifest or a file is missing or unreadable: the reason.
    Unreadable(String),
}

/// A backup in the data folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBackup {
    /// Name.
    pub name: String,
    /// State.
    pub state: BackupState,
    /// Manifest, if it can be read.
    pub manifest: Option<Manifest>,
    /// Size of its files.
    pub bytes: u64,
}

/// Result of a verification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedBackup {
    /// Reason of a failed verification; `None`: it can be restored.
    pub reason: Option<String>,
    /// Manifest, if it is valid.
    pub manifest: Option<Manifest>,
    /// Duration of the verification.
    pub took: Duration,
}

impl Service {
    /// Folder of the backups.
    fn backup_folder(&self) -> Result<PathBuf, ServiceError> {
        let space = self.free_space.as_ref();
        let missing = || ServiceError::Missing("a data folder, which could have backups,".to_owned());
        Ok(space.ok_or_else(missing)?.folder.join("backups"))
    }

    /// Backups in the data folder, newest first, and their folder.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the folder cannot be read.
    pub async fn backups(&self, caller: &Caller) -> Result<(PathBuf, Vec<StoredBackup>), ServiceError> {
        caller.needs_everywhere(Scope::OperationsRead)?;
        let folder = self.backup_folder()?;
        let listed = tokio::task::spawn_blocking({
            let folder = folder.clone();
            move || list(&folder)
        });
        let found = listed.await.map_err(|error| ServiceError::Unavailable(error.into()))?;
        Ok((folder, found.map_err(|error| ServiceError::Unavailable(error.into()))?))
    }

    /// Reads all files of a backup and compares their checksums.
    ///
    /// # Errors
    /// The scope `admin` is missing; there is no such backup.
    pub async fn verify_backup(&self, caller: &Caller, name: &Name) -> Result<VerifiedBackup, ServiceError> {
        caller.needs_everywhere(Scope::Admin)?;
        let folder = self.backup_folder()?.join(name.as_str());
        if !folder.is_dir() {
            return Err(ServiceError::Missing(format!("the backup `{name}`")));
        }
        let began = self.clock.now();
        let verifying = tokio::task::spawn_blocking(move || backup::verify(&folder));
        let verified = verifying.await.map_err(|error| ServiceError::Unavailable(error.into()))?;
        let took = self.clock.now().since(began);
        match verified {
            Ok(verified) => Ok(VerifiedBackup { reason: None, manifest: Some(verified.manifest), took }),
            Err(StoreError::Unavailable(error)) => Err(StoreError::Unavailable(error).into()),
            Err(error) => Ok(VerifiedBackup { reason: Some(error.to_string()), manifest: None, took }),
        }
    }

    /// Starts a restore drill: restores a backup into a temporary folder, examines and opens it, and removes it. Without
    /// a name a backup is taken first.
    ///
    /// # Errors
    /// The scope `admin` is missing; there is no such backup; another drill is running.
    pub fn start_drill(self: &Arc<Self>, caller: &Caller, backup: Option<Name>) -> Result<RestoreDrill, ServiceError> {
        caller.needs_everywhere(Scope::Admin)?;
        let host = self.host()?.clone();
        let from = match &backup {
            Some(name) => {
                let folder = self.backup_folder()?.join(name.as_str());
                if !folder.is_dir() {
                    return Err(ServiceError::Missing(format!("the backup `{name}`")));
                }
                Some(folder)
            }
            None => None,
        };
        let drill = self.drills.lock().start(backup, caller.key().to_owned(), self.clock.now())?;
        let (service, number) = (self.clone(), drill.number);
        tracing::info!(drill = number, by = caller.key(), "a restore drill began");
        tokio::spawn(async move {
            // A panic of the drill must not leave it in the state `running`.
            let done = tokio::spawn(async move { host.drill(from).await }).await;
            let state = match done {
                Ok(Ok(report)) => DrillState::Succeeded(Box::new(report)),
                Ok(Err(reason)) => DrillState::Failed(reason),
                Err(error) => DrillState::Failed(format!("the drill ended unexpectedly: {error}")),
            };
            match &state {
                DrillState::Failed(reason) => tracing::warn!(drill = number, reason, "a restore drill failed"),
                _ => tracing::info!(drill = number, "a restore drill succeeded"),
            }
            service.drills.lock().end(number, state, service.clock.now());
        });
        Ok(drill)
    }

    /// The restore drills since the start of this process, newest first, at most 20.
    ///
    /// # Errors
    /// The scope `admin` is missing.
    pub fn restore_drills(&self, caller: &Caller) -> Result<Vec<RestoreDrill>, ServiceError> {
        caller.needs_everywhere(Scope::Admin)?;
        Ok(self.drills.lock().all())
    }
}

/// Lists the backups of a folder. Blocks.
fn list(folder: &Path) -> std::io::Result<Vec<StoredBackup>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries.take(LISTED_MAX) {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() {
            found.push(examine(&path, name));
        }
    }
    found.sort_by_key(|backup| std::cmp::Reverse(backup.manifest.as_ref().map(|manifest| manifest.taken_at)));
    Ok(found)
}

/// The state of a backup, without reading its databases.
fn examine(path: &Path, name: String) -> StoredBackup {
    let size = |file: &Path| std::fs::metadata(file).map_or(0, |data| data.len());
    let files = std::fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    let bytes = files.map(|file| size(&file.path())).sum();
    if let Some(name) = name.strip_suffix(".part") {
        return StoredBackup { name: name.to_owned(), state: BackupState::Unfinished, manifest: None, bytes };
    }
    let read = std::fs::read(path.join(MANIFEST)).map_err(|error| format!("{MANIFEST}: {error}"));
    let read =
        read.and_then(|text| serde_json::from_slice::<Manifest>(&text).map_err(|error| format!("{MANIFEST}: {error}")));
    let (state, manifest) = match read {
        Err(reason) => (BackupState::Unreadable(reason), None),
        Ok(manifest) => {
            let is_whole = |file: &backup::CopiedFile| size(&path.join(&file.name)) == file.bytes;
            let state = match manifest.files.iter().find(|file| !is_whole(file)) {
                Some(file) => BackupState::Unreadable(format!("{} is missing or has another size", file.name)),
                None => BackupState::Complete,
            };
            (state, Some(manifest))
        }
    };
    StoredBackup { name, state, manifest, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backups_are_listed_with_their_state_newest_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, files: &[(&str, &str)]| {
            std::fs::create_dir(folder.path().join(name)).expect("made");
            for (file, text) in files {
                std::fs::write(folder.path().join(name).join(file), text).expect("written");
            }
        };
        let manifest = |at: &str, bytes: u64| {
            format!(
                r#"{{"version": "1", "taken_at": "{at}", "files": [{{"name": "a.db", "schema": 1, "bytes": {bytes}, "sha256": ""}}]}}"#
            )
        };
        write("monday", &[(MANIFEST, &manifest("2026-11-23T00:00:00Z", 3)), ("a.db", "abc")]);
        write("tuesday", &[(MANIFEST, &manifest("2026-11-24T00:00:00Z", 9)), ("a.db", "abc")]);
        write("wednesday.part", &[("a.db", "abc")]);
        write("other", &[]);
        let found = list(folder.path()).expect("listed");
        let states: Vec<_> = found.iter().map(|backup| (backup.name.as_str(), &backup.state)).collect();
        assert!(matches!(states[0], ("tuesday", BackupState::Unreadable(reason)) if reason.contains("a.db")));
        assert_eq!(states[1], ("monday", &BackupState::Complete));
        assert_eq!(found.len(), 4);
        assert!(states.contains(&("wednesday", &BackupState::Unfinished)), "{states:?}");
        assert!(list(&folder.path().join("absent")).expect("an empty list").is_empty());
    }
}
