//! The watch loop: waits for files, reads them in order, and renames them when they are accepted.

use std::{
    collections::HashMap, ffi::OsStr, fs::File, os::unix::fs::MetadataExt, path::PathBuf, sync::Arc, time::Duration,
};

use async_trait::async_trait;
use notify::{
    EventKind, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode},
};
use serde::{Deserialize, Serialize};
use tocsin_model::{
    mark::Mark,
    problem::{Code, Problem},
    time::Timestamp,
};
use tokio::{sync::Notify, task::spawn_blocking, time::Instant};

use super::{
    file::{FileError, FilePart, FileReader, OpenFile},
    finish,
    folder::{Files, FolderScan, Identity},
    options::DirectoryOptions,
};
use crate::{
    items::Layout,
    mapping::Mapping,
    seen_items::hash,
    source::{OpenSource, SourceBatch, SourceError, SourceOutput, SourceSettings},
};

/// The stored state of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Progress {
    file: Identity,
    /// The number of accepted items.
    taken: u64,
    /// Whether these are all.
    done: bool,
    /// A hash of the options that determine its items. Empty if stored by an older version.
    #[serde(default)]
    layout: String,
}

/// A watched folder.
pub(super) struct FolderWatcher {
    setting: SourceSettings,
    options: DirectoryOptions,
    folder: PathBuf,
    reading: Arc<FileReader>,
    /// A hash of the options that determine the items of a file.
    layout: String,
    files: Files,
    progress: HashMap<String, Progress>,
    current: Option<(String, OpenFile)>,
    /// The time when the current file was opened, until its first part is delivered.
    opened_at: Option<Timestamp>,
    /// Parts of the marks to remove with the next commit.
    gone: Vec<String>,
    changed: Arc<Notify>,
    _watcher: Option<notify::RecommendedWatcher>,
    /// Locks the folder against other sources.
    lock: File,
}

impl FolderWatcher {
    pub fn open(
        setting: SourceSettings,
        options: DirectoryOptions,
        folder: PathBuf,
        marks: Vec<Mark>,
    ) -> Result<FolderWatcher, SourceError> {
        let lock = File::open(&folder).map_err(|error| SourceError::new(folder.display(), error))?;
        lock.try_lock()
            .map_err(|_| SourceError::of(format!("another source takes the files of {}", folder.display())))?;
        // Any part may be the name of a file, so unreadable ones, from a source of another kind with this name, are
        // skipped.
        let read = |mark: Mark| Some((mark.part.into(), serde_json::from_slice(&mark.value?).ok()?));
        let fields = setting.output.fields();
        let file_bytes_max = match setting.output {
            SourceOutput::Events(_) => options.file_bytes_max,
            SourceOutput::Messages { bytes_max } => options.file_bytes_max.min(bytes_max as u64),
        };
        let mapping = Mapping::new(&fields, &options.paths(&fields));
        let reading = Arc::new(FileReader {
            layout: Layout { required: mapping.names(), ..options.layout() },
            mapping,
            output: setting.output.clone(),
            file_bytes_max,
        });
        let layout = format!("{:?} {:?} {:?}", options.format, options.items, options.schema);
        let changed = Arc::new(Notify::new());
        let watcher = watcher(&folder, changed.clone())
            .inspect_err(|error| tracing::info!(source = %setting.name, %error, "changes are found by polling only"))
            .ok();
        Ok(FolderWatcher {
            progress: marks.into_iter().filter_map(read).collect(),
            setting,
            options,
            folder,
            reading,
            layout: hash(&[layout.as_bytes()]),
            files: Files::default(),
            current: None,
            opened_at: None,
            gone: Vec::new(),
            changed,
            _watcher: watcher,
            lock,
        })
    }

    fn now(&self) -> Timestamp {
        self.setting.context.clock.now()
    }

    /// Waits until there is a file to read, or a mark to remove.
    async fn find(&mut self) -> Result<Option<u64>, SourceError> {
        loop {
            let changed = self.changed.clone();
            let changed = changed.notified();
            let found = self.scan().await?;
            if let Some(file) = &found.unnamed {
                self.refuse_unnamed(file)?;
                continue;
            }
            if let Some((name, identity)) = found.next {
                if self.begin(name, identity).await? {
                    return Ok(Some(found.others));
                }
                continue;
            }
            self.forget_absent();
            if !self.gone.is_empty() {
                return Ok(None);
            }
            let patience = found.rescan_after.unwrap_or(Duration::MAX).min(self.options.rescan.0);
            // A file that is being written is not scanned for each write.
            if found.rescan_after.is_some() {
                tokio::time::sleep(patience).await;
            } else {
                let _ = tokio::time::timeout(patience, changed).await;
            }
        }
    }

    async fn scan(&mut self) -> Result<FolderScan, SourceError> {
        self.still_there()?;
        let mut files = std::mem::take(&mut self.files);
        let (folder, options, now) = (self.folder.clone(), self.options.clone(), Instant::now());
        let scan = move || {
            let found = files.scan(&folder, &options.pattern, options.order, options.settle.0, now);
            (files, found)
        };
        let (files, found) = spawn_blocking(scan).await.map_err(|error| SourceError::new("looking broke", error))?;
        self.files = files;
        found.map_err(|error| SourceError::new(format!("cannot look through {}", self.folder.display()), error))
    }

    /// A folder that was unmounted, moved or replaced is an error, not an empty folder.
    fn still_there(&self) -> Result<(), SourceError> {
        let gone =
            |error: std::io::Error| SourceError::new(format!("cannot look through {}", self.folder.display()), error);
        let (opened, there) = (self.lock.metadata().map_err(gone)?, std::fs::metadata(&self.folder).map_err(gone)?);
        match (opened.dev(), opened.ino()) == (there.dev(), there.ino()) {
            true => Ok(()),
            false => {
                Err(SourceError::of(format!("{} is another folder than when it was opened", self.folder.display())))
            }
        }
    }

    /// Opens a file at its position. Returns whether items are left.
    async fn begin(&mut self, name: String, identity: Identity) -> Result<bool, SourceError> {
        let known = self.progress.get(&name).filter(|progress| progress.file == identity);
        // A position among items of another kind is meaningless.
        let is_other = |progress: &Progress| !progress.layout.is_empty() && progress.layout != self.layout;
        if let Some(taken) =
            known.filter(|known| !known.done && known.taken > 0 && is_other(known)).map(|known| known.taken)
        {
            let text = format!("was read with another definition when {taken} of its items were accepted");
            let problem = Problem::new(Code::Conflict, "", text).hint("put the remaining items into a new file");
            return self.refuse(&name, taken, FileError::Problems(vec![problem])).map(|()| false);
        }
        let taken = match known {
            // It was accepted completely before a crash.
            Some(progress) if progress.done => {
                self.complete(&name)?;
                return Ok(false);
            }
            Some(progress) => progress.taken,
            None => 0,
        };
        self.opened_at = Some(self.now());
        let (reading, path) = (self.reading.clone(), self.folder.join(&name));
        let open = spawn_blocking(move || reading.open(&path, identity, taken));
        match open.await.map_err(|error| SourceError::new("reading broke", error))? {
            Ok(opened) => {
                self.progress
                    .insert(name.clone(), Progress { file: identity, taken, done: false, layout: self.layout.clone() });
                self.current = Some((name, opened));
                Ok(true)
            }
            Err(refused) => self.refuse(&name, taken, refused).map(|()| false),
        }
    }

    /// The next part of the current file.
    async fn part(&mut self) -> Result<Option<FilePart>, SourceError> {
        let Some((name, mut opened)) = self.current.take() else { return Ok(None) };
        let reading = self.reading.clone();
        let next = spawn_blocking(move || {
            let part = reading.next(&mut opened);
            (opened, part)
        });
        let (opened, part) = next.await.map_err(|error| SourceError::new("reading broke", error))?;
        let accepted = self.progress.get(&name).map_or(0, |progress| progress.taken);
        match part {
            Ok(part) => {
                self.current = Some((name, opened));
                Ok(Some(part))
            }
            Err(refused) => self.refuse(&name, accepted, refused).map(|()| None),
        }
    }

    /// Rejects a file.
    fn refuse(&mut self, name: &str, accepted: u64, refused: FileError) -> Result<(), SourceError> {
        let problems = match refused {
            FileError::Problems(problems) => problems,
            FileError::Io(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.gone.push(name.to_owned());
                return Ok(());
            }
            // It is rejected, so that it does not block the files behind it until its permissions change.
            FileError::Io(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                let problem = Problem::new(Code::Unreadable, "", format!("cannot be read: {error}"));
                vec![problem.hint("make it readable for the server's user, and drop it again")]
            }
            FileError::Io(error) => return Err(SourceError::new(format!("cannot read {name}"), error)),
        };
        let moved = finish::refuse(&self.folder, name.as_ref(), accepted, &problems, self.now())
            .map_err(|error| SourceError::new(format!("cannot rename {name}"), error))?;
        self.report_refused(&moved, &problems);
        self.gone.push(name.to_owned());
        Ok(())
    }

    /// Rejects a file whose name is not UTF-8.
    fn refuse_unnamed(&self, file: &OsStr) -> Result<(), SourceError> {
        let problem = Problem::new(Code::InvalidCharacters, "", "has a name that is not UTF-8");
        let problems = [problem.hint("drop it again under a name in UTF-8")];
        match finish::refuse(&self.folder, file, 0, &problems, self.now()) {
            Ok(moved) => self.report_refused(&moved, &problems),
            // It was removed manually.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(SourceError::new(format!("cannot rename {}", file.to_string_lossy()), error)),
        }
        Ok(())
    }

    fn report_refused(&self, moved: &str, problems: &[Problem]) {
        let first = problems.first().map(ToString::to_string).unwrap_or_default();
        tracing::warn!(
            application = %self.setting.application, source = %self.setting.name, file = moved, reason = first,
            "a file is rejected"
        );
        metrics::counter!("tocsin_source_files_total", "result" => "refused").increment(1);
    }

    fn complete(&mut self, name: &str) -> Result<(), SourceError> {
        match finish::complete(&self.folder, name, self.options.done, self.now()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(SourceError::new(format!("cannot rename {name}"), error));
            }
            // It was removed manually.
            _ => {}
        }
        self.gone.push(name.to_owned());
        metrics::counter!("tocsin_source_files_total", "result" => "taken").increment(1);
        Ok(())
    }

    /// Marks of files that are not present any more.
    fn forget_absent(&mut self) {
        let absent = self.progress.keys().filter(|name| !self.files.has(name) && !self.gone.contains(name));
        let absent: Vec<String> = absent.cloned().collect();
        self.gone.extend(absent);
    }

    fn forgotten(&mut self) -> Vec<Mark> {
        let gone = std::mem::take(&mut self.gone);
        for name in &gone {
            self.progress.remove(name);
        }
        gone.into_iter().map(Mark::delete).collect()
    }
}

/// Signals when files arrive or change.
fn watcher(folder: &std::path::Path, changed: Arc<Notify>) -> notify::Result<notify::RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if is_change(&event) {
            changed.notify_one();
        }
    })?;
    watcher.watch(folder, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}

/// Whether an event can change the result of a scan. Opening, reading or closing does not: the scan itself does that,
/// and would trigger the next one.
fn is_change(event: &notify::Result<notify::Event>) -> bool {
    match event {
        Ok(event) => match event.kind {
            EventKind::Access(access) => access == AccessKind::Close(AccessMode::Write),
            _ => true,
        },
        // A lost event may have been a change.
        Err(_) => true,
    }
}

#[async_trait]
impl OpenSource for FolderWatcher {
    async fn next(&mut self) -> Result<SourceBatch, SourceError> {
        let mut waiting = None;
        loop {
            if self.current.is_none() {
                waiting = self.find().await?;
            }
            if self.current.is_none() {
                return Ok(SourceBatch { marks: self.forgotten(), ..SourceBatch::default() });
            }
            // The first part of a file is received when the file is opened for the check.
            let received_at = self.opened_at.take().or_else(|| Some(self.now()));
            let Some(FilePart { events, message, is_last }) = self.part().await? else { continue };
            let (name, opened) = self.current.as_ref().expect("a part is of the current file");
            let (name, taken) = (name.clone(), opened.taken);
            let progress = self.progress.get_mut(&name).expect("it is created when a file is opened");
            (progress.taken, progress.done) = (taken, is_last);
            let value = serde_json::to_vec(progress).expect("it is JSON");
            let since = Timestamp(i64::try_from(progress.file.changed / 1_000).unwrap_or(0));
            self.gone.retain(|gone| *gone != name);
            let mut marks = self.forgotten();
            marks.push(Mark::set(name, value));
            let messages = message.into_iter().collect();
            return Ok(SourceBatch {
                events,
                messages,
                marks,
                since: Some(since),
                waiting,
                received_at,
                refused: Vec::new(),
            });
        }
    }

    async fn accepted(&mut self) -> Result<(), SourceError> {
        let done = self.current.take_if(|(name, _)| self.progress.get(name).is_some_and(|progress| progress.done));
        match done {
            Some((name, _)) => self.complete(&name),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::mpsc};

    use super::*;

    #[test]
    fn b25_reading_a_folder_is_not_a_change() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("there"), "x").expect("written");
        let (sender, events) = mpsc::channel();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if is_change(&event) {
                let _ = sender.send(event);
            }
        })
        .expect("a watcher");
        watcher.watch(folder.path(), RecursiveMode::NonRecursive).expect("watched");
        for _ in 0..3 {
            assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 1);
            assert_eq!(fs::read(folder.path().join("there")).expect("read"), b"x");
        }
        fs::write(folder.path().join("new"), "x").expect("written");
        // Events are in order: the first relevant one is for the new file.
        let first = events.recv_timeout(crate::testing::wait_timeout()).expect("an event").expect("of the folder");
        assert!(first.paths.iter().all(|path| path.ends_with("new")) && !first.paths.is_empty(), "{first:?}");
    }
}
