//! A library in C that is loaded into the server: it keeps a durable copy of a folder, fails syncs and refuses threads.

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
pub enum Word {
    Syncs,
    FailSyncAt,
    FailedSyncs,
    RefuseThreads,
    RefusedThreads,
    Accepts,
    FailedAccepts,
    FailedStores,
}

/// The unsynced data that survives a power loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsynced {
    /// Nothing.
    Dropped,
    /// Any page of it, and the entries of any folder.
    Mixed,
}

/// A folder whose durable state is known.
pub struct Disk {
    /// Removed at the end.
    folder: tempfile::TempDir,
    control: fs::File,
}

impl Disk {
    /// An empty folder.
    pub fn new() -> Disk {
        let folder = tempfile::tempdir().expect("a folder");
        let control = fs::File::options().create_new(true).read(true).write(true).open(folder.path().join("control"));
        let disk = Disk { folder, control: control.expect("a control file") };
        disk.control.set_len(128).expect("a control file");
        fs::create_dir(disk.root()).expect("a folder");
        disk.begin_shadow();
        disk
    }

    /// The folder.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("disk")
    }

    fn shadow(&self) -> PathBuf {
        self.folder.path().join("shadow")
    }

    /// The variables with which a process is started whose syncs count.
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

    pub fn get(&self, word: Word) -> u64 {
        let mut bytes = [0; 8];
        self.control.read_exact_at(&mut bytes, word as u64 * 8).expect("a word");
        u64::from_ne_bytes(bytes)
    }

    pub fn set(&self, word: Word, value: u64) {
        self.control.write_all_at(&value.to_ne_bytes(), word as u64 * 8).expect("a word");
    }

    /// Puts what survives a power loss in the place of the folder. The process that used it has ended.
    pub fn lose_power(&self, unsynced: Unsynced, random: &mut fastrand::Rng) {
        let image = self.folder.path().join("image");
        let mut places = HashMap::new();
        find_places(&self.root(), &mut places);
        let inode = fs::metadata(self.root()).expect("the folder").ino();
        let mut after = AfterLoss { shadow: self.shadow(), places, unsynced, random };
        after.make_folder(inode, &image);
        fs::remove_dir_all(self.root()).expect("removed");
        fs::rename(&image, self.root()).expect("renamed");
        self.begin_shadow();
    }

    /// All that is there now is durable.
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
            let about = fs::symlink_metadata(&path).expect("it is there");
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

/// The path of each inode.
fn find_places(folder: &Path, places: &mut HashMap<u64, PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let about = fs::symlink_metadata(&path).expect("it is there");
        places.insert(about.ino(), path.clone());
        if about.is_dir() {
            find_places(&path, places);
        }
    }
    places.insert(fs::metadata(folder).expect("a folder").ino(), folder.to_owned());
}

struct AfterLoss<'a> {
    shadow: PathBuf,
    places: HashMap<u64, PathBuf>,
    unsynced: Unsynced,
    random: &'a mut fastrand::Rng,
}

impl AfterLoss<'_> {
    fn chance(&mut self) -> bool {
        self.unsynced == Unsynced::Mixed && self.random.bool()
    }

    fn make_folder(&mut self, inode: u64, to: &Path) {
        fs::create_dir(to).expect("a folder");
        fs::set_permissions(to, fs::Permissions::from_mode(0o700)).expect("set");
        let durable = fs::read_to_string(self.shadow.join("dirs").join(inode.to_string())).unwrap_or_default();
        let live = self.places.get(&inode).cloned().filter(|_| self.chance());
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
        if self.unsynced == Unsynced::Mixed {
            let linked = self.shadow.join("links").join(inode.to_string());
            let live = fs::read(if linked.exists() { &linked } else { &self.places[&inode] }).expect("the file");
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
