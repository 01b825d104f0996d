//! What a measurement is given: sizes, turns, folders, and where to tell how it goes.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use super::{given::Given, progress::Progress};
use crate::{
    failure::{Failure, Outcome},
    terminal::Terminal,
};

/// What the person who measures may choose.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Small sizes and one repeat: shows that it works, and is no figure to quote.
    pub quick: bool,
    /// Runs of each figure; by default 5, or 1 if quick.
    pub repeats: Option<usize>,
    /// On whose disk the servers' folders lie; by default that of the peers' work folder.
    pub folder: Option<PathBuf>,
    /// The sources of the peers: `bench/peers` of the repository.
    pub peers: PathBuf,
    /// Far ends in place of our own.
    pub given: Given,
}

/// What a measurement is given.
#[derive(Debug)]
pub struct Context {
    /// Small sizes: shows that it works.
    pub quick: bool,
    /// The sources of the peers.
    pub peers_source: PathBuf,
    /// Where peers are built and their data lie.
    pub peers_folder: PathBuf,
    /// This program, which is also the server.
    pub program: PathBuf,
    /// Far ends in place of our own.
    pub given: Given,
    /// How far it is, for whoever waits.
    pub progress: Progress,
    repeats: usize,
    folder: PathBuf,
    folders: AtomicU32,
}

impl Context {
    /// As it was asked for.
    ///
    /// # Errors
    /// The work folder cannot be made.
    pub fn new(settings: Settings) -> Outcome<Self> {
        let home = env::var_os("HOME").map_or_else(env::temp_dir, PathBuf::from);
        let peers_folder = env::var_os("PEERS_DIR").map_or_else(|| home.join(".cache/tocsin-peers"), PathBuf::from);
        let folder = settings.folder.unwrap_or_else(|| peers_folder.join("run"));
        fs::create_dir_all(&folder).map_err(|error| Failure::file("make the folder", &folder, &error))?;
        // The server runs elsewhere, so its folder needs its whole name.
        let folder = folder.canonicalize().map_err(|error| Failure::file("find", &folder, &error))?;
        let program = env::current_exe()
            .map_err(|error| Failure::failed("this program does not know its own file").because(&error))?;
        Ok(Context {
            quick: settings.quick,
            peers_source: settings.peers,
            peers_folder,
            program,
            given: settings.given,
            progress: Progress::plain(),
            repeats: settings.repeats.unwrap_or(if settings.quick { 1 } else { 5 }),
            folder,
            folders: AtomicU32::new(0),
        })
    }

    /// Shows how far it is in one line that changes, if a person looks at it.
    pub fn shown_on(mut self, terminal: &Terminal) -> Self {
        self.progress = Progress::on(terminal);
        self
    }

    /// The size of the work: the real one, or one that only shows that it works.
    pub fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// How often a figure is measured.
    pub fn repeats(&self) -> usize {
        self.repeats
    }

    /// The turns; each is shown or told of when it is taken, also in another thread.
    pub fn turns(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        let (repeats, progress) = (self.repeats, self.progress.clone());
        (1..=repeats).inspect(move |turn| progress.turn(*turn, repeats))
    }

    /// A fresh folder, removed when the value ends.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn folder(&self) -> Outcome<Scratch> {
        let number = self.folders.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!("bench-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).map_err(|error| Failure::file("make the folder", &path, &error))?;
        Ok(Scratch(path))
    }

    /// Tells whoever waits how it goes, on standard error.
    pub fn tell(&self, text: impl std::fmt::Display) {
        self.progress.tell(text);
    }

    /// A program of this machine, also one that only root's path would find; if there is none, says what is missing.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        let path = env::var_os("PATH").unwrap_or_default();
        let system = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
        let found = env::split_paths(&path).chain(system).map(|folder| folder.join(name)).find(|file| file.is_file());
        if found.is_none() {
            self.tell(format_args!("   `{name}` is missing: `scripts/setup bench` installs it"));
        }
        found
    }
}

/// A folder that is removed when the value ends.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is left to whoever made it so.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs something that keeps a core busy, so that an interruption is still heard.
///
/// # Errors
/// It panicked.
pub async fn busy<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Outcome<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Failure::failed("the measurement broke off").because(&error))
}

/// The time that this thread had on a processor, so that others cost nothing; where the system does not tell, that of a
/// clock.
pub fn processor_time() -> Duration {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    let told = fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = told.as_deref().and_then(|told| told.split(' ').next()).and_then(|nanos| nanos.parse().ok());
    nanos.map_or_else(|| BEGINNING.elapsed(), Duration::from_nanos)
}
