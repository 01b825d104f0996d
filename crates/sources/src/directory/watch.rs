//! The loop: waits for files, reads them in order, and takes them away when they are accepted.

use std::{collections::HashMap, fs::File, os::unix::fs::MetadataExt, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use notify::{
    EventKind, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode},
};
use serde::{Deserialize, Serialize};
use tocsin_model::{mark::Mark, problem::Problem, time::Timestamp};
use tokio::{sync::Notify, task::spawn_blocking, time::Instant};

use super::{
    file::{Opened, Part, Reading, Refused},
    finish,
    folder::{Files, Found, Identity},
    options::DirectoryOptions,
};
use crate::{
    items::Layout,
    known::hash,
    mapping::Mapping,
    source::{Gives, OpenSource, Portion, Setting, Trouble},
};

/// What is remembered of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Progress {
    file: Identity,
    /// How many of its items are accepted.
    taken: u64,
    /// Whether these are all.
    done: bool,
    /// A hash of the options that say what its items are. Empty as the version before stored it.
    #[serde(default)]
    layout: String,
}

/// A folder that is watched.
pub(super) struct Watch {
    setting: Setting,
    options: DirectoryOptions,
    folder: PathBuf,
    reading: Arc<Reading>,
    /// A hash of the options that say what the items of a file are.
    layout: String,
    files: Files,
    progress: HashMap<String, Progress>,
    current: Option<(String, Opened)>,
    /// When the current file was opened, until its first part is given.
    opened_at: Option<Timestamp>,
    /// Parts to forget with the next commit.
    gone: Vec<String>,
    changed: Arc<Notify>,
    _watcher: Option<notify::RecommendedWatcher>,
    /// Keeps other servers away from the folder.
    lock: File,
}

impl Watch {
    pub fn open(
        setting: Setting,
        options: DirectoryOptions,
        folder: PathBuf,
        marks: Vec<Mark>,
    ) -> Result<Watch, Trouble> {
        let lock = File::open(&folder).map_err(|error| Trouble::new(folder.display(), error))?;
        lock.try_lock().map_err(|_| Trouble::of(format!("another source takes the files of {}", folder.display())))?;
        // Any part may be the name of a file, so those of a source of another kind that had this name are passed over.
        let read = |mark: Mark| Some((mark.part.into(), serde_json::from_slice(&mark.value?).ok()?));
        let fields = setting.gives.fields();
        let file_bytes_max = match setting.gives {
            Gives::Events(_) => options.file_bytes_max,
            Gives::Messages { bytes_max } => options.file_bytes_max.min(bytes_max as u64),
        };
        let mapping = Mapping::new(&fields, &options.paths(&fields));
        let reading = Arc::new(Reading {
            layout: Layout { wanted: mapping.names(), ..options.layout() },
            mapping,
            gives: setting.gives.clone(),
            file_bytes_max,
        });
        let layout = format!("{:?} {:?} {:?}", options.format, options.items, options.schema);
        let changed = Arc::new(Notify::new());
        let watcher = watcher(&folder, changed.clone())
            .inspect_err(|error| tracing::info!(source = %setting.name, %error, "changes are found by looking only"))
            .ok();
        Ok(Watch {
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

    /// Waits until there is a file to go on with, or something to forget.
    async fn find(&mut self) -> Result<Option<u64>, Trouble> {
        loop {
            let changed = self.changed.clone();
            let changed = changed.notified();
            let found = self.look().await?;
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
            let patience = found.look_again.unwrap_or(Duration::MAX).min(self.options.rescan.0);
            // A file that is being written is not looked at for each of its writes.
            if found.look_again.is_some() {
                tokio::time::sleep(patience).await;
            } else {
                let _ = tokio::time::timeout(patience, changed).await;
            }
        }
    }

    async fn look(&mut self) -> Result<Found, Trouble> {
        self.still_there()?;
        let mut files = std::mem::take(&mut self.files);
        let (folder, options, now) = (self.folder.clone(), self.options.clone(), Instant::now());
        let look = move || {
            let found = files.look(&folder, &options.pattern, options.order, options.settle.0, now);
            (files, found)
        };
        let (files, found) = spawn_blocking(look).await.map_err(|error| Trouble::new("looking broke", error))?;
        self.files = files;
        found.map_err(|error| Trouble::new(format!("cannot look through {}", self.folder.display()), error))
    }

    /// A folder that was unmounted, moved or replaced is not one from which all files are gone.
    fn still_there(&self) -> Result<(), Trouble> {
        let gone =
            |error: std::io::Error| Trouble::new(format!("cannot look through {}", self.folder.display()), error);
        let (opened, there) = (self.lock.metadata().map_err(gone)?, std::fs::metadata(&self.folder).map_err(gone)?);
        match (opened.dev(), opened.ino()) == (there.dev(), there.ino()) {
            true => Ok(()),
            false => Err(Trouble::of(format!("{} is another folder than when it was opened", self.folder.display()))),
        }
    }

    /// Opens a file where it was left. Gives whether there is something of it to take.
    async fn begin(&mut self, name: String, identity: Identity) -> Result<bool, Trouble> {
        let known = self.progress.get(&name).filter(|progress| progress.file == identity);
        // So many items of another kind say nothing of where the next one of this kind is.
        let is_other = |progress: &Progress| !progress.layout.is_empty() && progress.layout != self.layout;
        if let Some(taken) =
            known.filter(|known| !known.done && known.taken > 0 && is_other(known)).map(|known| known.taken)
        {
            let text = format!("was read by another definition when {taken} of its items were accepted");
            let problem = Problem::at("", text).hint("drop the items that are left in a file of their own");
            return self.refuse(&name, taken, Refused::Problems(vec![problem])).map(|()| false);
        }
        let taken = match known {
            // It was accepted whole, and then something came in between.
            Some(progress) if progress.done => {
                self.take_away(&name)?;
                return Ok(false);
            }
            Some(progress) => progress.taken,
            None => 0,
        };
        self.opened_at = Some(self.now());
        let (reading, path) = (self.reading.clone(), self.folder.join(&name));
        let open = spawn_blocking(move || reading.open(&path, identity, taken));
        match open.await.map_err(|error| Trouble::new("reading broke", error))? {
            Ok(opened) => {
                self.progress
                    .insert(name.clone(), Progress { file: identity, taken, done: false, layout: self.layout.clone() });
                self.current = Some((name, opened));
                Ok(true)
            }
            Err(refused) => self.refuse(&name, taken, refused).map(|()| false),
        }
    }

    /// The next part of the file that is being read.
    async fn part(&mut self) -> Result<Option<Part>, Trouble> {
        let Some((name, mut opened)) = self.current.take() else { return Ok(None) };
        let reading = self.reading.clone();
        let next = spawn_blocking(move || {
            let part = reading.next(&mut opened);
            (opened, part)
        });
        let (opened, part) = next.await.map_err(|error| Trouble::new("reading broke", error))?;
        let accepted = self.progress.get(&name).map_or(0, |progress| progress.taken);
        match part {
            Ok(part) => {
                self.current = Some((name, opened));
                Ok(Some(part))
            }
            Err(refused) => self.refuse(&name, accepted, refused).map(|()| None),
        }
    }

    /// Puts a file aside that cannot be taken.
    fn refuse(&mut self, name: &str, accepted: u64, refused: Refused) -> Result<(), Trouble> {
        let problems = match refused {
            Refused::Problems(problems) => problems,
            Refused::Io(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.gone.push(name.to_owned());
                return Ok(());
            }
            // It is set aside, so that the files behind it do not wait for a change of its rights.
            Refused::Io(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                let problem = Problem::at("", format!("cannot be read: {error}"));
                vec![problem.hint("let the user of the server read it, and drop it anew")]
            }
            Refused::Io(error) => return Err(Trouble::new(format!("cannot read {name}"), error)),
        };
        let moved = finish::refuse(&self.folder, name, accepted, &problems, self.now())
            .map_err(|error| Trouble::new(format!("cannot put {name} aside"), error))?;
        let first = problems.first().map(ToString::to_string).unwrap_or_default();
        tracing::warn!(
            application = %self.setting.application, source = %self.setting.name, file = moved, reason = first,
            "a file is not taken"
        );
        self.gone.push(name.to_owned());
        metrics::counter!("source_files_total", "result" => "refused").increment(1);
        Ok(())
    }

    fn take_away(&mut self, name: &str) -> Result<(), Trouble> {
        match finish::done(&self.folder, name, self.options.done, self.now()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Trouble::new(format!("cannot put {name} aside"), error));
            }
            // Somebody took it away by hand.
            _ => {}
        }
        self.gone.push(name.to_owned());
        metrics::counter!("source_files_total", "result" => "taken").increment(1);
        Ok(())
    }

    /// Files of which something is remembered and that are not there any more.
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
        gone.into_iter().map(Mark::forget).collect()
    }
}

/// Rings when files come or change.
fn watcher(folder: &std::path::Path, changed: Arc<Notify>) -> notify::Result<notify::RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if is_change(&event) {
            changed.notify_one();
        }
    })?;
    watcher.watch(folder, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}

/// Whether an event says that there may be something else in the folder. That a file or the folder itself was opened, read or
/// closed does not: the look that follows opens and reads it as well, and would ring for the next one.
fn is_change(event: &notify::Result<notify::Event>) -> bool {
    match event {
        Ok(event) => match event.kind {
            EventKind::Access(access) => access == AccessKind::Close(AccessMode::Write),
            _ => true,
        },
        // An event that was lost may have been any.
        Err(_) => true,
    }
}

#[async_trait]
impl OpenSource for Watch {
    async fn next(&mut self) -> Result<Portion, Trouble> {
        let mut waiting = None;
        loop {
            if self.current.is_none() {
                waiting = self.find().await?;
            }
            if self.current.is_none() {
                return Ok(Portion { marks: self.forgotten(), ..Portion::default() });
            }
            // The first part of a file was here when the file was opened to be checked.
            let received_at = self.opened_at.take().or_else(|| Some(self.now()));
            let Some(Part { events, message, is_last }) = self.part().await? else { continue };
            let (name, opened) = self.current.as_ref().expect("a part is of the current file");
            let (name, taken) = (name.clone(), opened.taken);
            let progress = self.progress.get_mut(&name).expect("it is made when a file is opened");
            (progress.taken, progress.done) = (taken, is_last);
            let value = serde_json::to_vec(progress).expect("it is JSON");
            let since = Timestamp(i64::try_from(progress.file.changed / 1_000).unwrap_or(0));
            self.gone.retain(|gone| *gone != name);
            let mut marks = self.forgotten();
            marks.push(Mark::set(name, value));
            let messages = message.into_iter().collect();
            return Ok(Portion {
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

    async fn accepted(&mut self) -> Result<(), Trouble> {
        let done = self.current.take_if(|(name, _)| self.progress.get(name).is_some_and(|progress| progress.done));
        match done {
            Some((name, _)) => self.take_away(&name),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::mpsc};

    use super::*;

    #[test]
    fn b25_reading_a_folder_is_no_change_of_it() {
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
        // Events come in their order: the first that counts is of the new file.
        let first = events.recv_timeout(crate::testing::PATIENCE).expect("an event").expect("of the folder");
        assert!(first.paths.iter().all(|path| path.ends_with("new")) && !first.paths.is_empty(), "{first:?}");
    }
}
