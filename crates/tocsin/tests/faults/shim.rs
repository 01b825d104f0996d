//! Fault injection library in C, loaded into the server: keeps a durable copy of a folder, fails syncs and refuses
//! threads.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

const PAGE: usize = 4096;

/// Words of the control file, in the order of `faults.c`.
#[derive(Debug, Clone, Copy)]
pub enum ControlWord {
    Syncs,
    FailSyncAt,
    FailedSyncs,
    RefuseThreads,
    RefusedThreads,
    Accepts,
    FailedAccepts,
    FailedStores,
}

/// Unsynced data that survives a power loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnsyncedData {
    /// None.
    Dropped,
    /// Random pages, and random folder entries.
    Mixed,
}

/// Folder with a known durable state.
pub struct Disk {
    /// Removed on drop.
    folder: tempfile::TempDir,
    control: fs::File,
}

impl Disk {
    /// Creates an empty folder.
    pub fn new() -> Disk {
        let folder = tempfile::tempdir().expect("a folder");
        let control = fs::File::options().create_new(true).read(true).write(true).open(folder.path().join("control"));
        let disk = Disk { folder, control: control.expect("a control file") };
        disk.control.set_len(128).expect("a control file");
        fs::create_dir(disk.root()).expect("a folder");
        disk.begin_shadow();
        disk
    }

    /// Path of the folder.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    fn shadow(&self) -> PathBuf {
        self.folder.path().join("shadow")
    }

    /// Environment variables of a process whose syncs are tracked.
    pub fn environment(&self) -> Vec<(String, String)> {
        let text = |path: &Path| path.to_str().expect("text").to_owned();
        [
            ("LD_PRELOAD", text(library())),
            ("FAULTS_CONTROL", text(&self.folder.path().join("control"))),
            ("FAULTS_ROOT", text(&self.root())),
            ("FAULTS_SHADOW", text(&self.shadow())),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    pub fn get(&self, word: ControlWord) -> u64 {
        let mut bytes = [0; 8];
        self.control.read_exact_at(&mut bytes, word as u64 * 8).expect("a word");
        u64::from_ne_bytes(bytes)
    }

    pub fn set(&self, word: ControlWord, value: u64) {
        self.control.write_all_at(&value.to_ne_bytes(), word as u64 * 8).expect("a word");
    }

    /// Replaces the folder by the state that survives a power loss. The process that used it has ended.
    pub fn lose_power(&self, unsynced: UnsyncedData, random: &mut fastrand::Rng) {
        let image = self.folder.path().join("image");
        let mut paths = HashMap::new();
        find_paths(&self.root(), &mut paths);
        let inode = fs::metadata(self.root()).expect("the folder").ino();
        let mut after = LossSimulation { shadow: self.shadow(), paths, unsynced, random };
        after.make_folder(inode, &image);
        fs::remove_dir_all(self.root()).expect("removed");
        fs::rename(&image, self.root()).expect("renamed");
        self.begin_shadow();
    }

    /// Marks the present state as durable.
    fn begin_shadow(&self) {
        let shadow = self.shadow();
        let _ = fs::remove_dir_all(&shadow);
        for part in ["inodes", "dirs", "links"] {
            fs::create_dir_all(shadow.join(part)).expect("a folder");
        }
        self.note_folder(&self.root());
    }

    fn note_folder(&self, folder: &Path) {
        let mut lines = String::new();
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let about = fs::symlink_metadata(&path).expect("it exists");
            let (kind, inode) = (if about.is_dir() { 'd' } else { 'f' }, about.ino().to_string());
            let name = path.file_name().expect("a name").to_str().expect("text").to_owned();
            lines.push_str(&format!("{kind} {inode} {name}\n"));
            if about.is_dir() {
                self.note_folder(&path);
            } else {
                fs::copy(&path, self.shadow().join("inodes").join(&inode)).expect("copied");
                fs::hard_link(&path, self.shadow().join("links").join(&inode)).expect("linked");
            }
        }
        let inode = fs::metadata(folder).expect("a folder").ino().to_string();
        fs::write(self.shadow().join("dirs").join(inode), lines).expect("written");
    }
}

/// Collects the path of each inode.
fn find_paths(folder: &Path, paths: &mut HashMap<u64, PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let about = fs::symlink_metadata(&path).expect("it exists");
        paths.insert(about.ino(), path.clone());
        if about.is_dir() {
            find_paths(&path, paths);
        }
    }
    paths.insert(fs::metadata(folder).expect("a folder").ino(), folder.to_owned());
}

struct LossSimulation<'a> {
    shadow: PathBuf,
    paths: HashMap<u64, PathBuf>,
    unsynced: UnsyncedData,
    random: &'a mut fastrand::Rng,
}

impl LossSimulation<'_> {
    fn chance(&mut self) -> bool {
        self.unsynced == UnsyncedData::Mixed && self.random.bool()
    }

    fn make_folder(&mut self, inode: u64, to: &Path) {
        fs::create_dir(to).expect("a folder");
        fs::set_permissions(to, fs::Permissions::from_mode(0o700)).expect("set");
        let durable = fs::read_to_string(self.shadow.join("dirs").join(inode.to_string())).unwrap_or_default();
        let live = self.paths.get(&inode).cloned().filter(|_| self.chance());
        let entries: Vec<(bool, u64, String)> = match live {
            Some(folder) => {
                let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
                let about = |entry: &fs::DirEntry| entry.metadata().expect("it is there");
                let name = |entry: &fs::DirEntry| entry.file_name().to_str().expect("text").to_owned();
                entries.map(|entry| (about(&entry).is_dir(), about(&entry).ino(), name(&entry))).collect()
            }
            None => {
                let parts = durable.lines().map(|line| line.splitn(3, ' ').collect::<Vec<_>>());
                parts.map(|parts| (parts[0] == "d", parts[1].parse().expect("an inode"), parts[2].to_owned())).collect()
            }
        };
        for (is_folder, inode, name) in entries {
            match is_folder {
                true => self.make_folder(inode, &to.join(name)),
                false => self.make_file(inode, &to.join(name)),
            }
        }
    }

    fn make_file(&mut self, inode: u64, to: &Path) {
        let durable = fs::read(self.shadow.join("inodes").join(inode.to_string())).unwrap_or_default();
        let mut content = durable;
        if self.unsynced == UnsyncedData::Mixed {
            let linked = self.shadow.join("links").join(inode.to_string());
            let live = fs::read(if linked.exists() { &linked } else { &self.paths[&inode] }).expect("the file");
            if self.random.bool() {
                content.resize(live.len(), 0);
            }
            for (page, live) in content.chunks_mut(PAGE).zip(live.chunks(PAGE)) {
                if self.random.bool() {
                    let length = page.len().min(live.len());
                    page[..length].copy_from_slice(&live[..length]);
                }
            }
        }
        fs::write(to, content).expect("written");
        fs::set_permissions(to, fs::Permissions::from_mode(0o600)).expect("set");
    }
}

/// Compiles `faults.c` once.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/faults.c");
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("faults-{}.so", std::process::id()));
        let arguments = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"];
        let mut compiler = Command::new("cc");
        compiler.args(arguments).arg(&library).arg(source).arg("-ldl");
        let status = compiler.status().expect("a C compiler, `cc`");
        assert!(status.success(), "{status}");
        library
    })
}
