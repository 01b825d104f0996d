//! Read policy for files that definitions may name: certificates, keys, tokens, credentials. A definition may come
//! over the network from any holder of a key, and could send the content of a file anywhere. So a file is read only
//! from folders that the operator has allowed, and never from the data folder, which holds the server's own keys.

use std::{
    fs::File,
    io::Read,
    path::{Component, Path, PathBuf},
};

/// Largest file in bytes; a bundle of all public authorities has a quarter of it.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// The files that definitions may name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Files {
    allow: Vec<PathBuf>,
    data_folder: PathBuf,
    is_open: bool,
}

impl Files {
    /// Allows the listed files and all below the listed folders; none in the data folder.
    pub fn new(allow: Vec<PathBuf>, data_folder: PathBuf) -> Files {
        Files { allow, data_folder, is_open: false }
    }

    /// Allows every file: for files that the configuration itself names.
    pub fn of_configuration() -> Files {
        Files { is_open: true, ..Files::default() }
    }

    /// The file to read, with links resolved. The error says why it is not read.
    pub fn resolve_allowed(&self, path: &Path) -> Result<PathBuf, String> {
        let shown = path.display();
        let closed = || {
            format!(
                "{shown} may not be read by a definition; `delivery.allow_files` in the configuration can open it or its folder"
            )
        };
        let allowed = self.allow.iter().filter_map(|allowed| allowed.canonicalize().ok());
        let is_allowed = |found: &Path| self.is_open || allowed.clone().any(|allowed| found.starts_with(allowed));
        let found = match path.canonicalize() {
            Ok(found) => found,
            // Whether a file exists is reported for allowed folders only.
            Err(error) if self.is_open || self.is_below_open(path) => {
                return Err(format!("{shown} cannot be read: {error}"));
            }
            Err(_) => return Err(closed()),
        };
        if !is_allowed(&found) {
            return Err(closed());
        }
        let data_folder = Some(&self.data_folder).filter(|folder| !folder.as_os_str().is_empty() && !self.is_open);
        if data_folder.is_some_and(|folder| folder.canonicalize().is_ok_and(|folder| found.starts_with(folder))) {
            return Err(format!(
                "{shown} is in the data folder, where the server keeps its own; move it to another folder"
            ));
        }
        match found.metadata() {
            Ok(metadata) if metadata.is_file() => Ok(found),
            Ok(_) => Err(format!("{shown} is not a regular file")),
            Err(error) => Err(format!("{shown} cannot be read: {error}")),
        }
    }

    /// The content of a file. The error says why it is not read.
    pub fn read(&self, path: &Path) -> Result<Vec<u8>, String> {
        read_regular(&self.resolve_allowed(path)?, FILE_BYTES_MAX)
    }

    /// The same as text.
    pub fn read_text(&self, path: &Path) -> Result<String, String> {
        String::from_utf8(self.read(path)?).map_err(|_| format!("{} is not a text in UTF-8", path.display()))
    }

    fn is_below_open(&self, path: &Path) -> bool {
        let leads_up = path.components().any(|part| part == Component::ParentDir);
        !leads_up && self.allow.iter().any(|allowed| path.starts_with(allowed))
    }
}

/// The content of a regular file of at most `bytes_max` bytes. The error says why it is not read.
pub fn read_regular(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let failed = |error: std::io::Error| format!("{shown} cannot be read: {error}");
    // Opening a pipe would wait for a writer.
    let is_regular = |metadata: std::fs::Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(format!("{shown} is not a regular file")),
    };
    is_regular(std::fs::metadata(path).map_err(failed)?)?;
    let file = File::open(path).map_err(failed)?;
    is_regular(file.metadata().map_err(failed)?)?;
    let mut content = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > bytes_max {
        return Err(format!("{shown} has more than {} KiB", bytes_max >> 10));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, process::Command};

    use super::*;

    #[test]
    fn a17_a_definition_names_files_of_open_folders_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        for name in ["data", "open/below", "open-not", "etc"] {
            fs::create_dir_all(path(name)).expect("a folder");
        }
        for name in
            ["data/admin.key", "data/other", "open/token", "open/below/ca.pem", "open-not/token", "etc/one", "etc/two"]
        {
            fs::write(path(name), name).expect("a file");
        }
        symlink(path("data/admin.key"), path("open/innocent")).expect("a link");
        symlink(path("etc/two"), path("open/away")).expect("a link");
        symlink(path("data"), path("open/data")).expect("a link");
        symlink(path("open/token"), path("data/back")).expect("a link");
        let files = Files::new(vec![path("open"), path("etc/one"), path("gone")], path("data"));
        let check = |name: &str, expected: &str| match files.read_text(&path(name)) {
            Ok(text) => assert_eq!(text, expected, "{name}"),
            Err(text) => assert!(!expected.is_empty() && text.contains(expected), "{name}: {text}"),
        };
        check("open/token", "open/token");
        check("open/below/ca.pem", "open/below/ca.pem");
        check("open/below/../token", "open/token");
        check("etc/one", "etc/one");
        check("data/back", "open/token");
        let closed = "`delivery.allow_files`";
        for name in [
            "data/admin.key",
            "data/other",
            "open/innocent",
            "open/away",
            "open/data/admin.key",
            "open/../data/admin.key",
            "open-not/token",
            "etc/two",
            "open/../missing",
            "missing",
        ] {
            check(name, closed);
        }
        check("open/missing", "cannot be read");
        let all = Files::new(vec![folder.path().to_owned()], path("data"));
        for name in ["data/admin.key", "open/innocent", "open/data/admin.key"] {
            assert!(all.read(&path(name)).is_err_and(|text| text.contains("data folder")), "{name}");
        }
        assert!(Files::default().read(&path("open/token")).is_err());
        assert!(Files::new(vec![path("open")], path("data")).read(Path::new("admin.key")).is_err());
        assert!(Files::of_configuration().read(&path("open/token")).is_ok());
    }

    #[test]
    fn a18_only_regular_files_of_a_bounded_size_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let files = Files::new(vec![folder.path().to_owned(), "/dev".into(), "/proc".into()], "/nonexistent".into());
        assert!(Command::new("mkfifo").arg(path("pipe")).status().is_ok_and(|status| status.success()));
        symlink("/dev/zero", path("zero")).expect("a link");
        for file in [path("pipe"), path("zero"), "/dev/zero".into(), "/dev/stdin".into(), folder.path().to_owned()] {
            let text = files.read(&file).expect_err("not read");
            assert!(text.contains("not a regular file") || text.contains("cannot be read"), "{text}");
        }
        fs::write(path("long"), vec![b'x'; FILE_BYTES_MAX as usize]).expect("a file");
        assert!(files.read(&path("long")).is_ok());
        fs::write(path("longer"), vec![b'x'; FILE_BYTES_MAX as usize + 1]).expect("a file");
        assert!(files.read(&path("longer")).is_err_and(|text| text.contains("1024 KiB")));
    }
}
