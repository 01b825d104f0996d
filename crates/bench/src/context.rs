//! Measurement context: sizes, turns, folders and progress output.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use super::{external_targets::ExternalTargets, progress::Progress};
use crate::{
    failure::{Failure, Outcome},
    terminal::Terminal,
};

/// Options of a benchmark run.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Small sizes and one repeat: a smoke test, not a quotable figure.
    pub quick: bool,
    /// Runs of each figure; default 5, or 1 if quick.
    pub repeats: Option<usize>,
    /// Folder for the servers' data; default: the peers' work folder. Its disk is the measured disk.
    pub folder: Option<PathBuf>,
    /// Sources of the peers: `bench/peers` of the repository.
    pub peers: PathBuf,
    /// External targets that replace the built-in receivers.
    pub targets: ExternalTargets,
    /// Server to measure; default: this executable.
    pub program: Option<PathBuf>,
}

/// Context that every measurement receives.
#[derive(Debug)]
pub struct Context {
    /// Small sizes: a smoke test.
    pub quick: bool,
    /// Sources of the peers.
    pub peers_source: PathBuf,
    /// Folder in which peers are built and keep their data.
    pub peers_folder: PathBuf,
    /// Path of the server to measure.
    pub program: PathBuf,
    /// External targets that replace the built-in receivers.
    pub targets: ExternalTargets,
    /// Progress display.
    pub progress: Progress,
    repeats: usize,
    folder: PathBuf,
    folders: AtomicU32,
}

impl Context {
    /// Creates a context from the settings.
    ///
    /// # Errors
    /// If the work folder cannot be created.
    pub fn new(settings: Settings) -> Outcome<Self> {
        let home = env::var_os("HOME").map_or_else(env::temp_dir, PathBuf::from);
        let peers_folder = env::var_os("PEERS_DIR").map_or_else(|| home.join(".cache/tocsin-peers"), PathBuf::from);
        let folder = settings.folder.unwrap_or_else(|| peers_folder.join("run"));
        fs::create_dir_all(&folder).map_err(|error| Failure::file("make the folder", &folder, &error))?;
        // The server runs in another directory, so the path must be absolute.
        let folder = folder.canonicalize().map_err(|error| Failure::file("find", &folder, &error))?;
        let program = match settings.program {
            Some(program) => program.canonicalize().map_err(|error| Failure::file("find", &program, &error))?,
            None => env::current_exe()
                .map_err(|error| Failure::failed("cannot find the path of this executable").because(&error))?,
        };
        Ok(Context {
            quick: settings.quick,
            peers_source: settings.peers,
            peers_folder,
            program,
            targets: settings.targets,
            progress: Progress::plain(),
            repeats: settings.repeats.unwrap_or(if settings.quick { 1 } else { 5 }),
            folder,
            folders: AtomicU32::new(0),
        })
    }

    /// Shows progress in one changing line, if the output is a terminal.
    pub fn with_display(mut self, terminal: &Terminal) -> Self {
        self.progress = Progress::on(terminal);
        self
    }

    /// Returns `full`, or `quick` for a smoke test.
    pub fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Number of repeats of a figure.
    pub fn repeats(&self) -> usize {
        self.repeats
    }

    /// Iterates over the turns. Each turn is shown or logged when it starts, also from another thread.
    pub fn turns(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        let (repeats, progress) = (self.repeats, self.progress.clone());
        (1..=repeats).inspect(move |turn| progress.turn(*turn, repeats))
    }

    /// Creates a fresh folder, removed on drop.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn folder(&self) -> Outcome<Scratch> {
        let number = self.folders.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.join(format!("bench-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).map_err(|error| Failure::file("make the folder", &path, &error))?;
        Ok(Scratch(path))
    }

    /// Writes a progress message to standard error.
    pub fn log(&self, text: impl std::fmt::Display) {
        self.progress.log(text);
    }

    /// Finds a program in `PATH` or in root's directories. If it is missing, logs how to install it.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        let path = env::var_os("PATH").unwrap_or_default();
        let system = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
        let found = env::split_paths(&path).chain(system).map(|folder| folder.join(name)).find(|file| file.is_file());
        if found.is_none() {
            self.log(format_args!("   `{name}` is missing: `scripts/setup bench` installs it"));
        }
        found
    }
}

/// Temporary folder, removed on drop.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Files of another user cannot be removed here.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs CPU-bound work on a blocking thread, so that interruption still works.
///
/// # Errors
/// If the work panics.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Outcome<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Failure::failed("the measurement broke off").because(&error))
}

/// CPU time of this thread, unaffected by other processes. Where the system does not provide it: elapsed time.
pub fn processor_time() -> Duration {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    let schedstat = fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = schedstat.as_deref().and_then(|text| text.split(' ').next()).and_then(|nanos| nanos.parse().ok());
    nanos.map_or_else(|| BEGINNING.elapsed(), Duration::from_nanos)
}
