//! Scans the folder for the next file.

use std::{collections::HashMap, ffi::OsString, fs, io, os::unix::fs::MetadataExt, path::Path, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::options::Order;

/// Most pending files per scan; further ones wait for the next scan. Completed files do not count, since nothing else
/// removes them.
const FILES_MAX: usize = if cfg!(test) { 1_000 } else { 100_000 };

/// The identity of a file: distinguishes it from another file of the same name, and from itself before a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub inode: u64,
    pub bytes: u64,
    /// The time of the last change, in nanoseconds since 1970.
    pub changed: i128,
}

impl Identity {
    /// The identity of a regular file.
    pub fn of(metadata: &fs::Metadata) -> Identity {
        let changed = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        Identity { inode: metadata.ino(), bytes: metadata.len(), changed }
    }
}

/// The files of a folder, and the time since which each is unchanged.
#[derive(Default)]
pub(super) struct Files {
    seen: HashMap<String, (Identity, Instant)>,
    /// Files whose names are not UTF-8; a mark cannot store these, so the files are rejected.
    unnamed: HashMap<OsString, (Identity, Instant)>,
}

/// The result of a scan.
#[derive(Debug, Default, PartialEq)]
pub(super) struct FolderScan {
    /// The next file to read, if one has settled.
    pub next: Option<(String, Identity)>,
    /// The number of other files.
    pub others: u64,
    /// The time until a present file may have settled.
    pub rescan_after: Option<Duration>,
    /// A settled file to reject: its name is not UTF-8.
    pub unnamed: Option<OsString>,
}

impl Files {
    /// Scans the folder.
    pub fn scan(
        &mut self,
        folder: &Path,
        pattern: &str,
        order: Order,
        settle: Duration,
        now: Instant,
    ) -> io::Result<FolderScan> {
        let (mut present, mut unnamed) = (HashMap::new(), HashMap::new());
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let file = entry.file_name();
            let name = file.to_string_lossy().into_owned();
            if is_managed_name(&name) || !matches(pattern, &name) {
                continue;
            }
            let metadata = match fs::symlink_metadata(entry.path()) {
                Ok(metadata) => metadata,
                // The file has been removed in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if !metadata.is_file() {
                continue;
            }
            if present.len() + unnamed.len() >= FILES_MAX {
                break;
            }
            let identity = Identity::of(&metadata);
            let is_named = file.to_str().is_some();
            let known = if is_named { self.seen.get(&name) } else { self.unnamed.get(&file) };
            let since = match known {
                Some((known, since)) if *known == identity => *since,
                _ => now,
            };
            if is_named {
                present.insert(name, (identity, since));
            } else {
                unnamed.insert(file, (identity, since));
            }
        }
        (self.seen, self.unnamed) = (present, unnamed);
        let mut found = self.next(order, settle, now);
        if let Some((file, (_, since))) = self.unnamed.iter().min_by_key(|(file, (_, since))| (*since, *file)) {
            let rest = settle.saturating_sub(now.duration_since(*since));
            if rest.is_zero() {
                found.unnamed = Some(file.clone());
            } else {
                found.rescan_after = Some(found.rescan_after.map_or(rest, |other| other.min(rest)));
            }
        }
        Ok(found)
    }

    fn next(&self, order: Order, settle: Duration, now: Instant) -> FolderScan {
        let first = self.seen.iter().min_by(|(name, (file, _)), (other_name, (other, _))| match order {
            Order::Name => name.cmp(other_name),
            Order::Changed => (file.changed, name).cmp(&(other.changed, other_name)),
        });
        let Some((name, (identity, since))) = first else {
            return FolderScan::default();
        };
        // An unsettled file blocks those behind it, since the order is guaranteed.
        let rest = settle.saturating_sub(now.duration_since(*since));
        let others = self.seen.len() as u64 - 1;
        match rest.is_zero() {
            true => FolderScan { next: Some((name.clone(), *identity)), others, ..FolderScan::default() },
            false => FolderScan { others, rescan_after: Some(rest), ..FolderScan::default() },
        }
    }

    /// Whether a file of this name is present.
    pub fn has(&self, name: &str) -> bool {
        self.seen.contains_key(name)
    }
}

/// Names of completed or rejected files, and of files that are still being written.
fn is_managed_name(name: &str) -> bool {
    name.starts_with('.') || [".done", ".err", ".err.json", ".tmp", ".part"].iter().any(|ending| name.ends_with(ending))
}

/// Whether a name matches a pattern with `*` and `?`.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut of, mut star) = (0, 0, None);
    while at < name.len() {
        match pattern.get(of) {
            Some('*') => {
                star = Some((of, at));
                of += 1;
            }
            Some(requested) if *requested == '?' || *requested == name[at] => {
                of += 1;
                at += 1;
            }
            _ => match star {
                // Backtracking: the last star matches one more character.
                Some((from, taken)) => {
                    star = Some((from, taken + 1));
                    of = from + 1;
                    at = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[of..].iter().all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names() {
        for (pattern, name) in
            [("*", "a"), ("*.csv", "x.csv"), ("a?c*", "abcd"), ("*a*b", "xaxbxab"), ("", ""), ("**", "a")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("*.csv", "x.csv.gz"), ("a?", "a"), ("a", "b"), ("", "a"), ("*a*b", "xaxbx")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn completed_files_do_not_count_towards_the_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        for number in 0..2 * FILES_MAX {
            fs::write(folder.path().join(format!("{number}.done")), "").expect("written");
        }
        fs::write(folder.path().join("a"), "1").expect("written");
        let mut files = Files::default();
        let found = files.scan(folder.path(), "*", Order::Name, Duration::ZERO, Instant::now()).expect("read");
        assert_eq!(found.next.map(|(name, _)| name).as_deref(), Some("a"));
    }

    #[test]
    fn the_first_file_is_next_once_it_has_settled() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
        let (start, settle) = (Instant::now(), Duration::from_secs(2));
        let mut files = Files::default();
        let mut scan = |seconds: u64| {
            let now = start + Duration::from_secs(seconds);
            files.scan(folder.path(), "*", Order::Name, settle, now).expect("read")
        };
        assert_eq!(scan(0), FolderScan::default());
        for name in ["b", "a", ".hidden", "x.done", "y.err", "y.err.json", "z.part"] {
            write(name, "1");
        }
        fs::create_dir(folder.path().join("0")).expect("made");
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("1")).expect("linked");
        assert_eq!(scan(1), FolderScan { others: 1, rescan_after: Some(settle), ..FolderScan::default() });
        write("a", "12");
        assert_eq!(scan(2).rescan_after, Some(settle), "it has changed");
        let found = scan(4);
        assert_eq!(found.next.map(|(name, identity)| (name, identity.bytes)), Some(("a".to_owned(), 2)));
    }
}
